"""What the user asks for: options over the YAML file, the file over the preset, each value with where it is from.

The checks that every command begins with find what of it can be read.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from placebench.errors import Reasons, UsageError
from placebench.record.checkpoints import read_checkpoint
from placebench.spec.auto_rounds import DEFAULT_ROUNDS, LEAST_PRECISION, MOST_ROUNDS, REAL_MODEL_ROUNDS, AutoRounds
from placebench.spec.check import Check, Facts
from placebench.spec.config import find_line, load_yaml, read_settings
from placebench.spec.launchers import LAUNCHERS, RAY
from placebench.spec.legible import shown
from placebench.spec.nested import merge, nest
from placebench.spec.words import names_file, readable_placements
from placebench.spec.workload import SMALL_MODEL, Workload, keys_below, workload_keys
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


def build_request(
    options: Mapping[str, Any],
    short: Mapping[str, tuple[str, Any]],
    settings: Sequence[str],
    config: Path | None,
    wrong: Mapping[str, str] = MappingProxyType({}),
    *,
    job: str | None = None,
    command: Sequence[str] = (),
) -> RunRequest:
    """Put together what options, `--set` and `--config` say; what is wrong with them is in the request.

    Args:
        options: fields of `RunRequest` by name that were given as options.
        short: by dotted workload key, the option given that is short for it, such as `--batch-size`, and its value.
        settings: `key=value` of every `--set`.
        config: the YAML file; None without one.
        wrong: by field of `RunRequest` or dotted workload key, why an option that was given cannot be read.
        job: what `--job` names, a framework or a job file; None without it.
        command: the words behind `--`.
    """
    reasons = Reasons()
    reasons.add(wrong.values())
    if job is not None and names_file(job):
        if config:
            reasons.add([f"--job {job} and --config {config} both name a file: write all of it in one"])
        config = Path(job)
    content = reasons.attempt(lambda: load_yaml(config)) if config else {}
    if job is not None or (content and not content.keys().isdisjoint(("job", "command"))):
        unknown = {*wrong, *(key for key in ("job", *RUN_KEYS) if content is None and key not in options)}
        return _job_request(options, short, settings, config, content or {}, reasons, unknown, job, command)
    if command:
        reasons.add([f"{shown(shlex.join(command))}: a command needs --job: name its framework, or command"])
    run_keys = {}
    for key in RUN_KEYS:
        if config and content and key in content:
            run_keys[key] = reasons.attempt(partial(_run_value, config, key, content[key]))
    setting_keys = {setting.partition("=")[0].strip() for setting in settings}
    over, malformed = read_settings(settings, reasons)
    clashes = {key: flag for key, (flag, _) in short.items() if key in setting_keys or gives(over, key)}
    reasons.add(f"{flag} and --set {key} are the same setting: give it once" for key, flag in clashes.items())
    sections = {key: flag for key, (flag, _) in short.items() if not isinstance(over.get(_section(key), {}), Mapping)}
    reasons.add(
        f"--set {_section(key)} is a section of {flag}, and no value: leave one of them out"
        for key, flag in sections.items()
    )
    clashes |= sections
    for key, (_, value) in short.items():
        over = merge(over, nest(key.split("."), value))
    unknown = {*wrong, *clashes}
    unknown |= {key for key, value in run_keys.items() if value is None and key not in options}
    unknown |= {below for key in malformed for below in keys_below(key)}
    if content is None:
        unknown |= {key for key in RUN_KEYS if key not in options}
        unknown |= {key for key in workload_keys() if not gives(over, key)}
    flags = {key: flag for key, (flag, _) in short.items()} | dict.fromkeys(setting_keys, "--set")
    return RunRequest(
        workload=merge({key: value for key, value in (content or {}).items() if key not in RUN_KEYS}, over),
        origin=lambda key: _origin(key, flags, config),
        places={key: _place(config, key) for key in run_keys.keys() - options.keys() - unknown} if config else {},
        wrong=reasons.lines,
        unknown=frozenset(unknown),
        **{**run_keys, **options},
    )


def _section(key: str) -> str:
    """The section of a dotted key; empty of a key of none."""
    return key.rpartition(".")[0]


def _job_request(
    options: Mapping[str, Any],
    short: Mapping[str, tuple[str, Any]],
    settings: Sequence[str],
    config: Path | None,
    content: Mapping[str, Any],
    reasons: Reasons,
    unknown: set[str],
    job: str | None,
    command: Sequence[str],
) -> RunRequest:
    """As `build_request`, for a job of the user's: the file has its keys beside those of the run."""
    keys = {key: value for key, value in content.items() if key not in RUN_KEYS or key == "placements"}
    run_keys = {}
    for key in JOB_RUN_KEYS:
        if config and key in content:
            run_keys[key] = reasons.attempt(partial(_run_value, config, key, content[key]))
            unknown |= {key} if run_keys[key] is None and key not in options else set()
    given = {key: (flag, value) for key, (flag, value) in short.items() if key in JOB_SHORT_KEYS}
    keys |= {key: value for key, (_, value) in given.items()}
    options = dict(options)
    if (address := options.pop("ray_address", None)) is not None:
        keys["ray"] = address
    if job is not None and not names_file(job):
        keys["job"] = job
    if command:
        if "command" in content:
            reasons.add([f"{config}: command, and the command behind --, are the same setting: give it once"])
        keys["command"] = list(command)
    foreign = [flag for key, (flag, _) in short.items() if key not in given] + ["--set"] * bool(settings)
    others = [name for name in _OWN_JOBS if options.pop(name, None) is not None]
    foreign += [f"--{name.replace('_', '-').removesuffix('-s')}" for name in others]
    foreign += [f"launcher in {config}"] * ("launcher" in content)
    if foreign:
        what = "is" if len(foreign) == 1 else "are"
        reasons.add([f"{', '.join(foreign)} {what} for placebench's own job: a job of yours has it in its own command"])
    if "placements" not in options and (named := keys.get("placements")) and isinstance(named, list | Mapping):
        run_keys["placements"] = ",".join(map(str, named))
    flags = {key: flag for key, (flag, _) in given.items()} | ({"ray": "--ray-address"} if address else {})
    flags |= {"job": "--job"} if job is not None else {}
    return RunRequest(
        job=keys,
        origin=lambda key: _origin(key, flags, config, "the job"),
        places={key: _place(config, key) for key in run_keys.keys() - options.keys() - unknown} if config else {},
        wrong=reasons.lines,
        unknown=frozenset(unknown),
        **{**run_keys, **options},
    )


def _origin(key: str, flags: Mapping[str, str], config: Path | None, preset: str = "workload") -> str:
    """Where a workload key was set: options at or below it, else the line of the file, else the preset."""
    given = [flag for name, flag in flags.items() if name == key or name.startswith(f"{key}.") or key == "workload"]
    if given:
        return ", ".join(dict.fromkeys(given))
    return _place(config, key) if config else preset


def _place(config: Path, key: str) -> str:
    """The line of the file that sets a key; the file alone for a default of it, or for a pipe, which is read once."""
    line = find_line(config, key)
    return str(config) if line is None else f"{config}, line {line}"


def _run_value(config: Path, key: str, value: Any) -> Any:
    """The checked value of a key of the file that belongs to the run, not to the workload."""
    where = f"{_place(config, key)}: {key}"
    if key == "rounds":
        if value != "auto" and (type(value) is not int or not 1 <= value <= MOST_ROUNDS):
            raise UsageError(f"{where}: {shown(value)} is neither a number from 1 to {MOST_ROUNDS} nor auto")
        return value
    if key == "launcher" and value not in LAUNCHERS:
        raise UsageError(f"{where}: {shown(value)} is neither {' nor '.join(LAUNCHERS)}")
    if key == "placements" and isinstance(value, list) and all(isinstance(word, str) for word in value):
        return ",".join(value)
    if not isinstance(value, str):
        example = "a list of words, such as [standard, split]" if key == "placements" else "text"
        raise UsageError(f"{where}: {shown(value)} is not {example}")
    return Path(value) if key == "out" else value


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
    """Whether launches may have any number of steps: none is asked for, nor checkpoints, whose room hangs on it."""
    keys = request.workload if request.job is None else request.job
    return keys.keys().isdisjoint(("steps", "until_end")) and request.checkpoint_every is None


OPTIONS = Check(lambda request: request.wrong)
"""Options, settings and keys of the file that cannot be read."""
WORKLOAD = Check(lambda request, facts: read_workload(request.workload, request.origin, facts))
"""The `workload`, as far as it can be read."""
START = Check(_find_start)
PLACEMENTS = Check(_find_placements, {"placements"})
ROUNDS = Check(_find_rounds, {"rounds"})
