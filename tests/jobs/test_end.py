"""What `end.json` says of the exceptions that end launches."""

import pickle
from pathlib import Path

import pytest
from synthetic_run import read_json

from placebench.errors import JobExit, NodeLostError, UsageError, WorkerFault, fault_of, mark_fault
from placebench.jobs.end import end_by, end_by_words
from placebench.record.end_file import AllocatorState, EndFile
from placebench.record.folder import Trial
from placebench.sessions.own_ray import name_dead_worker

REFUSED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. Including non-PyTorch memory, this process has 139.10 GiB memory"
    " in use. Of the allocated memory 90.50 GiB is allocated by PyTorch, and 1.25 GiB is reserved by PyTorch but"
    " unallocated.\nSee the manual"
)


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


class FailedCall(Exception):  # noqa: N818 - named like no error of the worker's
    """What a session raises for a worker's exception, as Ray does."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"worker (pid 3)\nTraceback\n{cause}")
        self.cause = cause


class DeadActorError(Exception):
    """What Ray raises for an actor that is gone."""

    def __init__(self, actor_id: str) -> None:
        super().__init__("it died\n\tpid: 42")
        self.actor_id = actor_id


class Handle:
    """An actor's."""

    def __init__(self, actor_id: bytes) -> None:
        self._actor_id = actor_id


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("bad\nworse"), JobExit.FAILED, "ValueError: bad"),
        (AssertionError(), JobExit.FAILED, None),
        (Exception("the node timed out"), JobExit.FAILED, "Exception: the node timed out"),
        (OSError(12, "Cannot allocate memory"), JobExit.OOM, "OSError: [Errno 12] Cannot allocate memory"),
        (
            RuntimeError("remote\nTraceback\nserved.UnsendableError: out of memory\nheld"),
            JobExit.OOM,
            "UnsendableError: out of memory",
        ),
        (FailedCall(ValueError("bad")), JobExit.FAILED, "ValueError: bad"),
        (UsageError("no data"), JobExit.USAGE, "UsageError: no data"),
        (NodeLostError("n1 was lost"), JobExit.NODE_LOST, "NodeLostError: n1 was lost"),
        (RuntimeError("GPU is lost"), JobExit.DEVICE_LOST, "RuntimeError: GPU is lost"),
        (MemoryError("all of it"), JobExit.OOM, "MemoryError: all of it"),
    ],
)
def test_an_end_has_its_kind_and_one_line(tmp_path: Path, error: Exception, kind: JobExit, message: str | None) -> None:
    end = end_by(error)
    assert (end.kind, end.message, end.device) == (kind, message, None)
    end.write(Trial(tmp_path))
    assert read_json(tmp_path / "end.json")["kind"] == kind.name.lower()
    assert EndFile.read(Trial(tmp_path)) == end


def test_a_worker_that_is_refused_memory_says_where_and_what_it_held() -> None:
    refused = OutOfMemoryError(REFUSED)
    mark_fault(refused, WorkerFault("gpu:1", "actor", "gpu:1 in update_actor: actor: weights 3 GiB"))
    mark_fault(refused, WorkerFault("gpu:0"))
    end = end_by(FailedCall(pickle.loads(pickle.dumps(refused))))
    assert end.message == f"OutOfMemoryError: {REFUSED.splitlines()[0]}"
    assert (end.device, end.role, end.held) == ("gpu:1", "actor", "gpu:1 in update_actor: actor: weights 3 GiB")
    assert end.allocator == AllocatorState(process="139.10 GiB", allocated="90.50 GiB", reserved="1.25 GiB")


def test_a_worker_that_died_is_named_by_its_device() -> None:
    workers = {"cpu:0": Handle(b"\x01"), "cpu:1": Handle(b"\x02")}
    error = DeadActorError("02")
    name_dead_worker(error, workers)
    assert end_by(error).message == "DeadActorError: it died (worker of cpu:1)"
    lost = NodeLostError("n1 was lost")
    lost.__cause__ = error
    end = end_by(lost)
    assert (end.message, end.device) == ("NodeLostError: n1 was lost", "cpu:1")
    stranger = DeadActorError("03")
    name_dead_worker(stranger, workers)
    assert fault_of(stranger) is None
    assert end_by(stranger).message == "DeadActorError: it died"


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"kind": "tired"}', '{"kind": 3}'])
def test_a_job_that_could_not_say_how_it_ended_says_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "end.json").write_text(text)
    assert EndFile.read(Trial(tmp_path)) is None


def test_a_module_that_python_does_not_find_is_named_without_the_bracket_behind_it() -> None:
    said = "python: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')"
    assert end_by_words(said, "nothing").message == "ModuleNotFoundError: No module named 'a'"
    assert end_by_words("ValueError: not this (but that)", "nothing").message == "ValueError: not this (but that)"


def test_what_a_launcher_says_of_its_process_is_told_only_where_that_one_said_nothing() -> None:
    launcher = "ValueError: no data\nsubprocess.CalledProcessError: Command 'python' returned non-zero exit status 1."
    assert end_by_words(launcher, "nothing").message == "ValueError: no data"
    alone = end_by_words(launcher.splitlines()[1], "nothing").message
    assert alone == "CalledProcessError: Command 'python' returned non-zero exit status 1."


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (
            "INFO lower gpu_memory_utilization if you run out of memory\nValueError: port 51216 is in use",
            JobExit.FAILED,
            "ValueError: port 51216 is in use",
        ),
        (
            "ValueError: no data\nINFO lower gpu_memory_utilization if you run out of memory",
            JobExit.FAILED,
            "ValueError: no data",
        ),
        (
            "(Worker pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
            "RuntimeError: Engine core initialization failed",
            JobExit.OOM,
            "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled cuda error\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
            JobExit.OOM,
            "ncclUnhandledCudaError: Call to CUDA function failed.",
        ),
        (
            "terminate called after throwing an instance of 'c10::OutOfMemoryError'\n"
            "  what():  HIP out of memory. Tried to allocate 2.00 GiB\n  frame #0: <unknown>",
            JobExit.OOM,
            "HIP out of memory. Tried to allocate 2.00 GiB",
        ),
    ],
)
def test_memory_ran_out_where_an_exception_says_so(said: str, kind: JobExit, message: str) -> None:
    assert end_by_words(said, "nothing") == EndFile(kind=kind, message=message)


@pytest.mark.parametrize(
    ("last", "kind"),
    [("sh: fork: Cannot allocate memory", JobExit.OOM), ("INFO if you run out of memory", JobExit.FAILED)],
)
def test_a_job_that_names_no_exception_is_known_by_its_last_line(last: str, kind: JobExit) -> None:
    assert end_by_words(last, f"it ended: {last}") == EndFile(kind=kind, message=f"it ended: {last}")
