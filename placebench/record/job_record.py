"""A job of the user's in `run.json`, `launch.json` and `log.json`: what was asked for, what starts, what its log is."""

from typing import Any, ClassVar

from pydantic import Field

from placebench.errors import DamagedLaunchError, UsageError
from placebench.record.folder import SCHEMA_VERSION, Trial
from placebench.record.parts import Record
from placebench.record.writing import write_json
from placebench.spec.reading import parse_json, read_text


class JobWork(Record):
    """What is computed in a step of a job whose models' shapes are in `run.json`, all of it in bfloat16."""

    phases: tuple[str, ...]
    """Phases that pass every token of the step through a whole model, an update both ways."""
    epochs: int
    """Passes of an update over the step's sequences."""


class JobRecord(Record):
    """The job of a run."""

    framework: str
    """The word of `--job`."""
    spec: dict[str, Any]
    """What the user says of it: see `jobs.spec`."""
    notes: tuple[str, ...] = ()
    """What a reader of its numbers must know, a sentence each."""
    work: JobWork | None = None
    """What a step computes; None where it is not known."""


class Companion(Record):
    """A command that runs beside a job's, until the launch ends."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str]


class NodeCommand(Record):
    """What a launch starts on a node other than its first."""

    node: str
    """The node's name."""
    command: tuple[str, ...]
    env: dict[str, str]
    """Variables that it has besides those of placebench there."""


class JobLaunch(Record):
    """What a launch of a job starts, nothing left open."""

    framework: str
    """The word of `--job`."""
    command: tuple[str, ...]
    env: dict[str, str]
    """Variables that it has besides those of placebench."""
    cwd: str
    steps: int
    """It ends after so many."""
    until_end: bool = False
    """Whether it is done when the command ends before that, or is stopped."""
    companions: tuple[Companion, ...] = ()
    before: tuple[str, ...] = ()
    """Runs before it; none if empty."""
    after: tuple[str, ...] = ()
    ray: str = "none"
    """Its Ray: `none`, `own`, or an address."""
    ray_head: str | None = None
    """Where a Ray of the launch's own is started for it; None where the job starts its own or has none."""
    elsewhere: tuple[NodeCommand, ...] = ()
    """What starts on its other nodes: a Ray that joins `ray_head`, or the job's own command."""
    log_files: tuple[str, ...] = ()
    """Files with its steps, beside what it prints: patterns of absolute paths."""
    log_format: str | None = None
    """Name of their format; None to find it by the content."""
    phases: dict[str, str] = Field(default_factory=dict)
    """Phases by the names of the log's own timers."""
    settled_flags: tuple[str, ...] = ()
    """Flags of the log that do not hold where spans tell its steps."""
    attach: bool = False
    """Whether its processes write spans."""
    timers: dict[str, str] = Field(default_factory=dict)
    """Phases by the names of the timers that are in them: see `jobs.nested.exclusive`."""
    learner_ranks: int
    """Ranks that train, by which some logs multiply tokens."""
    sequences: int | None = None
    """Sequences of a step; None where they are not known."""


class LogFlag(Record):
    """What to mind of a log."""

    SPANS: ClassVar[str] = "spans"
    """Name of what the hooks in a job say."""

    name: str
    """Kind of it."""
    text: str
    """What it is, half a sentence."""


class LogRecord(Record):
    """`log.json`: how the log of a launch is to be read."""

    schema_version: int = SCHEMA_VERSION
    framework: str
    """Whose log it is, as `logs.registry` names it."""
    format: str
    """Name of the format."""
    phases: dict[str, str] = Field(default_factory=dict)
    """Phases by the names of the log's own timers."""
    flags: tuple[LogFlag, ...] = ()
    is_one_step: bool = False
    """Whether all time of the launch's spans stands as one step, as nothing says where steps begin."""

    @classmethod
    def read(cls, trial: Trial) -> "LogRecord":
        """What is known of a launch's log.

        Raises:
            DamagedLaunchError: the file is missing or damaged.
        """
        try:
            return cls.model_validate(parse_json(read_text(trial.log_facts)))
        except UsageError as error:
            raise DamagedLaunchError(str(error)) from None
        except ValueError:
            raise DamagedLaunchError(f"{trial.log_facts}: not as placebench writes it") from None

    def write(self, trial: Trial) -> None:
        """Write the file."""
        write_json(trial.log_facts, self.model_dump(mode="json"))
