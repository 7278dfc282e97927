"""`end.json`: how a launch's job ended, in the job's own words; a job that is killed leaves none."""

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from placebench.errors import JobExit, UsageError
from placebench.record.folder import SCHEMA_VERSION, Trial
from placebench.record.parts import Record
from placebench.record.writing import write_json
from placebench.spec.reading import parse_json, read_text

STOPPED = "it was stopped before its command ended"
"""The message of a job that counts though it was stopped: all that its command has is measured."""


def _exit_named(name: object) -> object:
    return JobExit.__members__.get(name.upper(), name) if isinstance(name, str) else name


class AllocatorState(Record):
    """What torch's allocator had when it was refused memory, as torch writes it: `90.50 GiB`."""

    allocated: str
    reserved: str
    """Memory that is reserved and not allocated."""
    process: str | None = None
    """All that the process held, also outside of torch; None where torch does not say it."""


class EndFile(Record):
    """The content of `end.json`."""

    schema_version: int = SCHEMA_VERSION
    kind: Annotated[JobExit, BeforeValidator(_exit_named), PlainSerializer(lambda kind: kind.name.lower())]
    message: str | None = None
    """The exception that ended it: its name and the first line of what it says; None where it says nothing."""
    device: str | None = None
    """The id of the device whose worker failed; None where that is not known."""
    role: str | None = None
    """The role that worked there; None outside of phases."""
    held: str | None = None
    """Where memory ran out: which device in which phase, and what its models held."""
    allocator: AllocatorState | None = None
    after: str | None = None
    """What went wrong with the `after` of a job of the user's whose steps were done by then; None where nothing did."""

    @classmethod
    def read(cls, trial: Trial) -> "EndFile | None":
        """How a launch's job ended; None where it could not say so."""
        try:
            return cls.model_validate(parse_json(read_text(trial.end)))
        except (UsageError, ValueError):
            return None

    def write(self, trial: Trial) -> None:
        """Write the file."""
        write_json(trial.end, self.model_dump(mode="json"))
