"""What a run has started on this host, kept where the next command finds it when the run could not clean up.

    <temporary folder>/placebench-<uid>/
      lock                      held for moments, while a record is made or swept
      <run folder's name>-<pid>/
        lock                    held by the run as long as it lives; the kernel lets go of it, whatever ends the run
        owner.json              the run's folder and, while a launch runs, by what its processes are known

A sweep ends only what a record names: see `placebench.host.processes`. Somebody else's Ray is not in any record.
The run's guardian sweeps its record as soon as the run is killed; the next command does, where that was killed too.

The locks are the kernel's own, by `fcntl`. The package filelock, which uses the same, was tried: a folder that another
process has removed meanwhile has to be made anew all the same, so that nothing becomes shorter; a waiting process asks
every 50 ms instead of being woken (six that take turns need four times as long); and every command would import it.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from placebench.errors import PlacebenchError, UsageError
from placebench.host import guardian
from placebench.host.run_lock import lock_run
from placebench.record.folder import RunFolder, Status, recorded_text
from placebench.record.writing import write_json
from placebench.spec.reading import parse_json

if TYPE_CHECKING:
    from placebench.host.processes import LaunchMark


class RunRecord:
    """The record of a live run; removed by `close`, swept when the run is killed."""

    def __init__(self, folder: Path, run: Path, lock: IO[bytes]) -> None:
        self.folder = folder
        self._run = run
        self._lock = lock
        self.write(None)

    def write(self, launch: "LaunchMark | None") -> None:
        """Record by what the processes of the launch that runs now are known, or that none runs."""
        content: dict[str, Any] = {"schema_version": 1, "pid": os.getpid(), "run": str(self._run), "launch": None}
        if launch is not None:
            content["launch"] = {
                "token": launch.token,
                "ray_temp_dir": str(launch.ray_temp_dir),
                "processes": [[process.pid, process.create_time] for process in launch.recorded],
            }
        write_json(self.folder / "owner.json", content)

    def close(self) -> None:
        """Remove the record: nothing of the run is left."""
        with _locked():
            shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.close()


@contextlib.contextmanager
def own_run(run: Path) -> Iterator[RunRecord]:
    """Keep a record of this process's run for as long as the body runs.

    Raises:
        PlacebenchError: the record cannot be made.
    """
    with _locked() as state:
        folder = state / f"{run.name}-{os.getpid()}"
        folder.mkdir()
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            lock = undo.enter_context((folder / "lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            record = RunRecord(folder, run.resolve(), lock)
            undo.pop_all()
    end = record.close
    try:
        yield record
    except OSError:
        if recorded_text(RunFolder(run).run_file, "status") == Status.RUNNING:
            end = lock.close  # left to the next sweep: the files could not be written to say that the run ends
        raise
    finally:
        end()


@contextlib.contextmanager
def guarded(record: RunRecord) -> Iterator[None]:
    """Have a process beside this one clean up after the run when this one is killed in the body."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__, str(record.folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=None if os.isatty(2) else subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        # What can be imported here can be there, and temporary files lie in the same folder.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": tempfile.gettempdir()},
    )
    try:
        yield
    finally:
        process.communicate(b"in order")


def clean_up_after(folder: Path) -> None:
    """End what the killed run of a record has left, as `sweep` does."""
    with _locked():
        if folder.exists():
            with (folder / "lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel may be about to let go of it
                _sweep_record(folder, _read_record(folder))


def live_runs() -> list[Path]:
    """Folders of the user's runs that go on now on this host."""
    with contextlib.closing(_each_record()) as records:
        return [Path(content["run"]) for _, content, is_dead in records if content and not is_dead]


def sweep() -> list[Path]:
    """End what killed runs have left: processes, Ray folders, launches and runs marked as running.

    Returns:
        Folders of the runs swept.
    """
    swept: list[Path] = []
    with contextlib.closing(_each_record()) as records:
        for folder, content, is_dead in records:
            if is_dead and _sweep_record(folder, content) and content:
                swept.append(Path(content["run"]))
    return swept


def mark_interrupted(run: Path) -> None:
    """Correct the files of a run that ended without a word: what says running is interrupted."""
    from placebench.record.run_file import replace_status

    folder = RunFolder(run)
    for trial in folder.trials():
        if trial.stands_at(Status.RUNNING):
            trial.set_status(Status.INTERRUPTED)
    replace_status(folder.run_file, Status.RUNNING, Status.INTERRUPTED)


def _sweep_record(folder: Path, content: dict[str, Any] | None) -> bool:
    """End what a run has left, and forget it; returns whether a later command has nothing left to do."""
    is_swept = not content or _sweep_run(content)
    if is_swept:
        shutil.rmtree(folder, ignore_errors=True)
    return is_swept


def _sweep_run(content: dict[str, Any]) -> bool:
    """End what a run has left; returns whether its files say so now, or never will."""
    from placebench.host.compile_cache import remove_empty_cache
    from placebench.host.processes import LaunchMark, ProcessId, kill_processes, launch_processes, remove_ray_temp_dir

    if launch := content["launch"]:
        mark = LaunchMark(
            launch["token"],
            Path(launch["ray_temp_dir"]),
            tuple(ProcessId(int(pid), float(created)) for pid, created in launch["processes"]),
        )
        kill_processes(lambda: launch_processes(mark))
        remove_ray_temp_dir(mark.ray_temp_dir)
        remove_empty_cache()
    # A run whose files are gone, damaged, not ours to write or in another process's hands stops no later command.
    run = Path(content["run"])
    try:
        with lock_run(RunFolder(run)):
            mark_interrupted(run)
    except OSError as error:
        return error.errno not in (errno.ENOSPC, errno.EDQUOT)  # until there is room again
    except (ValueError, KeyError, TypeError, UsageError):
        pass
    return True


def _state_path() -> Path:
    return Path(tempfile.gettempdir()) / f"placebench-{os.getuid()}"


def _state_folder() -> Path:
    """The state folder, made if need be.

    Raises:
        FileNotFoundError: another process has removed it meanwhile.
        PlacebenchError: it cannot be made, or is not the user's.
    """
    path = _state_path()
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise PlacebenchError(f"{path}: cannot keep the record of a run there: {error.strerror}; set TMPDIR") from None
    # The folder lies where every user may write: one that somebody else has put there is not to be trusted.
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PlacebenchError(f"{path}: belongs to another user; remove it or set TMPDIR to a folder of your own")
    return path


def _records(state: Path) -> list[Path]:
    return sorted(folder for folder in state.iterdir() if folder.is_dir())


def _each_record() -> Generator[tuple[Path, dict[str, Any] | None, bool], None, None]:
    """Every record, its content, and whether its run is dead, with the locks held until the next is asked for."""
    try:
        if not _state_path().exists():
            return
    except FileNotFoundError:  # where no temporary file can be written, commands that read still work
        return
    with _locked() as state:
        for folder in _records(state):
            with _try_lock(folder) as is_dead:
                yield folder, _read_record(folder), is_dead


def _read_record(folder: Path) -> dict[str, Any] | None:
    """The content of a record; None when its run was killed before it could write one, or a sweep cannot go by it."""
    try:
        content: dict[str, Any] = parse_json((folder / "owner.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    match content:
        case {"run": str(), "launch": None}:
            return content
        case {"run": str(), "launch": {"token": str(), "ray_temp_dir": str(), "processes": list(processes)}}:
            are_pairs = all(isinstance(process, list) and len(process) == 2 for process in processes)
            return content if are_pairs else None
    return None


@contextlib.contextmanager
def _locked() -> Iterator[Path]:
    """The state folder, for this process alone; the last one to need it removes it."""
    state, lock = _lock_state()
    with lock:
        try:
            yield state
        finally:
            if not _records(state):
                # It stays where another process has put a new lock into it since the old one is gone.
                shutil.rmtree(state, ignore_errors=True)


def _lock_state() -> tuple[Path, IO[bytes]]:
    """Lock the state folder; anew when another process has removed it since it was seen."""
    while True:
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            state = _state_folder()
            lock = stack.enter_context((state / "lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(lock.fileno()), (state / "lock").stat()):
                stack.pop_all()
                return state, lock


@contextlib.contextmanager
def _try_lock(folder: Path) -> Iterator[bool]:
    """Whether the record's run is dead: nobody holds its lock."""
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
