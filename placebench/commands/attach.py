"""A command of the user's, run once as it is: its timeline, what its phases use, and who sits where."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from placebench.commands.completion import complete_devices
from placebench.commands.options import (
    WRONG_OPTIONS,
    StartingCommand,
    WholeRange,
    option,
    option_group,
    read_hz,
    verbose_option,
)
from placebench.commands.outputs import OutputPath
from placebench.commands.run_options import SECONDS, run_option
from placebench.commands.start import refuse_unreadable, start
from placebench.errors import InterruptedRunError, LaunchError, TimeLimitError, UsageError
from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.legible import shown

if TYPE_CHECKING:
    from placebench.plan.plan import Plan
    from placebench.run.runner import RunResult

_EXAMPLES = """\b
Examples:
  placebench attach -- bash run_qwen7b.sh
  placebench attach --job trl --steps 20 -- accelerate launch train.py
"""
# What its one placement is called: the command decides what it puts where.
_PLACEMENT = "job"
_PATIENCE_S = 1e8


@click.command(
    cls=StartingCommand, epilog=_EXAMPLES, short_help="Watch one run of a command of yours: timeline, load, roles."
)
@option_group(
    "Your command",
    option(
        "--job",
        default="command",
        show_default=True,
        metavar="WORD",
        help="The framework, such as verl; command: any other.",
    ),
    option(
        "--steps",
        type=WholeRange(1, MOST_STEPS),
        metavar="N",
        help="End it after this many steps.  [default: as it ends]",
    ),
    option("--time-limit", "time_limit_s", type=SECONDS, metavar="SECONDS", help="End it after this long."),
    option("--allow-kill", is_flag=True, help="Run scripts even if they may end processes of others."),
)
@option_group(
    "What is measured",
    option(
        "--devices",
        metavar="SPEC",
        shell_complete=complete_devices,
        help="cpu:N or gpu:N.  [default: all GPUs, else one CPU device]",
    ),
    option("--warmup-steps", type=WholeRange(0), default=0, metavar="N", help="First steps, left out.  [default: 0]"),
    run_option(
        "--sample-hz", type=float, metavar="HZ", callback=read_hz, help="Device samples a second.  [default: 5]"
    ),
)
@option_group(
    "Output",
    option("--name", metavar="NAME", help="Name of the run.  [default: from the command]"),
    option("--out", type=OutputPath(is_folder=True), metavar="FOLDER", help="Folder of the runs.  [default: runs]"),
    verbose_option,
    option("--dry-run", is_flag=True, help="Print the command line and environment, and start nothing."),
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- COMMAND...")
def attach(job: str, steps: int | None, warmup_steps: int, command: tuple[str, ...], **given: Any) -> None:
    """Run a command once, unchanged, and report where its time goes and which role sits on which device.

    It ends when the command does. Ctrl-C ends the command; the report then covers what there was.
    """
    from placebench.jobs.registry import ADAPTERS
    from placebench.jobs.spec import literal
    from placebench.plan.plan import default_name, make_plan
    from placebench.plan.request import RunRequest

    if not command:
        raise UsageError("there is no command: write it after --")
    if job not in ADAPTERS:
        near = "; a file is for placebench run --job" if job.endswith((".yaml", ".yml")) else ""
        raise UsageError(f"--job: unknown framework {shown(job)}: use {', '.join(ADAPTERS)}{near}")
    keys: dict[str, Any] = {"job": job, "command": [literal(word) for word in command]}
    keys |= {"until_end": True, "quiet": False, "each_node": False}  # it calls srun itself
    keys |= {"placements": {_PLACEMENT: {}}, "steps": steps or MOST_STEPS, "warmup_steps": warmup_steps}
    wrong = given.pop(WRONG_OPTIONS, {})
    request = RunRequest(
        job=keys,
        origin=lambda key: "the job",
        placements=_PLACEMENT,
        rounds=1,
        step_timeout_s=_PATIENCE_S,
        wrong=tuple(wrong.values()),
        **{name: value for name, value in given.items() if value is not None},
    )
    if request.devices is None and not _has_gpus():
        request = replace(request, devices="cpu:1")
    if request.name is None:
        script = next((word for word in command[1:] if Path(word).is_file()), command[0])
        request = replace(request, name=default_name(f"attach-{Path(script).name}"))
    start(make_plan(request), request, ("placebench", "attach"), raise_end=_raise_end)


def _raise_end(plan: "Plan", result: "RunResult") -> None:
    """Say how the one launch of a run ended, where that was not in order: there is none to go on with.

    Raises:
        TimeLimitError: the time limit has passed.
        InterruptedRunError: the user has stopped it.
        LaunchError: the command has failed, or nothing can be made of what it left.
    """
    from placebench.record.end_file import STOPPED, EndFile
    from placebench.run.asked import TIME_LIMIT

    if result.done:
        refuse_unreadable(result)
    if result.failures:
        path, reason = result.failures[0]
        raise LaunchError(f"{reason} (its folder is {path})")
    result.raise_unless_done()
    if result.late_signal:
        raise InterruptedRunError(
            f"stopped by {result.late_signal.name}: the report covers what was recorded until then"
        )
    end = EndFile.read(plan.folder.trial(1, _PLACEMENT))
    if end is not None and end.message == STOPPED:
        raise TimeLimitError(f"{TIME_LIMIT}: the report covers what was recorded until then")
    if end is not None and end.message:
        raise LaunchError(f"{end.message}: the report covers what was recorded until then")


def _has_gpus() -> bool:
    """Whether there are GPUs, or a driver that has to be seen to."""
    from placebench.host.gpus import list_gpus, visible_gpus

    inventory = list_gpus()
    return inventory.fault is not None or bool(visible_gpus(inventory))
