"""Reasons why a run cannot be, each one line with what to do: packages, folders, disks."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from placebench.errors import MissingExtraError
from placebench.record.checkpoints import checkpoint_bytes
from placebench.spec.check import Facts
from placebench.spec.launchers import TORCHRUN
from placebench.spec.legible import shown
from placebench.spec.shapes import job_shapes
from placebench.spec.text import format_bytes
from placebench.spec.workload import Workload

JOB_PACKAGES = ("torch", "ray", "transformers")
# What a small run writes and a Ray session needs; a full disk in the middle costs more than this asks for.
LEAST_FREE_BYTES = 200 << 20


def missing_packages(launcher: str) -> Iterator[str]:
    """The extra that the training job needs, when a package of it is not installed; without Ray, its is not needed."""
    missing = [name for name in JOB_PACKAGES if find_spec(name) is None and (name, launcher) != ("ray", TORCHRUN)]
    if missing:
        yield str(MissingExtraError("placebench run", "run", ", ".join(missing)))


def wrong_name(name: str) -> Iterator[str]:
    """A name that cannot be part of a folder's name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9+=._@-]{0,99}", name):
        yield f"--name {shown(name)}: use up to 100 letters, digits and + = . _ @ -, beginning with a letter or digit"
    if name == "latest":
        yield "--name latest: stands for the newest run; choose another name"


def unusable_folder(folder: Path, facts: Facts) -> tuple[str, ...]:
    """A run folder that exists, cannot be made, or lies on a full disk; likewise the temporary folder."""
    reasons = tuple(_reasons_against(folder))
    if reasons:
        del facts["folder"]
    return reasons


def _reasons_against(folder: Path) -> Iterator[str]:
    above = (folder.parent, *folder.parent.absolute().parents)
    try:
        if folder.exists():
            yield f"{folder} is there already: choose another --name or --out"
        parent = next(path for path in above if path.exists())
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        yield f"--out {folder.parent}: {folder}: {error.strerror}; name another folder"
        return
    if link := next((path for path in above if path.is_symlink() and not path.exists()), None):
        yield f"--out {folder.parent}: {link} is a link to nothing; name a folder"
    elif not parent.is_dir():
        yield f"--out {folder.parent}: {parent} is a file; name a folder"
    elif not os.access(parent, os.W_OK | os.X_OK):
        yield f"--out {folder.parent}: no permission to write in {parent}; name another folder"
    else:
        yield from full_disks(parent)


def no_checkpoints(checkpoint_every: int, workload: Workload) -> Iterator[str]:
    """Checkpoints that lie further apart than a launch is long."""
    if checkpoint_every > workload.steps:
        yield (
            f"--checkpoint-every {checkpoint_every}: a launch ends with step {workload.steps} and would save nothing;"
            f" give {workload.steps} at the most, or leave it out"
        )


def no_room_for_checkpoints(
    workload: Workload, folder: Path, checkpoint_every: int, launches: int, steps_before: int = 0
) -> Iterator[str]:
    """A disk that cannot hold the checkpoints of so many launches to come; the run's folder need not be there yet.

    The steps before are those that every launch has done in an earlier job.

    Raises:
        UsageError: a model is not known.
    """
    saved = workload.steps // checkpoint_every - steps_before // checkpoint_every
    if saved <= 0 or not launches:
        return
    each = checkpoint_bytes(workload, job_shapes(workload))
    # A launch keeps its newest one, and while it saves a new one is whole before the older one goes.
    need = each * (launches - 1 + min(saved, 2))
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(parent).free
    if need > free:
        yield (
            f"--checkpoint-every: checkpoints of {launches} launch{'es' * (launches > 1)}, {format_bytes(each)} each,"
            f" need {format_bytes(need)} in {parent}, where {format_bytes(free)} are free: free some, choose another"
            " --out, or take fewer rounds or placements"
        )


def full_disks(folder: Path) -> Iterator[str]:
    """Too little space left for the run's files, or for Ray's."""
    for path, option in ((folder, "choose another --out"), (Path(tempfile.gettempdir()), "set TMPDIR")):
        free = shutil.disk_usage(path).free
        if free < LEAST_FREE_BYTES:
            yield (
                f"no space left in {path}: {free >> 20} MiB are free, {LEAST_FREE_BYTES >> 20} MiB are needed;"
                f" free some or {option}"
            )
