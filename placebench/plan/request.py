"""What the user asks for: options over the YAML file, the file over the preset, each value with where it is from.

The checks that every command begins with find what of it can be read.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from placebench.errors import Reasons
from placebench.plan.given import GivenFile, GivenRun, origin
from placebench.record.checkpoints import read_checkpoint
from placebench.spec.auto_rounds import DEFAULT_ROUNDS, LEAST_PRECISION, REAL_MODEL_ROUNDS, AutoRounds
from placebench.spec.check import Check, Facts
from placebench.spec.launchers import RAY
from placebench.spec.legible import shown
from placebench.spec.nested import merge
from placebench.spec.words import readable_placements
from placebench.spec.workload import SMALL_MODEL, Workload, workload_keys
from placebench.spec.workload_reading import JOB_RUN_KEYS, RUN_KEYS, gives, read_workload

DEFAULT_PLACEMENTS = "standard,split"
# A framework need not have more.
JOB_PLACEMENTS = "standard"
# Keys with an option that a job of the user's has too, and options that only placebench's own has.
JOB_SHORT_KEYS = ("steps", "warmup_steps", "seed")
_OWN_JOBS = ("checkpoint_every", "resume_from", "launcher", "placement_timeout_s")
DEFAULT_STEP_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class RunRequest:
    """What the user asks for, options already laid over the YAML file; unchecked."""

    placements: str | None = None
    """Comma-separated placement words; None for standard,split."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Sections and values of the workload, over its preset."""
    devices: str | None = None
    """`cpu:N`, `gpu:N`, `cpu`, `gpu`; None for what is there."""
    rounds: int | Literal["auto"] | None = None
    """Launches of each placement, or `auto`; None for 3, or 4 of a model of real size."""
    precision: float | None = None
    """With `auto`, how far the ends of an interval may lie apart, as a fraction; None for the default."""
    max_rounds: int | None = None
    """With `auto`, the most rounds; None for the default."""
    max_time_s: float | None = None
    """With `auto`, no round begins that would end later; None for no limit."""
    min_effect: float | None = None
    """Smallest effect of interest, as a fraction."""
    calibrates: bool = False
    """Whether the run compares one placement with itself."""
    name: str | None = None
    """Name of the run; None for the placements' names."""
    out: Path | None = None
    """Folder of the runs; None for `runs` in the current one."""
    step_timeout_s: float = DEFAULT_STEP_TIMEOUT_S
    """Seconds without progress after which a launch is given up."""
    time_limit_s: float | None = None
    """Seconds after which the whole run ends; None for no limit."""
    sample_hz: float | None = None
    """Device samples a second; 0 for none, None for the default."""
    dry_run: bool = False
    """Only the plan is wanted, so that its devices may be described instead of here."""
    print_config: bool = False
    """Only the file that asks for the plan is wanted."""
    verbose: bool = False
    """Everything is wanted on the terminal, and not one screen of it."""
    checkpoint_every: int | None = None
    """Steps from one checkpoint to the next; None for none."""
    resume_from: Path | None = None
    """The checkpoint that every launch goes on from; None to begin."""
    launcher: str | None = None
    """What starts the workers, one of `launchers.LAUNCHERS`; None for Ray."""
    ray_address: str | None = None
    """Address of a Ray cluster, `host:port` or `auto`; None for this host, with a Ray of each launch's own."""
    placement_timeout_s: float | None = None
    """Seconds a launch waits for its devices of the cluster; None for the default."""
    job: Mapping[str, Any] | None = None
    """Keys of a `JobSpec`, for a job of the user's; None for placebench's own."""
    allow_kill: bool = False
    """Whether a job's scripts may end processes that are not theirs."""
    origin: Callable[[str], str] = field(default=lambda key: "workload")
    """Where a dotted workload key was set, for messages."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where the file has the keys that are options too and were not given as such, for messages."""
    wrong: Sequence[str] = ()
    """Why some of what was given cannot be read, one line each."""
    unknown: frozenset[str] = frozenset()
    """Dotted workload keys, and fields of this class, whose values nobody knows for that."""

    def in_file(self, reason: str) -> str:
        """A reason against an option; where that stands in the file, one against the key there."""
        for key, place in self.places.items():
            if reason.startswith(f"--{key} "):
                return f"{place}: {reason.removeprefix('--')}"
        return reason


def build_request(given: GivenRun) -> RunRequest:
    """Put together what options, `--set` and the file say; what is wrong with them is in the request."""
    reasons = Reasons(given.wrong.values())
    file = given.read_file(reasons)
    if given.job is not None or "job" in file.content or "command" in file.content:
        return _job_request(given, file, reasons)
    return _own_request(given, file, reasons)


def _own_request(given: GivenRun, file: GivenFile, reasons: Reasons) -> RunRequest:
    """For placebench's own job: the file has keys of the workload beside those of the run."""
    if given.command:
        reasons.add([f"{shown(shlex.join(given.command))}: a command needs --job with its framework, or --job command"])
    run_values = file.run_values(RUN_KEYS, reasons)
    over, unread = given.laid_over(reasons)
    if not file.is_readable:
        unread |= {key for key in workload_keys() if not gives(over, key)}
    content = {key: value for key, value in file.content.items() if key not in RUN_KEYS}
    return RunRequest(
        workload=merge(content, over),
        origin=partial(origin, flags=given.flags(), file=file, otherwise="workload"),
        **_of_run(given.options, run_values, file, unread | given.unknown(file, run_values)),
        wrong=reasons.lines,
    )


def _job_request(given: GivenRun, file: GivenFile, reasons: Reasons) -> RunRequest:
    """For a job of the user's: the file has its keys beside those of the run."""
    run_values = file.run_values(JOB_RUN_KEYS, reasons)
    keys, flags = _job_keys(given, file, reasons)
    if foreign := _foreign_to_jobs(given, file):
        is_one = len(foreign) == 1
        what, them = ("is", "it") if is_one else ("are", "them")
        reasons.add(
            [f"{', '.join(foreign)} {what} for placebench's own job: for a job of yours, put {them} into its command"]
        )
    # With settings of their own for each, if it is a mapping.
    if isinstance(named := keys.get("placements"), list | Mapping) and named:
        run_values["placements"] = ",".join(map(str, named))
    options = {name: value for name, value in given.options.items() if name not in (*_OWN_JOBS, "ray_address")}
    unknown = given.unknown(file, run_values) | (set() if file.is_readable else {"job"})
    return RunRequest(
        job=keys,
        origin=partial(origin, flags=flags, file=file, otherwise="the job"),
        **_of_run(options, run_values, file, unknown),
        wrong=reasons.lines,
    )


def _of_run(
    options: Mapping[str, Any], run_values: Mapping[str, Any], file: GivenFile, unknown: set[str]
) -> dict[str, Any]:
    """The fields of a request that are of the run: options over values of the file, and where these stand."""
    places = {key: file.place(key) for key in run_values.keys() - options.keys() - unknown}
    return {**run_values, **options, "places": places, "unknown": frozenset(unknown)}


def _job_keys(given: GivenRun, file: GivenFile, reasons: Reasons) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys of a job, those of its file under those of options; and the options, by key."""
    keys = {key: value for key, value in file.content.items() if key not in RUN_KEYS or key == "placements"}
    flags = {}
    for key, (flag, value) in given.short.items():
        if key in JOB_SHORT_KEYS:
            keys[key], flags[key] = value, flag
    if (address := given.options.get("ray_address")) is not None:
        keys["ray"], flags["ray"] = address, "--ray-address"
    if given.job is not None:
        flags["job"] = "--job"
        if not given.names_job_file:
            keys["job"] = given.job
    if given.command:
        if "command" in file.content:
            reasons.add([f"{file.path}: its key command and the command after -- are the same setting: give it once"])
        keys["command"] = list(given.command)
    return keys, flags


def _foreign_to_jobs(given: GivenRun, file: GivenFile) -> list[str]:
    """What is given that only placebench's own job has."""
    short = [flag for key, (flag, _) in given.short.items() if key not in JOB_SHORT_KEYS]
    others = [f"--{name.replace('_', '-').removesuffix('-s')}" for name in _OWN_JOBS if name in given.options]
    in_file = [f"launcher in {file.path}"] if "launcher" in file.content else []
    return [*short, *(["--set"] if given.settings else []), *others, *in_file]


def request_facts(request: RunRequest) -> Facts:
    """What a request says."""
    return Facts(
        request.unknown,
        request=request,
        name=request.name,
        words=(DEFAULT_PLACEMENTS if request.job is None else JOB_PLACEMENTS)
        if request.placements is None
        else request.placements,
        job_keys=request.job,
        launcher=request.launcher or RAY,
        ray_address=request.ray_address,
        checkpoint_every=request.checkpoint_every,
        resume_from=request.resume_from,
    )


def _find_start(resume_from: Path, facts: Facts) -> None:
    """The checkpoint from which launches `start`, and the `steps_before`, which are in it."""
    start = read_checkpoint(resume_from)
    facts.add(start=start, steps_before=start.step)


def _find_placements(words: str, workload: Workload, facts: Facts, nodes: Sequence[int] | None = None) -> Sequence[str]:
    """The `placements` that can be on nodes of so many devices, and `others` as far as they can be read."""
    reasons = Reasons()
    has_critic = None if "algorithm.name" in facts.unknown else workload.algorithm.has_critic
    placements, others = readable_placements(words, nodes, reasons, has_critic=has_critic)
    facts.add(placements=placements, others=others)
    return reasons.lines


def _find_rounds(
    request: RunRequest, facts: Facts, stored: AutoRounds | None = None, rounds_before: int = 0
) -> Iterator[str]:
    """How many `rounds` are run in any case, and with `--rounds auto`, when they end: `auto`.

    What a run that is resumed has `stored` of it, and how many rounds it has, hold where nothing else is given.
    """
    limits = {"precision": request.precision, "max_rounds": request.max_rounds, "max_time_s": request.max_time_s}
    given: dict[str, Any] = {name: value for name, value in limits.items() if value is not None}
    fixed = request.rounds if isinstance(request.rounds, int) else None
    is_real = "workload" in facts and facts["workload"].model != SMALL_MODEL
    facts.add(rounds=fixed or rounds_before or (REAL_MODEL_ROUNDS if is_real else DEFAULT_ROUNDS))
    if request.rounds == "auto" or (request.rounds is None and stored is not None):
        auto = replace(stored or AutoRounds(chooses_steps=not rounds_before and _leaves_steps_open(request)), **given)
        # What is stored may be from a version that took any, and nan is in no range.
        if LEAST_PRECISION <= auto.precision < 1:
            facts.add(auto=auto, rounds=max(rounds_before, auto.least_rounds))
        else:
            yield f"--precision {auto.precision:g}: give at least {LEAST_PRECISION:.2%}, and less than 100%"
    elif given:
        options = ", ".join(f"--{name.removesuffix('_s').replace('_', '-')}" for name in given)
        yield f"{options}: only for a number of rounds that is not fixed: add --rounds auto"


def _leaves_steps_open(request: RunRequest) -> bool:
    """Whether launches may have any number of steps: none is asked for, nor checkpoints, whose room depends on it."""
    keys = request.workload if request.job is None else request.job
    return keys.keys().isdisjoint(("steps", "until_end")) and request.checkpoint_every is None


OPTIONS = Check(lambda request: request.wrong)
"""Options, settings and keys of the file that cannot be read."""
WORKLOAD = Check(lambda request, facts: read_workload(request.workload, request.origin, facts))
"""The `workload`, as far as it can be read."""
START = Check(_find_start)
PLACEMENTS = Check(_find_placements, {"placements"})
ROUNDS = Check(_find_rounds, {"rounds"})
