"""Checkpoints that are small."""

from pathlib import Path

from placebench.record.checkpoints import new_checkpoint
from placebench.spec.workload import Workload


def write_checkpoint(folder: Path, step: int, workload: Workload | None = None) -> Path:
    """A checkpoint whose models are a few bytes."""
    job = workload or Workload()
    with new_checkpoint(folder, step, 0.5, job) as scratch:
        for name in ("actor.pt", "critic.pt")[: len(job.algorithm.trained_roles)]:
            (scratch / name).write_bytes(b"weights")
    return folder / f"step-{step:06d}"
