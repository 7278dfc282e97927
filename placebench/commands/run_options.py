"""The options of `placebench run` that other commands take too, and what of them is asked for."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from placebench.commands.completion import complete_devices, complete_models, complete_settings
from placebench.commands.options import (
    WORKLOAD_KEYS,
    WRONG_OPTIONS,
    FiniteRange,
    LenientOption,
    NearChoice,
    read_hz,
    read_share,
)
from placebench.commands.outputs import OutputPath
from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.launchers import LAUNCHERS

if TYPE_CHECKING:
    from placebench.plan.request import RunRequest

SECONDS = FiniteRange(min=0, min_open=True, max=1e8)
run_option = partial(click.option, cls=LenientOption)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SHARED = (
    run_option(
        "--job",
        metavar="WORD|FILE",
        help="A job of yours, started by the command behind --: a framework, command, or a job file.",
    ),
    run_option(
        "--min-effect", callback=read_share, metavar="SHARE", help="Smallest effect of interest.  [default: 2%]"
    ),
    run_option(
        "--devices",
        metavar="SPEC",
        shell_complete=complete_devices,
        help="cpu:N or gpu:N; gpu:NxM: a plan for M nodes.  [default: all GPUs, else CPU]",
    ),
    run_option("--name", help="Name of the run.  [default: from the placements]"),
    run_option("--out", type=OutputPath(is_folder=True), help="Folder of the runs.  [default: runs]"),
    run_option("--model", shell_complete=complete_models, help="A preset, a folder, or a hub id.  [default: tiny]"),
    run_option("--steps", type=int, help="Training steps of a launch.  [default: 10]"),
    run_option("--warmup-steps", type=int, help="First steps, left out of the numbers.  [default: 2]"),
    run_option("--seed", type=int, help="Seed of data, weights and sampling.  [default: 0]"),
    run_option("--batch-size", type=int, help="Sequences per step, over all devices."),
    run_option("--mini-batch-size", type=int, help="Sequences per optimizer step."),
    run_option("--max-prompt-length", type=int, help="Tokens; a longer prompt is refused."),
    run_option("--max-response-length", type=int, help="Tokens, at which generation stops."),
    run_option("--rollout", type=NearChoice(["torch", "vllm"]), help="What generates the responses."),
    run_option("--ignore-eos/--stop-at-eos", default=None, help="Responses of full length: equal work."),
    run_option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=complete_settings,
        help="Any workload key that --dry-run prints; repeatable.",
    ),
    run_option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="YAML of workload keys, placements, rounds, devices, name, out, launcher.",
    ),
    run_option(
        "--step-timeout",
        "step_timeout_s",
        type=SECONDS,
        help="Give a launch up after so many seconds without progress.  [default: 600]",
    ),
    run_option("--time-limit", "time_limit_s", type=SECONDS, help="End the run after so many seconds (exit code 124)."),
    run_option("--sample-hz", type=float, callback=read_hz, help="Device samples a second; 0: none.  [default: 5]"),
    run_option(
        "--checkpoint-every",
        type=click.IntRange(1, MOST_STEPS),
        metavar="STEPS",
        help="Checkpoint every launch after so many steps.",
    ),
    run_option(
        "--resume-from",
        type=click.Path(path_type=Path),
        metavar="CHECKPOINT",
        help="Begin every launch after its last step.",
    ),
    run_option(
        "--launcher", type=NearChoice(LAUNCHERS), help="What starts the workers; torchrun: of ddp.  [default: ray]"
    ),
    run_option("--ray-address", metavar="ADDRESS", help="Run on an existing Ray cluster: host:port, or auto."),
    run_option(
        "--placement-timeout",
        "placement_timeout_s",
        type=SECONDS,
        help="On a Ray cluster: wait for devices so long.  [default: 60]",
    ),
    click.option("--allow-kill", is_flag=True, help="Run a job's scripts that may end processes of others, too."),
    click.option("--dry-run", is_flag=True, help="Print the checked plan and start nothing."),
    click.option("--print-config", is_flag=True, help="Print the plan as a file for --config, and start nothing."),
    click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]"),
)


def shared_options(function: _Function) -> _Function:
    """Give a command the options that say what is run and where, in their order in its help."""
    for option in reversed(_SHARED):
        function = option(function)
    return function


def read_request(given: Mapping[str, Any]) -> "RunRequest":
    """The options of `run` that were given, over `--config`, and what of them cannot be read."""
    from placebench.plan.request import build_request

    present = {name: value for name, value in given.items() if value is not None}
    settings, config = present.pop("settings"), present.pop("config", None)
    # Neither starts anything.
    present["dry_run"] = present.get("dry_run", False) or present.get("print_config", False)
    wrong: Mapping[str, str] = present.pop(WRONG_OPTIONS, {})
    short = {
        WORKLOAD_KEYS[name]: (f"--{name.replace('_', '-')}", present.pop(name))
        for name in tuple(present)
        if name in WORKLOAD_KEYS
    }
    reasons = {WORKLOAD_KEYS.get(name, name): reason for name, reason in wrong.items()}
    job, command = present.pop("job", None), present.pop("command", ())
    return build_request(present, short, settings, config, reasons, job=job, command=command)
