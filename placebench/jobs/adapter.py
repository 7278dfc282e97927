"""What is known of a framework: how its own command is told a placement, a number of steps, and to leave all else out.

An adapter is data and one function. It is given a placement and says the settings with which the framework does as the
placement says, or every reason why that cannot be said to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from placebench.jobs.scripts import Given
from placebench.spec.devices import Kind
from placebench.spec.phases import PHASE_ORDER
from placebench.spec.placement import Placement

TRAINER_STEP, LOGGED = "trainer_step", "logged"
"""Of a trainer that logs every so many steps: each of its steps, and the moment at which it logs the last one."""
TIMERS: Mapping[str, str] = {
    name: name for name in (*PHASE_ORDER, "step", TRAINER_STEP, LOGGED, "testing", "save_checkpoint")
}
"""Timers that have the names of placebench's phases, which are verl's."""


@dataclass(frozen=True)
class AskedPlacement:
    """What an adapter is asked for."""

    placement: Placement
    """The placement, its pools counted by node."""
    kind: Kind
    """Kind of the devices."""
    given: Given
    """What the user's command says."""


@dataclass(frozen=True)
class Beside:
    """A command that runs beside the job's, on devices of its own, until the launch ends."""

    name: str
    """What it is; its output goes to `<name>.log`."""
    command: tuple[str, ...]
    """Program and arguments, with names in braces."""
    pool: str
    """The pool whose devices it sees; the job's command sees the others."""


@dataclass(frozen=True)
class Settings:
    """What a command is given so that it does as a placement says; texts may have names in braces."""

    args: tuple[str, ...] = ()
    """Arguments of the training program."""
    launcher_args: tuple[str, ...] = ()
    """Arguments of the launcher of ranks (`torchrun`, `accelerate launch`) that begins the command."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment."""
    beside: tuple[Beside, ...] = ()
    """What has to run beside it."""


@dataclass(frozen=True)
class Training:
    """What a job computes in a step, as far as its command says it for certain."""

    actor: str
    """Folder or hub id of the model that is trained."""
    phases: frozenset[str]
    """Phases that pass every token of the step once through a whole model, in bfloat16: an update both ways."""
    sequences: int | None
    """Sequences of a step of one rank, or of all if `per_rank` is false; None where they are not known."""
    critic: str | None = None
    """That of the critic; None without one of which a phase is named."""
    epochs: int = 1
    """Passes of an update over the sequences."""
    per_rank: bool = False
    """Whether `sequences` are those of one rank."""


@dataclass(frozen=True)
class Adapter:
    """A framework."""

    name: str
    """The word of `--job`."""
    reading: str
    """What it is, in a few words."""
    example: tuple[str, ...]
    """A command of it."""
    settings: Callable[[AskedPlacement], Settings]
    """The settings of a placement; a UsageError has a line for every reason why it cannot be."""
    word: str = "standard"
    """A placement that it can be told, for a job file to begin with."""
    limits: Callable[[int], tuple[str, ...]] = lambda steps: ()
    """Arguments that end the job after so many steps."""
    quiet: tuple[str, ...] = ()
    """Arguments that switch off validation, checkpoints and trackers, keep what it writes in `{folder}`."""
    quiet_where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """More of that kind by the flag of the command's that asks for what they switch off."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment in every placement."""
    timers: Mapping[str, str] = field(default_factory=lambda: TIMERS)
    """Phases by the names of the timers that its hooks record; `step` for a whole step, see `nested.exclusive`."""
    training: Callable[[Given], Training | None] = lambda given: None
    """What its jobs compute, for MFU; None where the command leaves something of it open."""
    log_format: str | None = None
    """Name of its log's format, as `logs.registry` has it; None to find it by the content."""
    log_files: tuple[str, ...] = ()
    """Files in which it writes its steps; none where it prints them."""
    settled: tuple[str, ...] = ()
    """Flags of its log that do not hold where its steps are known by spans."""
    joining: tuple[str, ...] = ()
    """Arguments where it joins a Ray that was started for it: without what only one that starts its own may ask for."""
    ray: str = "none"
    """Whether it starts a Ray: `none` or `own`."""
    notes: tuple[str, ...] = ()
    """What a reader of a comparison must know of its jobs, and what of them placebench changes, a sentence each."""
    remarks: Callable[[Given], tuple[str, ...]] = lambda given: ()
    """What a reader must know of one command of it, as what that leaves open, a sentence each."""
