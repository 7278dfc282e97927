"""Why a launch is not done: from how its process ended and its `end.json`, in one line and in `error.txt`."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from placebench.errors import JobExit
from placebench.host.signals import signal_name
from placebench.plan.limits import exceeded_limit
from placebench.plan.plan import Plan
from placebench.record.end_file import EndFile
from placebench.record.folder import AFTER, ENDED, FINISHING, STOPPING, TRACING, Status, Trial
from placebench.record.progress import Progress
from placebench.record.tail import read_end
from placebench.record.writing import write_atomically
from placebench.run.memory_use import describe_use
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device, with_labels

_LOG_LINES = 40
_LOG_BYTES = 64 * 1024
_LAST_WORDS = 5
_TRACEBACK = "Traceback (most recent call last):"

# Any other end of the job is a failure.
_EXIT_STATUS: Mapping[int, Status] = {
    JobExit.DONE: Status.DONE,
    JobExit.OOM: Status.OOM,
    JobExit.DEVICE_LOST: Status.DEVICE_LOST,
    JobExit.NODE_LOST: Status.DEVICE_LOST,
}
CLUSTER_CHANGED = (JobExit.NODE_LOST, JobExit.NOT_PLACED)
# Ray's last words in a process that it aborts, from C++, because the head of the cluster, its GCS, does not answer.
_NO_HEAD = "Failed to connect to GCS within"

_AFTER_STEPS: Mapping[str, str] = {
    FINISHING: "its end",
    TRACING: "the trace of its kernels",
    STOPPING: "its end",
    AFTER: "its after command",
}

_OF_A_GPU = "CUDA|HIP|NCCL|GPU"
_HOST_MEMORY = (
    "the memory of the host ran out, not that of a GPU: look for what else runs there, and ask the batch system or"
    " container for more (--mem in SLURM)"
)
_ADVICE: Mapping[Status, str] = {
    Status.FAILED: "read what the job printed last, below or in train.log",
    Status.OOM: (
        "lower batch.micro_batch_tokens, set activation_checkpointing=true or sharding=shard, let engines keep less"
        " (rollout.sleep=true, a lower rollout.memory_share, a higher rollout.tensor_parallel_size, a smaller"
        " batch.size), or give the pool more devices"
    ),
    Status.TIMEOUT: (
        "raise --step-timeout if a phase really takes that long; otherwise look below for what the job did last"
    ),
    Status.DEVICE_LOST: (
        "look for the device in nvidia-smi and dmesg (for a node: in ray status or sinfo), then reset it or leave it"
        " out; go on with placebench run --resume"
    ),
    Status.INTERRUPTED: "go on with placebench run --resume",
}
_JOB_MEMORY = (
    "let the job's command use smaller micro-batches, shorter sequences, activation checkpointing or sharded models,"
    " let its engines keep less (in vLLM gpu_memory_utilization), or name a placement with more devices for what ran"
    " out"
)


@dataclass(frozen=True)
class LaunchEnd:
    """How a launch ended."""

    status: Status
    """The word in its `status` file."""
    reason: str | None = None
    """One line on why it is not done; None when it is."""
    advice: str | None = None
    """What to do; None where it is the same for all that end so."""


def judge(exit_code: int, finished: int, steps: int) -> LaunchEnd:
    """What the end of a job's process means.

    Args:
        exit_code: as `Popen.returncode`: negative for a signal.
        finished: steps that it has finished.
        steps: steps that it was to run.
    """
    status = _EXIT_STATUS.get(exit_code, Status.FAILED)
    if status is Status.DONE:
        short = f"the job ended after {finished} of {steps} steps"
        return LaunchEnd(status) if finished >= steps else LaunchEnd(Status.FAILED, short)
    if exit_code < 0:
        return LaunchEnd(status, f"the job was killed by {signal_name(-exit_code)}")
    return LaunchEnd(status, f"the job ended with exit code {exit_code}")


def lost_head(trial: Trial) -> bool:
    """Whether Ray has ended the job because its head was gone, which it does without an exception."""
    return any(_NO_HEAD in line for line in _read_end(trial.log).splitlines()[-_LAST_WORDS:])


def explain(trial: Trial, end: LaunchEnd, devices: Sequence[Device]) -> LaunchEnd:
    """The end, its reason replaced by the job's own exception where it wrote one, and by the limit that it ran into."""
    if end.status is Status.DONE:
        return end
    left, cut = EndFile.read(trial), None
    if end.status in (Status.TIMEOUT, Status.INTERRUPTED):
        # It had failed already, and what comes after it did not end.
        cut = _cut_off(end) if _stage(trial) == ENDED else None
        if left is None or left.kind is JobExit.DONE or (end.status is Status.INTERRUPTED and not cut):
            return end
        end = LaunchEnd(_EXIT_STATUS.get(left.kind, Status.FAILED))
    told = "; ".join(filter(None, (left.message, left.after, cut))) if left else ""
    reason = with_labels(told or end.reason or "", devices)
    limit = exceeded_limit("\n".join((reason, _read_end(trial.error), _read_end(trial.log))))
    return LaunchEnd(end.status, f"{limit}: {reason}", limit.advice) if limit else LaunchEnd(end.status, reason)


def lacks_only(trial: Trial) -> str | None:
    """What is missing of a launch whose job had done all its steps when it ended; None where steps are missing."""
    return _AFTER_STEPS.get(_stage(trial))


def record_cut_off(trial: Trial, end: LaunchEnd) -> None:
    """Leave for the report why the `after` of a launch that is done had to end; one that failed has told it itself."""
    left = EndFile.read(trial)
    if left and left.kind is JobExit.DONE and _stage(trial) == AFTER:
        left.model_copy(update={"after": _cut_off(end)}).write(trial)


def _cut_off(end: LaunchEnd) -> str:
    return f"the after command was cut off: {end.reason}"


def _stage(trial: Trial) -> str:
    """What a launch was doing last; empty where it did not say."""
    with contextlib.suppress(KeyError, ValueError):  # what no job writes says nothing
        return Progress.read(trial).stage
    return ""


def write_end(trial: Trial, end: LaunchEnd, plan: Plan, bound: RunPlacement) -> None:
    """Write a launch's `status` and, when it is not done, its `error.txt`: reason, advice, what the job left.

    Args:
        trial: the launch.
        end: how it ended.
        plan: the run, asked about the launch's memory when that ran out.
        bound: the launch's placement.
    """
    if end.status is not Status.DONE:
        parts = [*_what_to_do(trial, end, plan, bound), *_what_it_left(trial, end.status, plan.devices)]
        write_atomically(trial.error, "\n\n".join(parts) + "\n")
    trial.set_status(end.status)


def _what_to_do(trial: Trial, end: LaunchEnd, plan: Plan, bound: RunPlacement) -> Iterator[str]:
    """Why it ended, the advice, and where memory ran out on a device, what each held."""
    left = EndFile.read(trial)
    is_of_host = end.status is Status.OOM and not _is_of_a_device(end.reason or "", left, bound)
    use: list[str] = []
    if end.status is Status.OOM and not end.advice and not is_of_host:
        use = [with_labels(line, plan.devices) for line in describe_use(trial, left, plan, bound)]
    advice = end.advice or (_HOST_MEMORY if is_of_host else _advice(end.status, plan))
    yield f"{end.status}: {end.reason}\nwhat to do: {advice}{'; figures below' if use else ''}"
    if use:
        yield "\n".join(("--- memory by device ---", *use))


def _what_it_left(trial: Trial, status: Status, devices: Sequence[Device]) -> Iterator[str]:
    """What the job wrote of its error, and the last lines that it printed, a traceback once."""
    written, printed = (with_labels(_read_end(path), devices) for path in (trial.error, trial.log))
    if status is Status.INTERRUPTED:
        written = ""  # what it says of being stopped
    if written or status is Status.INTERRUPTED:
        printed = printed.partition(_TRACEBACK)[0].strip()
    if written:
        yield f"--- what the job left ---\n{written}"
    if printed:
        yield f"--- the last lines of train.log ---\n{printed}"


def _advice(status: Status, plan: Plan) -> str:
    return _JOB_MEMORY if plan.job and status is Status.OOM else _ADVICE[status]


def _is_of_a_device(reason: str, left: EndFile | None, bound: RunPlacement) -> bool:
    """Whether memory that ran out was a device's; that of a CPU device is the host's."""
    kinds = {device.kind for devices in bound.members.values() for device in devices}
    is_told = left is not None and (left.held or left.allocator) is not None
    return kinds == {"cpu"} or is_told or re.search(_OF_A_GPU, reason) is not None


def _read_end(path: Path) -> str:
    """The last lines of a file; nothing when it is not there."""
    return "\n".join(read_end(path, _LOG_BYTES).splitlines()[-_LOG_LINES:]).strip()
