"""Files of a launch in whose place the job has put something else: nothing is waited for without end, or read so."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from placebench.errors import DamagedLaunchError
from placebench.record.folder import Trial
from placebench.record.progress import Progress
from placebench.record.tail import JsonlTail, read_end
from placebench.record.writing import append_to, read_jsonl
from placebench.run.watch import DamagedFilesError, TrialWatch


def _bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def _make_endless(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


REPLACEMENTS: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "socket": _bind_socket,
    "folder": Path.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "file without end": _make_endless,
}


@pytest.mark.parametrize("what", REPLACEMENTS)
def test_what_is_no_file_is_read_and_written_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    trial = Trial(tmp_path)
    for name in ("train.log", "status", "error.txt", "progress.json", "steps.jsonl"):
        REPLACEMENTS[what](tmp_path / name)
    is_file = what == "file without end"
    watch, tail = TrialWatch(trial), JsonlTail(trial.steps)
    tail._offset += 1  # as if it had been a file before, of which lines were read
    assert len(read_end(trial.log, 100)) == (100 if is_file else 0)
    assert Progress.read(trial) == Progress()
    with suppress(DamagedLaunchError):
        assert not trial.status
    assert len(trial.first_error or "") <= 1 << 20
    if is_file:
        assert watch.read().step_times == ()
        return
    with suppress(DamagedFilesError):  # one that it has not read of yet may come
        assert watch.read().step_times == ()
    for read in (tail.read_lines, lambda: list(read_jsonl(trial.steps)), lambda: append_to(trial.log).close()):
        with pytest.raises(OSError, match=r"it is a pipe or a device|Is a directory|Too many levels"):
            read()
