"""The folder of a run and those of its launches: which files lie where, and how a launch stands.

Everything right of the trial folder works from these files alone, so this module needs nothing but the
standard library.
"""

import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from placebench.errors import DamagedLaunchError, UsageError
from placebench.record.writing import write_atomically
from placebench.spec.reading import exists, parse_json, read_text, regular
from placebench.spec.text import slug

SCHEMA_VERSION = 1
# Begins the line on what the models of a worker held that was refused memory.
HELD = "held by "
# The stage in `progress.json` of a launch in one of its steps.
IN_STEP = "step"
# The stages of a launch that has done all its steps: it awaits what it still has under way, traces
# kernels, lets its workers and their session end, and runs what the user has come after it.
FINISHING, TRACING, STOPPING, AFTER = "finish", "trace kernels", "stop", "after"
# That of a launch that has failed, while what the user has come after it runs.
ENDED = "after the end"
# No file has more characters that says how a launch stands.
_SHORT = 1 << 20


class Status(StrEnum):
    """State of a launch, the one word in its `status` file."""

    PLANNED = "planned"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    OOM = "oom"
    TIMEOUT = "timeout"
    DEVICE_LOST = "device_lost"
    INTERRUPTED = "interrupted"
    DAMAGED = "damaged"
    """Found by those who read a launch that was done; no launch's file says it."""

    @property
    def is_final(self) -> bool:
        """Whether a launch that stands so is over."""
        return self not in (Status.PLANNED, Status.RUNNING)

    @property
    def words(self) -> str:
        """What became of a launch, for people."""
        return _WORDS.get(self, self.value)


_WORDS = {
    Status.PLANNED: "not started",
    Status.RUNNING: "still running, or stopped without a message",
    Status.OOM: "out of memory",
    Status.DEVICE_LOST: "lost a device",
    Status.DAMAGED: "set aside",
}


@dataclass(frozen=True)
class _File:
    """What lies in a folder under one name; an attribute that is its path."""

    name: str
    about: str
    """What it holds, in one line."""

    def __get__(self, folder: "Trial | RunFolder", owner: type) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class Trial:
    """The folder of one launch."""

    path: Path

    launch_file = _File("launch.json", "What the launch was told: workload, placement, devices.")
    log = _File("train.log", "What the job printed, with one `step:N - name:value - …` line a step, as verl prints it.")
    attached = _File("attached", "Of a job of yours: the spans that each of its processes has written.")
    log_facts = _File("log.json", "Of a job of yours: which framework's log it is, and what to mind about its numbers.")
    steps = _File("steps.jsonl", "The metrics of each step, in full precision.")
    spans = _File("spans.jsonl", "When each phase ran, on each device and as the controller saw it.")
    device_samples = _File("devices.jsonl", "Samples of each device, and what the sampler itself cost.")
    pauses = _File("pauses.jsonl", "When the launch was stopped by Ctrl-Z; only where it was.")
    clocks = _File("clocks.jsonl", "On several nodes: how far each node's clock was off.")
    processes = _File("processes.jsonl", "Which process worked on which device.")
    ray = _File("ray.jsonl", "Of a job of yours in Ray: which GPUs Ray has allotted to each of its workers.")
    kernels = _File(
        "kernels.jsonl", "On GPUs, in the first round: what the phases of the traced step spent their time on."
    )
    checkpoints = _File("checkpoints", "With --checkpoint-every: the newest checkpoint.")
    progress = _File("progress.json", "What the job was doing last.")
    end = _File(
        "end.json", "How the job ended, and the device and role of the worker that failed; missing after a kill."
    )
    error = _File("error.txt", "Why the launch, or the trace of its kernels, failed.")

    @property
    def round(self) -> int:
        """Round from the folder's name, counted from 1."""
        return int(self.path.name.split("-", 1)[0])

    @property
    def status(self) -> Status:
        """The launch's state; a folder without the file is planned.

        Raises:
            DamagedLaunchError: the file says none.
        """
        path = self.path / "status"
        try:
            with open(path, encoding="utf-8", opener=regular) as stream:
                return Status(stream.read(_SHORT).strip())
        except FileNotFoundError:
            return Status.PLANNED
        except OSError as error:
            raise DamagedLaunchError(f"{path}: {error.strerror}") from None
        except ValueError:
            raise DamagedLaunchError(f"{path}: it says none of {', '.join(Status)}") from None

    def stands_at(self, status: Status) -> bool:
        """Whether this is the launch's state; a damaged `status` file says none."""
        try:
            return self.status is status
        except DamagedLaunchError:
            return False

    @property
    def first_error(self) -> str | None:
        """What went wrong, in one line without the status; None when nothing is on record that can be read."""
        try:
            with open(self.error, encoding="utf-8", errors="replace", opener=regular) as stream:
                lines = stream.read(_SHORT).splitlines()
        except OSError:
            return None
        return next((line.strip() for line in lines if line.strip()), None)

    def set_status(self, status: Status) -> None:
        """Write the launch's state."""
        write_atomically(self.path / "status", f"{status}\n")


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    run_file = _File(
        "run.json",
        "Command line, workload or your job, placements with their devices, host, versions, git commit, status.",
    )
    summary_file = _File("summary.json", "Every number of the report, with unit, interval and n.")
    calibration_file = _File("calibration.json", "With placebench calibrate: how much launches of one placement vary.")
    phases_file = _File(
        "phases.json", "How long the phases of each placement took, and for what work: what predictions start from."
    )
    fork_log = _File("fork_server.log", "Why workers could not be forked; only where they could not.")
    lock_file = _File(
        "lock",
        "There while a process works on the run, and keeps others out; one left by a killed process keeps nobody out.",
    )

    @property
    def folders_of_trials(self) -> tuple[Path, Path]:
        """Where the launches lie, and where those that were run again."""
        return self.path / "trials", self.path / "trials" / "replaced"

    def trial(self, round_number: int, placement: str) -> Trial:
        """The folder of a placement's launch in a round (counted from 1)."""
        return Trial(self.folders_of_trials[0] / f"{round_number:02d}-{slug(placement)}")

    def trials(self) -> tuple[Trial, ...]:
        """All trial folders there are, by round and name."""
        return tuple(Trial(path) for path in sorted(self.path.glob("trials/*-*")))

    @property
    def lacks_raw_files(self) -> bool:
        """Whether only the report is there: of a run that was shared without its launches, or of a comparison."""
        return exists(self.summary_file) and not (exists(self.run_file) and (self.trials() or self._has_no_launch))

    @property
    def _has_no_launch(self) -> bool:
        """Whether `run.json` says that no launch has come to an end, as of a run that was killed before its first."""
        try:
            return bool(parse_json(read_text(self.run_file))["launches"] == [])
        except (UsageError, ValueError, KeyError, TypeError):
            return False

    def recorded(self, key: Literal["name", "started"]) -> str:
        """What the run is called, or when it was started, ISO 8601; empty where its files are damaged."""
        return recorded_text(self.run_file, key) or recorded_text(self.summary_file, key)


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run."""
    try:
        return RunFolder(path).run_file.is_file()
    except (OSError, ValueError):
        return False


def is_run_or_report(path: Path) -> bool:
    """Whether a path is the folder of a run, or of what is left of one."""
    return is_run(path) or (exists(path) and RunFolder(path).lacks_raw_files)


def run_folders(above: Path) -> list[RunFolder]:
    """The runs that lie in a folder, newest first: also what is damaged or has only its report left.

    Raises:
        OSError: the folder is there and cannot be looked into.
    """
    try:
        found = [RunFolder(path) for path in sorted(above.iterdir(), reverse=True) if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    runs = [one for one in found if any(map(exists, (one.run_file, one.summary_file, one.path / "trials")))]
    # A folder may be renamed, and the clock of its host set.
    return sorted(runs, key=lambda one: one.recorded("started"), reverse=True)


def recorded_text(path: Path, key: Literal["status", "started", "name"]) -> str:
    """A text of `run.json` or `summary.json` without the rest of it; empty where there is none to read."""
    try:
        return str(parse_json(read_text(path))[key])
    except (UsageError, ValueError, KeyError, TypeError):
        return ""


def resuming(run: Path) -> str:
    """The command that goes on with a run, as a shell reads it."""
    return f"placebench run --resume {shlex.quote(str(run))}"
