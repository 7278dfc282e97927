"""Launches as runs of Weights & Biases in one group, the comparison as a run of it that has the report as artifact."""

import os
import re
import tempfile
from pathlib import Path

import wandb

from placebench.out.tracked import TrackedRun

# More than wandb's process writes at once.
_ROOM = 1 << 16


def write(run: TrackedRun, where: Path | None) -> str:
    """Log each launch; WANDB_MODE=offline, WANDB_PROJECT and all else that wandb's client knows hold.

    Args:
        run: what to log.
        where: the folder for its files, which is there; None for wandb's own choice.

    Returns:
        Where it is, in words.
    """
    project = os.environ.get("WANDB_PROJECT", "placebench")
    # Nobody is there to answer a question after the login, what wandb prints has no place among our lines, and the
    # host, the packages and the repository that it would record are those of the export, not of the run.
    settings = wandb.Settings(
        silent=True, console="off", login_timeout=30, x_disable_stats=True, x_disable_meta=True, disable_git=True,
        x_save_requirements=False,
    )  # fmt: skip
    folder = str(where) if where else None
    for launch in run.launches:
        with wandb.init(
            project=project, group=run.name, name=launch.name, job_type=launch.placement, config=dict(launch.config),
            dir=folder, reinit="finish_previous", settings=settings,
        ) as logged:  # fmt: skip
            for step in launch.steps:
                logged.log({**step.values, "_timestamp": step.wall}, step=step.step)
        _see_that_there_is_room(logged.dir)
    with wandb.init(
        project=project, group=run.name, name="comparison", job_type="comparison", config=dict(run.config),
        dir=folder, reinit="finish_previous", settings=settings, notes=run.verdict,
    ) as logged:  # fmt: skip
        logged.summary.update({**run.results, "verdict": run.verdict})
        report = wandb.Artifact(re.sub(r"[^\w.-]", "-", f"report-{run.name}"), "report")
        for file in run.report:
            report.add_file(str(file))
        if run.report:
            logged.log_artifact(report)
    _see_that_there_is_room(logged.dir)
    later = f"; to upload it: wandb sync {Path(logged.dir).parent.parent}/offline-run-*" if logged.offline else ""
    return f"project {project}, group {run.name}{later}"


def _see_that_there_is_room(folder: str) -> None:
    """See that wandb could write what it was told: its process says nothing where it could not.

    Raises:
        OSError: the disk is full.
    """
    with tempfile.TemporaryFile(dir=folder) as probe:
        os.posix_fallocate(probe.fileno(), 0, _ROOM)
