"""The command line: thin; whatever is heavy is imported inside the commands, so that --help answers at once.

Commands other than `run` are modules of `placebench.commands`.
"""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from placebench import __version__
from placebench.commands import compare, gate, placements, show, slurm
from placebench.commands.outputs import OutputPath
from placebench.commands.shared import (
    WRONG_OPTIONS,
    FiniteRange,
    ToldOption,
    find_run,
    let_everything_be_printed,
    open_console,
    read_hz,
    read_rounds,
    read_share,
)
from placebench.errors import InterruptedRunError, PlacebenchError
from placebench.launchers import LAUNCHERS
from placebench.rounds import MOST_ROUNDS

if TYPE_CHECKING:
    from placebench.plan import Plan, RunRequest

# click's own exit code for a wrong command line, the shell's for SIGINT, and sysexits.h's for a fault of the program:
# 1 says that a check has found a regression.
_USAGE, _INTERRUPTED, _UNEXPECTED = 2, 130, 70
# What is wrong with a file or disk, and not with the program that meets it.
_OF_THE_HOST = frozenset(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENAMETOOLONG, errno.ELOOP)
)

# What writing to an open stream meets; such an error names no file.
_OF_A_STREAM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO))


class PlacebenchGroup(click.Group):
    """Turns every error into one line on stderr and its exit code, wherever in a command it comes from."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line and exit."""
        kwargs["standalone_mode"] = False
        let_everything_be_printed()
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = _USAGE
        except click.UsageError as error:
            code = _fail(f"{error.format_message()} (see {_command_path(error)} --help)", _USAGE)
        except click.ClickException as error:
            code = _fail(error.format_message(), error.exit_code)
        except PlacebenchError as error:
            code = _fail(str(error), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            code = _fail("stopped", _INTERRUPTED)
        except BrokenPipeError:
            _drop_stdout()
            code = 0
        except OSError as error:
            code = _fail_at_the_host(error)
        except Exception as error:  # noqa: BLE001 - the last resort: one line, and the traceback in a file
            code = _fail_unexpectedly(error)
        sys.exit(code if isinstance(code, int) else 0)


def _command_path(error: click.UsageError) -> str:
    return error.ctx.command_path if error.ctx else "placebench"


def _fail(message: str, code: int) -> int:
    for line in message.splitlines():
        click.echo(f"placebench: {line}", err=True)
    return code


def _fail_unexpectedly(error: Exception) -> int:
    import tempfile
    import traceback

    if os.environ.get("PLACEBENCH_DEBUG"):
        traceback.print_exception(error)
        return _UNEXPECTED
    with tempfile.NamedTemporaryFile("w", prefix="placebench-", suffix=".log", delete=False) as stream:
        traceback.print_exception(error, file=stream)
    return _fail(
        f"unexpected {type(error).__name__}: {error}; the traceback is in {stream.name}: please report it", _UNEXPECTED
    )


def _fail_at_the_host(error: OSError) -> int:
    if error.filename is not None and error.errno in _OF_THE_HOST:
        return _fail(f"{error.filename}: {error.strerror}", _USAGE)
    if error.filename is None and error.errno in _OF_A_STREAM:
        _drop_stdout()
        return _fail(f"cannot write to standard output or a file: {error.strerror}", _USAGE)
    return _fail_unexpectedly(error)


def _drop_stdout() -> None:
    """Let nothing more be written where it cannot be, the interpreter's last flush included."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# \b keeps click from filling the lines of a paragraph.
_EXAMPLES = """\b
Examples:
  placebench run                                   standard against split, on this host
  placebench run --devices gpu:4 --model qwen2.5-1.5b --dry-run
  placebench run --config bench.yaml --set batch.size=64
  placebench placements --devices gpu:8x2
  placebench show latest

\b
Shell completion (bash; zsh and fish likewise):
  eval "$(_PLACEBENCH_COMPLETE=bash_source placebench)"
"""
_RUN_EXAMPLES = """Options override the YAML file, the file overrides the preset.

\b
Examples:
  placebench run --placements standard,split:3+1 --devices cpu:4 --rounds 5
  placebench run --placements split,split/overlap=none
  placebench run --model qwen2.5-0.5b --set optimizer.actor_lr=1e-6 --dry-run
  placebench run --resume latest

\b
Exit codes: 0 done, 2 wrong input, 3 a launch failed or too few to compare, 124 time limit, 130 interrupted.
"""


_CALIBRATE_EXAMPLES = """\b
Examples:
  placebench calibrate
  placebench calibrate --placement split --pairs 10 --devices gpu:4 --model qwen2.5-0.5b
"""


@click.group(
    cls=PlacebenchGroup,
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="placebench")
def main() -> None:
    """Measure which placement of PPO or GRPO roles on devices is faster, and why."""
    from placebench.ownership import sweep

    for run in sweep():
        click.echo(f"placebench: cleaned up after {run}, which had been killed", err=True)


# Options of `run` that are short for a workload key.
_WORKLOAD_KEYS = {
    "model": "model",
    "steps": "steps",
    "warmup_steps": "warmup_steps",
    "seed": "seed",
    "batch_size": "batch.size",
    "mini_batch_size": "batch.mini_batch_size",
    "max_prompt_length": "batch.max_prompt_length",
    "max_response_length": "batch.max_response_length",
    "rollout": "rollout.backend",
    "ignore_eos": "rollout.ignore_eos",
}
_SECONDS = FiniteRange(min=0, min_open=True, max=1e8)
_option = partial(click.option, cls=ToldOption)


@main.command(epilog=_RUN_EXAMPLES, short_help="Train under each placement, compare and report.")
@_option("--placements", metavar="WORDS", help="Words of placebench placements.  [default: standard,split]")
@_option(
    "--rounds",
    callback=read_rounds,
    metavar="N|auto",
    help="Launches of each placement; auto: until precise.  [default: 3]",
)
@_option(
    "--precision", callback=read_share, metavar="SHARE", help="With auto: width of intervals wanted.  [default: 5%]"
)
@_option("--max-rounds", type=click.IntRange(2, MOST_ROUNDS), help="With auto: the most rounds.  [default: 20]")
@_option("--max-time", type=_SECONDS, help="With auto: seconds that the rounds may take.")
@_option("--min-effect", callback=read_share, metavar="SHARE", help="Smallest effect of interest.  [default: 2%]")
@_option(
    "--devices", metavar="SPEC", help="cpu:N or gpu:N; gpu:NxM: a plan for M nodes.  [default: all GPUs, else CPU]"
)
@_option("--name", help="Name of the run.  [default: from the placements]")
@_option("--out", type=OutputPath(is_folder=True), help="Folder of the runs.  [default: runs]")
@_option("--model", help="A preset, a folder, or a hub id.  [default: tiny]")
@_option("--steps", type=int, help="Training steps of a launch.  [default: 10]")
@_option("--warmup-steps", type=int, help="First steps, left out of the numbers.  [default: 2]")
@_option("--seed", type=int, help="Seed of data, weights and sampling.  [default: 0]")
@_option("--batch-size", type=int, help="Sequences per step, over all devices.")
@_option("--mini-batch-size", type=int, help="Sequences per optimizer step.")
@_option("--max-prompt-length", type=int, help="Tokens; a longer prompt is refused.")
@_option("--max-response-length", type=int, help="Tokens, at which generation stops.")
@_option("--rollout", type=click.Choice(["torch", "vllm"]), help="What generates the responses.")
@_option("--ignore-eos/--stop-at-eos", default=None, help="Responses of full length: equal work.")
@_option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any workload key that --dry-run prints; repeatable."
)
@_option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML of workload keys, placements, rounds, devices, name, out, launcher.",
)
@_option(
    "--step-timeout", type=_SECONDS, help="Give a launch up after so many seconds without progress.  [default: 600]"
)
@_option("--time-limit", type=_SECONDS, help="End the run after so many seconds (exit code 124).")
@_option("--sample-hz", type=float, callback=read_hz, help="Device samples a second; 0: none.  [default: 5]")
@_option(
    "--checkpoint-every",
    type=click.IntRange(min=1),
    metavar="STEPS",
    help="Checkpoint every launch after so many steps.",
)
@_option(
    "--resume-from",
    type=click.Path(path_type=Path),
    metavar="CHECKPOINT",
    help="Begin every launch after its last step.",
)
@_option("--launcher", type=click.Choice(LAUNCHERS), help="What starts the workers; torchrun: of ddp.  [default: ray]")
@_option("--ray-address", metavar="ADDRESS", help="Run on an existing Ray cluster: host:port, or auto.")
@_option("--placement-timeout", type=_SECONDS, help="On a Ray cluster: wait for devices so long.  [default: 60]")
@click.option("--dry-run", is_flag=True, help="Print the checked plan and start nothing.")
@click.option("--resume", metavar="RUN", help="Go on with a run: finished launches stay, the others run again.")
def run(dry_run: bool, resume: str | None, settings: tuple[str, ...], config: Path | None, **given: Any) -> None:
    """Train under each placement, record the devices, compare and report."""
    from placebench.plan import make_plan
    from placebench.resume import resume_plan

    request = replace(read_request(given, settings, config), dry_run=dry_run)
    _start(make_plan(request) if resume is None else resume_plan(find_run(resume), request), dry_run=dry_run)


@main.command(epilog=_CALIBRATE_EXAMPLES, short_help="Measure how much launches of one placement differ here.")
@click.option("--placement", default="standard", show_default=True, help="What is compared with itself.")
@click.option(
    "--pairs",
    type=click.IntRange(2, MOST_ROUNDS // 2),
    default=5,
    show_default=True,
    help="Pairs of launches, two each.",
)
def calibrate(
    placement: str, pairs: int, dry_run: bool, settings: tuple[str, ...], config: Path | None, **given: Any
) -> None:
    """Measure how much launches of one placement differ on this host: what comparisons here cannot tell apart.

    The launches are dealt in pairs to two arms that are the same. The noise floor, its parts within and between
    launches and the smallest effect that rounds can tell are printed, kept in the run's folder, and used by later runs
    of the same workload beside it. A calibration that was stopped goes on with placebench run --resume.
    """
    from placebench.placement_words import split_words
    from placebench.plan import default_name, make_plan

    request = read_request(given, settings, config)
    name = default_name(f"calibrate-{placement}") if request.name is None else request.name
    several = f"--placement {placement}: name one placement, which is compared with itself"
    wrong = (*request.wrong, *([several] if len(split_words(placement)) > 1 else ()))
    request = replace(request, placements=placement, rounds=2 * pairs, name=name, calibrates=True, dry_run=dry_run)
    unread = request.unread - {"placements", "rounds"}
    _start(make_plan(replace(request, wrong=wrong, unread=unread)), dry_run=dry_run)


# What `calibrate` decides itself; all other options of `run` are its own too.
_OF_RUN_ALONE = ("placements", "rounds", "precision", "max_rounds", "max_time", "resume")
calibrate.params += [param for param in run.params if param.name not in _OF_RUN_ALONE]


def _start(plan: "Plan", *, dry_run: bool) -> None:
    """Run a plan and report, or show it."""
    if dry_run:
        from placebench.plan_view import show_plan

        show_plan(plan, open_console())
        return
    from placebench.display import open_display
    from placebench.runner import execute
    from placebench.signals import Stopped, raised_signals

    result = execute(plan, ["placebench", *sys.argv[1:]], open_display())
    if result.done:
        try:
            with raised_signals():
                if result.late_signal:
                    raise Stopped(result.late_signal)
                _report(result.folder)
        except Stopped as stopped:
            raise InterruptedRunError(
                f"stopped by {stopped} before the report was made: {result.done} of {result.total} launches are done;"
                f" make it with placebench report {result.folder}",
                stopped.exit_code,
            ) from None
    result.raise_unless_done()


def read_request(given: Mapping[str, Any], settings: Sequence[str], config: Path | None) -> "RunRequest":
    """The options of `run` that were given, over `--config`, and what of them cannot be read."""
    from placebench.request import WorkloadOption, build_request

    present = {name: value for name, value in given.items() if value is not None}
    wrong: Mapping[str, str] = present.pop(WRONG_OPTIONS, {})
    workload = [
        WorkloadOption(f"--{name.replace('_', '-')}", _WORKLOAD_KEYS[name], present.pop(name))
        for name in tuple(present)
        if name in _WORKLOAD_KEYS
    ]
    seconds = {
        "step_timeout": "step_timeout_s",
        "time_limit": "time_limit_s",
        "max_time": "max_time_s",
        "placement_timeout": "placement_timeout_s",
    }
    fields = _WORKLOAD_KEYS | seconds
    options = {seconds.get(name, name): value for name, value in present.items()}
    return build_request(
        options, workload, settings, config, {fields.get(name, name): reason for name, reason in wrong.items()}
    )


def _report(folder: Path) -> None:
    """Build and print the report of a run; a reader of it that goes away does not change the run's exit code."""
    from placebench.report import build_report
    from placebench.report import show as show_run

    build_report(folder)
    try:
        show_run(folder, open_console())
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
    except OSError as error:
        if error.filename is not None or error.errno not in _OF_A_STREAM:
            raise
        # The run keeps its exit code: it is done, and its report is in its folder.
        _drop_stdout()
        _fail(f"cannot write to standard output: {error.strerror}; the report is in {folder}", _USAGE)


for _command in (
    compare.compare,
    gate.check,
    gate.baseline,
    show.show,
    show.report,
    placements.placements,
    slurm.slurm,
):
    main.add_command(_command)
