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
    FilledPath,
    LenientOption,
    NearChoice,
    SecondsRange,
    WholeRange,
    option,
    option_group,
    read_hz,
    read_share,
    verbose_option,
)
from placebench.commands.outputs import OutputPath
from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.launchers import LAUNCHERS

if TYPE_CHECKING:
    from placebench.plan.request import RunRequest

SECONDS = SecondsRange(min=0, min_open=True, max=1e8)
run_option = partial(click.option, cls=LenientOption)

_Function = TypeVar("_Function", bound=Callable[..., Any])

_GROUPS = (
    option_group(
        "Your own job",
        run_option(
            "--job",
            metavar="WORD|FILE",
            help="A framework such as verl, `command`, or a job file; your command follows --.",
        ),
        option("--allow-kill", is_flag=True, help="Run a job's scripts even if they may end processes of others."),
    ),
    option_group(
        "Devices and cluster",
        run_option(
            "--devices",
            metavar="SPEC",
            shell_complete=complete_devices,
            help="cpu:N or gpu:N; gpu:NxM plans for M nodes.  [default: all GPUs, else CPU]",
        ),
        run_option("--ray-address", metavar="ADDRESS", help="Run on an existing Ray cluster: host:port, or auto."),
        run_option(
            "--placement-timeout",
            "placement_timeout_s",
            type=SECONDS,
            metavar="SECONDS",
            help="On a Ray cluster: wait this long for free devices.  [default: 60]",
        ),
        run_option(
            "--launcher",
            type=NearChoice(LAUNCHERS),
            help="What starts the workers; torchrun takes ddp placements.  [default: ray]",
        ),
    ),
    option_group(
        "What is trained",
        run_option(
            "--model",
            metavar="MODEL",
            shell_complete=complete_models,
            help="A preset, a folder, or a hub id.  [default: tiny]",
        ),
        run_option("--steps", type=int, metavar="N", help="Training steps of a launch.  [default: 6, of your job 10]"),
        run_option("--warmup-steps", type=int, metavar="N", help="First steps, left out of the numbers.  [default: 2]"),
        run_option("--batch-size", type=int, metavar="N", help="Sequences per step, over all devices."),
        run_option("--mini-batch-size", type=int, metavar="N", help="Sequences per optimizer step."),
        run_option("--max-prompt-length", type=int, metavar="N", help="Tokens; a longer prompt is refused."),
        run_option("--max-response-length", type=int, metavar="N", help="Tokens, at which generation stops."),
        run_option("--rollout", type=NearChoice(["torch", "vllm"]), help="What generates the responses."),
        run_option("--ignore-eos/--stop-at-eos", default=None, help="Responses of full length: equal work."),
        run_option("--seed", type=int, metavar="N", help="Seed of data, weights and sampling.  [default: 0]"),
        run_option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            shell_complete=complete_settings,
            help="Any key that --dry-run --verbose prints; repeatable.",
        ),
        run_option(
            "--config",
            type=FilledPath(path_type=Path),
            metavar="FILE",
            help="YAML of workload keys, placements, rounds, devices, name, out, launcher.",
        ),
    ),
    option_group(
        "Limits and checkpoints",
        run_option(
            "--time-limit",
            "time_limit_s",
            type=SECONDS,
            metavar="SECONDS",
            help="End the run after this long (exit code 124).",
        ),
        run_option(
            "--step-timeout",
            "step_timeout_s",
            type=SECONDS,
            metavar="SECONDS",
            help="Give up a launch that makes no progress for this long.  [default: 600]",
        ),
        run_option(
            "--sample-hz",
            type=float,
            callback=read_hz,
            metavar="HZ",
            help="Device samples per second; 0: none.  [default: 5]",
        ),
        run_option(
            "--checkpoint-every",
            type=WholeRange(1, MOST_STEPS),
            metavar="STEPS",
            help="Save a checkpoint of every launch each time this many steps are done.",
        ),
        run_option(
            "--resume-from",
            type=FilledPath(path_type=Path),
            metavar="CHECKPOINT",
            help="Begin every launch after the checkpoint's last step.",
        ),
    ),
    option_group(
        "Output",
        run_option("--name", metavar="NAME", help="Name of the run.  [default: from the placements]"),
        run_option(
            "--out", type=OutputPath(is_folder=True), metavar="FOLDER", help="Folder of the runs.  [default: runs]"
        ),
        run_option(
            "--min-effect",
            callback=read_share,
            metavar="SHARE",
            help="Smallest difference that matters to you.  [default: 2%]",
        ),
        verbose_option,
        option("--dry-run", is_flag=True, help="Print the checked plan and start nothing."),
        option("--print-config", is_flag=True, help="Print the plan as a file for --config, and start nothing."),
    ),
    click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]"),
)


def shared_options(function: _Function) -> _Function:
    """Give a command the options that say what is run and where, in their order in its help."""
    for add in reversed(_GROUPS):
        function = add(function)
    return function


def read_request(given: Mapping[str, Any]) -> "RunRequest":
    """The options of `run` that were given, over `--config`, and what of them cannot be read."""
    from placebench.plan.given import GivenRun
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
    return build_request(GivenRun(present, short, settings, config, reasons, job, command))
