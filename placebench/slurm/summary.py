"""`job_summary.txt`: what of a job a person wants to know first."""

import shlex
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placebench.compare.metrics import HEADLINES
from placebench.errors import TimeLimitError
from placebench.record.folder import RunFolder, Status
from placebench.record.run_file import RunFile
from placebench.spec.devices import with_labels
from placebench.spec.legible import visible
from placebench.spec.reading import parse_json
from placebench.spec.text import format_seconds


@dataclass(frozen=True)
class Allocation:
    """What SLURM has given to the job, from its environment."""

    job_id: str
    """Number of the job."""
    restarts: int
    """How often it was queued again."""
    nodes: tuple[str, ...]
    """Names of its nodes, this one first."""


@dataclass(frozen=True)
class JobFacts:
    """What the job knows of itself at its end."""

    job: Allocation
    """Its allocation."""
    command: tuple[str, ...]
    """What it ran."""
    begun: str
    """Start of this part of the job, ISO 8601."""
    seconds: float
    """How long this part took."""
    exit_code: int
    """Exit code of the run."""
    stopped_by: signal.Signals | None
    """The signal that SLURM has sent; None without one."""
    requeued: bool
    """Whether it is queued again and goes on."""
    error: str | None
    """Why the run could not start; None when it did."""


def job_summary(folder: Path, facts: JobFacts) -> str:
    """The text of `job_summary.txt`: what ran where, how long, how it ended, headline figures, where the rest is."""
    runs = [RunFolder(path.parent) for path in sorted((folder / "runs").glob("*/run.json"))]
    started = f"started {facts.job.restarts + 1} times" if facts.job.restarts else "started once"
    lines = [
        ("job", f"{facts.job.job_id}, {started}"),
        ("state", _state(facts)),
        ("command", shlex.join(facts.command)),
        ("nodes", f"{len(facts.job.nodes)}: {', '.join(facts.job.nodes)}"),
        ("begun", facts.begun),
        ("took", format_seconds(facts.seconds)),
        *(line for run in runs for line in _lines_of_run(run)),
        ("output", str(folder / "output.log")),
        *([("Ray's output", str(folder / "ray.log"))] if (folder / "ray.log").exists() else []),
    ]
    return "".join(f"{visible(name) + ':':<14}{visible(text)}\n" for name, text in lines)


def _state(facts: JobFacts) -> str:
    if facts.error is not None:
        return f"failed (exit code {facts.exit_code}): {facts.error}"
    if facts.requeued:
        return "stopped before its time limit; queued again, it goes on where it was"
    if facts.exit_code == 0:
        return "done (exit code 0)"
    why = {
        signal.SIGUSR1: "stopped before its time limit",
        signal.SIGTERM: "stopped by SLURM (cancelled or preempted)",
    }
    if facts.stopped_by is None and facts.exit_code == TimeLimitError.exit_code:
        return f"stopped by --time-limit of the run (exit code {facts.exit_code})"
    if facts.stopped_by is None:
        return f"failed (exit code {facts.exit_code})"
    return f"{why.get(facts.stopped_by, f'stopped by {facts.stopped_by.name}')} (exit code {facts.exit_code})"


def _lines_of_run(run: RunFolder) -> list[tuple[str, str]]:
    """What there is to say of a run, were it only that its files are damaged."""
    try:
        return list(_run_lines(run))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [("run", f"{run.path}: cannot read run.json or summary.json: {error!r}")]


def _run_lines(run: RunFolder) -> Iterator[tuple[str, str]]:
    record = RunFile.read(run.run_file)
    done = sum(launch.status is Status.DONE for launch in record.launches)
    total = sum(map(len, record.order))
    yield "run", str(run.path)
    yield "launches", f"{done} of {total} done ({record.status})"
    devices = with_labels(", ".join(device.id for device in record.devices), record.devices)
    yield "devices", f"{len(record.devices)}: {devices}"
    for trial in run.trials():
        if trial.checkpoints.is_dir():
            yield "checkpoints", str(trial.checkpoints)
    try:
        summary = parse_json(run.summary_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    for placement in summary["placements"]:
        yield placement["name"], ", ".join(_figures(placement))
        if placement["headline"]:
            yield "", placement["headline"]
    yield "report", str(run.path / "report.html")


def _figures(placement: dict[str, Any]) -> Iterator[str]:
    """The headline figures of a placement, each with its interval where it has one."""
    for quantity in placement["quantities"]:
        if quantity["key"] in HEADLINES and quantity["value"] is not None:
            interval = "" if quantity["low"] is None else f" [{quantity['low']:.4g}, {quantity['high']:.4g}]"
            yield f"{quantity['label']} {quantity['value']:.4g} {quantity['unit']}{interval}"
