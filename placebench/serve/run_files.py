"""The files of a run, read on at every look."""

import os
import time
from pathlib import Path

from placebench.errors import DamagedLaunchError, UsageError
from placebench.host.run_lock import is_held
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.progress import launch_order
from placebench.record.run_file import RunFile, read_run_file
from placebench.report.listing import ListedSummary
from placebench.serve.files import is_plain, signature
from placebench.serve.launch_files import LaunchFiles, LaunchSteps
from placebench.spec.reading import read_text

# Points of all launches' steps together, and the fewest of one launch.
MOST_STEPS, _LEAST_STEPS = 20_000, 20
# A look takes no longer than about so many seconds; what is left comes at the next.
LOOK_S = 0.15
# A status that no file says: the process that worked on the run is gone.
KILLED = "killed"
Launched = tuple[int, str]


class RunFiles:
    """A run folder as it grows.

    Args:
        path: the folder.

    Attributes:
        record: its `run.json`; None where that cannot be read.
        summary: its `summary.json` as lists have it; None without one.
        error: what is wrong with either.
        launches: what has begun, by round and placement.
        statuses: how each of these stands.
        current: the launch that runs, or ran last.
        behind: whether there is more to read at once.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.record: RunFile | None = None
        self.summary: ListedSummary | None = None
        self.error: str | None = None
        self.launches: dict[Launched, LaunchSteps] = {}
        self.statuses: dict[Launched, Status] = {}
        self.current: LaunchFiles | None = None
        self.behind = False
        self._order: list[Launched] = []
        self._written: dict[str, object] = {}
        self._begun: frozenset[str] = frozenset()

    @property
    def status(self) -> str:
        """How the run stands."""
        if self.record is None:
            return Status.DAMAGED if self.summary is None or self.error else self.summary.status
        if self.record.status is Status.RUNNING and is_held(self.folder) is False:
            return KILLED
        return self.record.status

    @property
    def order(self) -> list[Launched]:
        """The launches that it is to have, in the order in which they start."""
        return self._order

    def read(self) -> None:
        """Take in what has been written since the last call, or a part of it."""
        deadline = time.monotonic() + LOOK_S
        if self._is_new(self.folder.run_file):
            self._read_record()
        if self._is_new(self.folder.summary_file):
            self._read_summary()
        if self.record is None:
            return
        self._find(self.record)
        if self.current:
            self.current.read()
        for launch in self.launches.values():
            if not launch.is_over and time.monotonic() < deadline:
                self._read_steps(launch, self.record.warmup_steps)
        unread = (one for key, one in self.launches.items() if self.statuses[key].is_final and not one.is_over)
        self.behind = any(unread) or bool(self.current and self.current.behind)

    def _is_new(self, path: Path) -> bool:
        now = signature(path)
        changed = path.name not in self._written or self._written[path.name] != now
        self._written[path.name] = now
        return changed

    def _read_record(self) -> None:
        if not is_plain(self.folder.run_file) and is_plain(self.folder.summary_file):
            return  # it was shared without its raw files
        try:
            if not is_plain(self.folder.run_file):
                raise UsageError(f"{self.folder.run_file}: there is no such file")
            self.record, self.error = read_run_file(self.folder), None
            self._order = launch_order(self.record)
        except UsageError as error:
            self.error = str(error)

    def _read_summary(self) -> None:
        self.summary = None
        try:
            if is_plain(self.folder.summary_file):
                self.summary = ListedSummary.model_validate_json(read_text(self.folder.summary_file))
        except (UsageError, ValueError) as error:
            self.error = f"{self.folder.summary_file}: {str(error).splitlines()[0]}"

    def _find(self, record: RunFile) -> None:
        """Find the launches that have begun, and the one to show: that which runs, else the last of them."""
        most = max(_LEAST_STEPS, MOST_STEPS // max(1, len(self._order)))
        running = self._find_begun(record, most)
        shown = running or next((key for key in reversed(self._order) if key in self.launches), None)
        if shown and (self.current is None or self.current.steps is not self.launches[shown]):
            bound = next(one for one in record.run_placements if one.name == shown[1])
            old = self.launches[shown]  # what is read with all other files is read from its start
            self.launches[shown] = LaunchSteps(old.trial, *shown, most, old.begun)
            self.current = LaunchFiles(self.launches[shown], bound)

    def _find_begun(self, record: RunFile, most: int) -> Launched | None:
        """Find the launches that have begun, each to keep so many steps at most; returns the one that runs."""
        if self._is_new(self.folder.path / "trials"):
            self._begun = _folders(self.folder.path / "trials")
        done = {(one.round, one.placement) for one in record.launches if one.status is Status.DONE}
        running: Launched | None = None
        for key in self._order:
            if key in done and self.statuses.get(key) is Status.DONE:
                continue
            trial = self.folder.trial(*key)
            if trial.path.name not in self._begun or (status := _status(trial)) is Status.PLANNED:
                continue
            begun = signature(trial.launch_file)
            if key not in self.launches or self.launches[key].begun != begun:
                self.launches[key] = LaunchSteps(trial, *key, most, begun)
            self.statuses[key] = status
            if status is Status.RUNNING:
                running = key
        return running

    def _read_steps(self, launch: LaunchSteps, least_warmup: int) -> None:
        if self.current is None or launch is not self.current.steps:
            launch.read()
        if self.statuses[launch.round, launch.placement].is_final and not launch.behind:
            launch.close(least_warmup)


def _folders(above: Path) -> frozenset[str]:
    """The names of the folders in a folder, links left out."""
    try:
        with os.scandir(above) as found:
            return frozenset(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    except OSError:
        return frozenset()


def _status(trial: Trial) -> Status:
    if not is_plain(trial.path / "status"):
        return Status.PLANNED
    try:
        return trial.status
    except DamagedLaunchError:
        return Status.DAMAGED
