"""Checkpoints of a job: one folder a checkpoint, there as a whole or not at all.

    <trial>/checkpoints/step-000010/
      actor.pt       weights and optimizer, whole, whatever they were spread over
      critic.pt      the same of the critic, where there is one
      state.json     step, KL coefficient, workload, and the bytes of the files above

The first rank of a model's pool writes the model, the job's main process the rest. All of it goes into a folder of
another name, which is renamed once every byte is on the disk: a job that is killed while it saves leaves nothing that
looks like a checkpoint. Only the newest checkpoint of a launch is kept.

Nothing here needs torch: `model_state` reads and writes the models.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from placebench.errors import Reasons, UsageError
from placebench.record.writing import write_json
from placebench.spec.check import Check
from placebench.spec.legible import shown
from placebench.spec.nested import flatten
from placebench.spec.placement import Placement
from placebench.spec.reading import parse_json, refuse_pipe
from placebench.spec.shapes import JobShapes
from placebench.spec.workload import Workload, placed_workload

SCHEMA_VERSION = 1
FOLDER = "checkpoints"
STATE = "state.json"
_NAME = re.compile(r"step-(\d{6,})")
# What must be the same for a job to go on as if it had never stopped: the models, their losses, every random draw.
_SAME_KEYS = ("model", "critic_model", "reward_model", "seed", "algorithm.name")
# What says how far or where a job goes, and changes nothing of what it computes.
_FREE_KEYS = ("steps", "warmup_steps", "sharding", "activation_checkpointing", "torch_compile", "trace_kernels")
# What `placed_workload` sets beside those.
_PLACED_KEYS = ("batch.size", "batch.mini_batch_size", "rollout.tensor_parallel_size")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    """The folder of the checkpoint."""
    step: int
    """The last step that is in it."""
    kl_coef: float
    """The KL coefficient after that step."""
    workload: dict[str, Any]
    """Workload of the job that wrote it, as its placement ran it and as in its `launch.json`."""


def model_file(role: str) -> str:
    """Name of a model's file."""
    return f"{role}.pt"


def checkpoint_bytes(workload: Workload, shapes: JobShapes) -> int:
    """Bytes of a checkpoint: weights and two optimizer states of what is trained, in float32."""
    critic = shapes.critic.critic_parameters if workload.algorithm.has_critic else 0
    return 12 * (shapes.actor.parameters + critic)


@contextmanager
def new_checkpoint(folder: Path, step: int, kl_coef: float, workload: Workload) -> Iterator[Path]:
    """A folder for the models' files; when they are written, it becomes the checkpoint and replaces older ones.

    After an error, such as a full disk, the folder is removed and older checkpoints stay.

    Args:
        folder: `checkpoints` of a trial; what else an earlier try has left there is removed.
        step: the last step that is in it.
        kl_coef: the KL coefficient after that step.
        workload: the job's.
    """
    scratch = folder / f".step-{step:06d}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
        _complete(scratch, step, kl_coef, workload)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    done = folder / f"step-{step:06d}"
    shutil.rmtree(done, ignore_errors=True)
    scratch.rename(done)
    _to_disk(folder)
    for other in folder.iterdir():
        if other != done:
            shutil.rmtree(other)


def _complete(scratch: Path, step: int, kl_coef: float, workload: Workload) -> None:
    """Write beside the models' files what they are, and wait until all of it is on the disk."""
    sizes = {name: (scratch / name).stat().st_size for name in map(model_file, workload.algorithm.trained_roles)}
    content = {"schema_version": SCHEMA_VERSION, "step": step, "kl_coef": kl_coef, "files": sizes}
    write_json(scratch / STATE, content | {"workload": workload.model_dump(mode="json")})
    for path in (*scratch.iterdir(), scratch):
        _to_disk(path)


def _to_disk(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read what a checkpoint says of itself and look whether its files are whole.

    Args:
        path: a checkpoint's folder, or the folder of a trial or its `checkpoints`, of which the newest is taken.

    Raises:
        UsageError: there is none, it was written by another version, or a file is missing or cut off.
    """
    path = _newest(path)
    refuse_pipe(path / STATE)
    try:
        content = parse_json((path / STATE).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--resume-from {path}: cannot read {STATE}: {error.strerror}; name a checkpoint") from None
    except ValueError:
        raise UsageError(f"--resume-from {path}: {STATE} is damaged; name another checkpoint") from None
    try:
        step, kl_coef = int(content["step"]), float(content["kl_coef"])
        sizes = {str(name): int(size) for name, size in content["files"].items()}
        is_ours = content["schema_version"] == SCHEMA_VERSION and model_file("actor") in sizes
        if not is_ours or step < 1 or not isfinite(kl_coef):
            raise ValueError
        checkpoint = Checkpoint(path.resolve(), step, kl_coef, dict(content["workload"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UsageError(f"--resume-from {path}: {STATE} is not as this placebench writes it") from None
    reasons = Reasons()
    for name, size in sizes.items():
        file = path / name
        if not file.is_file():
            reasons.add([f"--resume-from {path}: {name} is missing; name another checkpoint"])
        elif (found := file.stat().st_size) != size:
            reasons.add([f"--resume-from {path}: {name} has {found} bytes and was written with {size}; it is damaged"])
    reasons.raise_any()
    return checkpoint


def _newest(path: Path) -> Path:
    if (path / STATE).exists() or not path.is_dir():
        return path
    for folder in (path, path / FOLDER):
        whole = [entry for entry in folder.glob("step-*") if _NAME.fullmatch(entry.name)]
        if whole:
            return max(whole, key=lambda entry: int(entry.name.removeprefix("step-")))
    raise UsageError(f"--resume-from {path}: there is no checkpoint; name a folder step-N under a launch's {FOLDER}/")


def _another_value(key: str, start: Checkpoint, workload: Workload) -> Iterator[str]:
    """A value that is another than the one with which the checkpoint was written."""
    wanted, found = flatten(workload.model_dump(mode="json"))[key], flatten(start.workload).get(key)
    if wanted != found:
        yield (
            f"--resume-from {start.path}: its {key} is {shown(found)} and the workload's is {shown(wanted)};"
            " take the checkpoint's"
        )


def _too_few_steps(start: Checkpoint, workload: Workload) -> Iterator[str]:
    """Steps that the checkpoint already has."""
    first = start.step + workload.warmup_steps + 1
    if workload.steps < first:
        yield (
            f"--resume-from {start.path}: it ends with step {start.step}, so that with {workload.warmup_steps} warm-up"
            f" steps --steps must be at least {first}; it is {workload.steps}"
        )


START_CHECKS = (
    *(Check(partial(_another_value, key), {key}) for key in _SAME_KEYS),
    Check(_too_few_steps, {"steps", "warmup_steps"}),
)
"""Checks of the checkpoint from which the launches `start`: why the job cannot go on from it."""


def changes(checkpoint: Checkpoint, workload: Workload, placements: Iterable[Placement]) -> Iterator[str]:
    """What makes the steps after the checkpoint other ones than the job that wrote it would have done.

    A checkpoint has the workload as its placement ran it, so what placements decide gives a line for each.
    """
    yield from _changes(checkpoint, workload, "", are_placed=False)
    for placement in placements:
        yield from _changes(checkpoint, placed_workload(workload, placement), f"{placement.name} ", are_placed=True)


def _changes(checkpoint: Checkpoint, workload: Workload, who: str, *, are_placed: bool) -> Iterator[str]:
    """The keys with another value than the checkpoint's: those that placements decide, or all others."""
    now, then = flatten(workload.model_dump(mode="json")), flatten(checkpoint.workload)
    keys = [key for key in now if key not in _FREE_KEYS and (key in _PLACED_KEYS) is are_placed]
    if changed := [key for key in keys if now[key] != then.get(key)]:
        yield f"{who}goes on from {checkpoint.path} with a different {', '.join(changed)} than it was written with"
