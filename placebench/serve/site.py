"""The runs that the page shows, and who follows which of them."""

import threading
import time
from pathlib import Path
from typing import Any

from anyio import to_thread

from placebench.errors import UsageError
from placebench.record.folder import RunFolder, Status
from placebench.report.listing import ListedRun, listed_run
from placebench.serve.files import is_plain, is_within, signature
from placebench.serve.run_files import RunFiles
from placebench.serve.sections import Cursor, Sections
from placebench.spec.legible import encodable, legible

POLL_S = 1.0
# While there is more to read.
_CATCH_UP_S = 0.1
# A run that nobody looks at is forgotten after so many seconds, and of those that are not, so many are kept.
_KEPT_S, MOST_FOLLOWED = 120.0, 16
_PATIENCE_S = 1.0


class Following:
    """A run that is followed, for all who look at it: its files are read once."""

    def __init__(self, path: Path) -> None:
        self.sections = Sections(RunFiles(path))
        self.used = time.monotonic()
        self._lock = threading.Lock()
        self._read = 0.0

    async def news(self, cursor: Cursor, *, at_once: bool = False) -> dict[str, Any]:
        """What is new to a reader; unless it is wanted at once, the files are looked at once a second at most."""
        return await to_thread.run_sync(self._news, cursor, at_once)

    def catch_up(self) -> None:
        """Read the files to their ends, as far as that takes no longer than somebody waits."""
        deadline = time.monotonic() + _PATIENCE_S
        with self._lock:
            self._update()
            while self.sections.files.behind and time.monotonic() < deadline:
                self.sections.files.read()

    @property
    def pause_s(self) -> float:
        """How long to wait until there may be more."""
        return _CATCH_UP_S if self.sections.files.behind else POLL_S

    def _news(self, cursor: Cursor, at_once: bool) -> dict[str, Any]:
        with self._lock:
            self._update(at_once=at_once)
            return self.sections.news(cursor)

    def _update(self, *, at_once: bool = False) -> None:
        self.used = now = time.monotonic()
        if at_once or now - self._read >= (_CATCH_UP_S if self.sections.files.behind else POLL_S * 0.9):
            self.sections.update()
            self._read = time.monotonic()


class Site:
    """The runs of a folder, or one of them.

    Args:
        root: the folder of the runs.
        only: the name of the folder of the only run to show; None for all.
    """

    def __init__(self, root: Path, only: str | None = None) -> None:
        self.root, self.only = root.resolve(), only
        self._listed: dict[str, tuple[object, ListedRun]] = {}
        self._following: dict[str, Following] = {}

    def folders(self) -> dict[str, RunFolder]:
        """The runs there are, by the names of their folders; what a link leads out to is none."""
        try:
            paths = [self.root / self.only] if self.only else sorted(self.root.iterdir(), reverse=True)
        except OSError:
            return {}
        runs = {path.name: RunFolder(path) for path in paths if is_within(path, self.root)}
        return {name: run for name, run in runs.items() if is_plain(run.run_file) or is_plain(run.summary_file)}

    def runs(self) -> list[dict[str, Any]]:
        """All runs as the page lists them, newest first; only what has changed is read."""
        listed = {}
        for name, run in self.folders().items():
            now = (signature(run.run_file), signature(run.summary_file))
            known = self._listed.get(name)
            listed[name] = known if known and known[0] == now else (now, listed_run(run))
        self._listed = listed
        newest = sorted(listed.items(), key=lambda item: item[1][1].started, reverse=True)
        return [
            legible(run.model_dump(mode="json", exclude={"folder"})) | {"id": name}
            for name, (_, run) in newest
            if encodable(name) == name
        ]

    def follow(self, name: str) -> Following:
        """The run of a folder's name.

        Raises:
            UsageError: there is no such run.
        """
        if name not in self.folders():
            raise UsageError("there is no such run")
        self._forget()
        return self._following.setdefault(name, Following(self.root / name))

    def measured(self) -> list[Following]:
        """The runs that go on, newest first, else the newest one."""
        runs = self.runs()
        chosen = [run["id"] for run in runs if run["status"] == Status.RUNNING] or [run["id"] for run in runs[:1]]
        return [self.follow(name) for name in chosen[:MOST_FOLLOWED]]

    def _forget(self) -> None:
        old = time.monotonic() - _KEPT_S
        kept = sorted(self._following.items(), key=lambda item: item[1].used, reverse=True)[:MOST_FOLLOWED]
        self._following = {name: one for name, one in kept if one.used >= old}
