"""The user's job: what a YAML file, or the command line, says of it, and the names that may stand in braces there."""

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from placebench.errors import Reasons, UsageError
from placebench.jobs.registry import ADAPTERS
from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.check import Facts
from placebench.spec.legible import shown
from placebench.spec.phases import PHASE_ORDER
from placebench.spec.value_errors import what_must_be, with_place
from placebench.spec.workload_reading import JOB_RUN_KEYS

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

NAMES: Mapping[str, str] = {
    "args": "arguments of adapter and placement; appended to a command that does not say where they go",
    "folder": "the launch's own folder, which exists already",
    "steps": "steps of the launch",
    "round": "round of the launch, counted from 1",
    "placement": "name of its placement",
    "seed": "seed",
    "devices": "indices of its devices, separated by commas: 0,1",
    "n_devices": "how many there are",
    "n_ranks": "how many of them train",
    "port1": "a TCP port that is free; likewise port2, port3 and port4",
    "port2": "",
    "port3": "",
    "port4": "",
    "nodes": "how many nodes it has",
    "node_rank": "of the node on which the command starts, counted from 0; {devices} are those of that node",
    "n_local": "how many devices are on that node",
    "master": "address of the first node, for the others",
    "master_port": "a TCP port that is free there",
    "ray_address": "address of the Ray cluster; with ray: own, of a Ray that is started for the launch",
    "ray_temp_dir": "folder for the files of the launch's own Ray",
}
"""What may stand in braces, with its meaning; braces that are doubled stand for themselves."""

_NAME = re.compile(r"(?<!\$)\{(?P<open>\{)?(?P<name>[A-Za-z_]\w*)\}(?(open)\})")
# Of a shell, which does not read the command: such a word would be an argument.
_OF_A_SHELL = frozenset(("|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"))
_ADDRESS = re.compile(r"[\w.-]+:[0-9]{1,5}")


def fill(text: str, names: Mapping[str, str]) -> str:
    """A text with what stands in braces replaced; what is not in `names` stays."""

    def value(match: re.Match[str]) -> str:
        if match["open"]:
            return match[0][1:-1]
        return names.get(match["name"], match[0])

    return _NAME.sub(value, text)


def literal(text: str) -> str:
    """A text of which `fill` makes just this one, whatever stands in its braces."""
    return _NAME.sub(lambda match: f"{{{match[0]}}}", text)


def _texts_are_known(texts: Iterable[str]) -> None:
    for text in texts:
        for match in _NAME.finditer(text):
            if not match["open"] and match["name"] not in NAMES:
                known = ", ".join(f"{{{name}}}" for name in NAMES)
                raise ValueError(
                    f"{match[0]} is not a known name: use {known}, or write {{{match[0]}}} for the braces themselves"
                )


def _words(value: Any) -> Any:
    """A command as text is read as a shell would read its words; YAML takes a single word such as 0.5 as a number."""
    if type(value) in (int, float):
        value = (value,)
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"{str(error).lower()} in {shown(value)}") from None
        if found := next((word for word in value if word in _OF_A_SHELL), None):
            raise ValueError(f"{found} is for a shell, but no shell reads this command: write bash -c '… {{args}}'")
    if isinstance(value, list | tuple):
        value = tuple(str(word) if type(word) in (int, float) else word for word in value)
        _texts_are_known(word for word in value if isinstance(word, str))
        if any(isinstance(word, str) and "\0" in word for word in value):
            raise ValueError("no word of a command can have a NUL in it")
    return value


def _variables(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    texts = {name: str(one) if type(one) in (int, float) else one for name, one in value.items()}
    for name, text in texts.items():
        if isinstance(name, str) and (not name or "=" in name or "\0" in name):
            raise ValueError(f"{shown(name)} cannot be the name of a variable: it is empty, or has = or a NUL in it")
        if isinstance(text, str) and "\0" in text:
            raise ValueError(f"{name}: a variable cannot have a NUL in its value")
    _texts_are_known(text for text in texts.values() if isinstance(text, str))
    return texts


def _counts(value: Any) -> Any:
    counts = (value,) if type(value) is int else value
    return tuple(counts) if isinstance(counts, list) else counts


def _home(value: Any) -> Any:
    try:
        return Path(value).expanduser() if isinstance(value, str) and value else value
    except RuntimeError:
        raise ValueError(f"{shown(value)}: there is no such user; write the whole path") from None


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Variables = Annotated[dict[str, str], BeforeValidator(_variables)]
Folder = Annotated[Path, BeforeValidator(_home)]
Counts = Annotated[tuple[Annotated[int, Field(ge=0, strict=True)], ...], BeforeValidator(_counts)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LogOfJob(_Part):
    """Where a job's steps are found."""

    format: str | None = Field(None, description="name of the format; if left out, it is found from the content")
    files: Words | None = Field(
        None, description="files in addition to what the job prints; if left out, the framework's"
    )

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.format is not None:
            # The readers load pandas, which a plan does without.
            from placebench.logs.registry import format_named

            try:
                format_named(self.format)
            except UsageError as error:
                raise ValueError(str(error)) from None
        return self


class PlacementOfJob(_Part):
    """What a placement gives to the command, beside what the framework's adapter does for a word of placebench."""

    args: Words = Field((), description="arguments")
    env: Variables = Field(default_factory=dict, description="variables")
    pools: dict[str, Counts] = Field(
        default_factory=dict,
        description=(
            "for a name that is not a word: its pools with their devices, as one number or one for each node; if left"
            " out, all"
        ),
    )


class JobSpec(_Part):
    """A job of the user's."""

    job: str = Field("command", description="the framework")
    command: Words = Field(
        description="what starts a launch; {args} says where arguments go; without it, they go to the end"
    )
    cwd: Folder = Field(Path("."), description="folder in which it starts")
    python: Folder | None = Field(None, description="an environment of Python; its bin folder goes first on PATH")
    env: Variables = Field(default_factory=dict, description="variables of the job's environment")
    steps: int = Field(
        10,
        ge=1,
        le=MOST_STEPS,
        strict=True,
        description="number of steps after which a launch ends; if left out with until_end, all steps of the command",
    )
    until_end: bool = Field(
        False,
        strict=True,
        description="whether a launch lasts until the command ends; its steps are then not limited",
    )
    warmup_steps: int = Field(2, ge=0, strict=True, description="first steps, left out of the numbers")
    seed: int = Field(0, ge=0, strict=True, description="for {seed}; no adapter sets it")
    ray: str | None = Field(
        None,
        description="none; own: each launch starts one; HOST:PORT: a running one; if left out: as the framework needs",
    )
    each_node: bool = Field(
        True,
        strict=True,
        description="on several nodes of a SLURM job: true starts the command, or its Ray, on each node; false starts"
        " the command on the first node only, for one that calls srun itself",
    )
    log: LogOfJob = Field(default_factory=LogOfJob, description="where its steps are found")
    phases: dict[str, str] = Field(
        default_factory=dict, description="phases by the names of your own timers in the log"
    )
    quiet: bool = Field(True, strict=True, description="whether validation, checkpoints and trackers are switched off")
    attach: bool = Field(True, strict=True, description="whether the frameworks' timers are recorded as spans")
    placements: dict[str, PlacementOfJob] = Field(
        default_factory=dict,
        description="words of placebench, or names of your own with what each gives to the command",
    )
    before: Words = Field((), description="runs before each launch, not timed")
    after: Words = Field((), description="runs after each launch, not timed")

    @model_validator(mode="before")
    @classmethod
    def _placements_by_name(cls, content: Any) -> Any:
        """`standard:` without anything behind it is a placement too, and so is a list of words."""
        placements = content.get("placements") if isinstance(content, Mapping) else None
        if isinstance(placements, list) and all(isinstance(word, str) for word in placements):
            return {**content, "placements": {word: {} for word in placements}}
        if isinstance(placements, Mapping):
            return {**content, "placements": {name: {} if one is None else one for name, one in placements.items()}}
        return content

    @model_validator(mode="before")
    @classmethod
    def _to_its_end(cls, content: Any) -> Any:
        """As many steps as the command has, where it is to go on to its end."""
        if isinstance(content, dict) and content.get("until_end") is True and content.get("steps") is None:
            return content | {"steps": MOST_STEPS}
        return content

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        reasons = Reasons()
        reasons.add(self._wrong())
        if reasons.lines:
            raise ValueError("\n".join(reasons.lines))
        return self

    def _wrong(self) -> Iterable[str]:
        if self.job not in ADAPTERS:
            known = ", ".join(ADAPTERS)
            or_file = "" if self.job.endswith((".yaml", ".yml")) else ", or a job file whose name ends in .yaml"
            yield f"job: unknown framework {shown(self.job)}: use {known}{or_file}"
        if not self.command:
            yield "command: it is empty: write what starts a launch, as after -- on the command line"
        if self.warmup_steps >= self.steps:
            left = f"warmup_steps {self.warmup_steps} leaves none of {self.steps} steps to measure"
            yield f"{left}: raise steps or lower warmup_steps"
        if self.ray not in (None, "none", "own") and not _ADDRESS.fullmatch(self.ray or ""):
            yield f"ray: {shown(self.ray)} is neither none, own nor HOST:PORT"
        if not self.cwd.is_dir():
            yield f"cwd: there is no folder {self.cwd}"
        if self.python and not (self.python / "bin" / "python").exists():
            yield f"python: there is no bin/python in {self.python}; name the folder of an environment"
        for name, phase in self.phases.items():
            if phase not in PHASE_ORDER:
                yield f"phases.{name}: unknown phase {shown(phase)}: use {', '.join(PHASE_ORDER)}"

    @property
    def ray_use(self) -> str:
        """Which Ray it has: `none`, `own` or an address."""
        return self.ray or ADAPTERS[self.job].ray

    @property
    def ray_address(self) -> str | None:
        """Address of the Ray cluster that it runs on; None where it has none, or one of its own."""
        return None if self.ray_use in ("none", "own") else self.ray_use


def read_job(content: Mapping[str, Any], origin: Callable[[str], str], facts: Facts) -> tuple[str, ...]:
    """Find the `job` that a content describes.

    Args:
        content: keys as in the YAML file.
        origin: says for a dotted key where it was set.
        facts: takes the job, where nothing of it is wrong.

    Returns:
        One line for every reason why it is none.
    """
    reasons = Reasons()
    try:
        facts.add(job=JobSpec.model_validate(content))
    except ValidationError as error:
        for one in error.errors():
            key = ".".join(map(str, one["loc"]))
            for line in _in_words(key, one).splitlines():
                name = key or _key_in(line)
                reasons.add([with_place(origin(name), name, line)])
    return reasons.lines


def _key_in(line: str) -> str:
    """The key that a reason against the whole job begins with; the job itself where it begins with none."""
    word = line.split(" ")[0].rstrip(":")
    return word if word.split(".")[0] in JobSpec.model_fields else "job"


def _in_words(key: str, error: "ErrorDetails") -> str:
    """What is wrong with one value, a line for every reason."""
    if error["type"] == "missing":
        return "there is no command: write it after --, or as command in the job file"
    if error["type"] == "extra_forbidden":
        keys = [*JobSpec.model_fields, *JOB_RUN_KEYS] if "." not in key else []
        near = difflib.get_close_matches(key, keys, n=1)
        return f"unknown key {shown(key)}" + (
            f"; did you mean {shown(near[0])}?" if near else f"; the keys are {', '.join(keys)}" if keys else ""
        )
    if error["type"] == "value_error":
        text = str(error["ctx"]["error"])
        return f"{key}: {text}" if key else text
    return f"{key}: {what_must_be(error)}"
