"""`run.json`: what a run is, on what it ran and how its launches went; rewritten after every launch."""

import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from placebench.host.devices import host_record
from placebench.plan.plan import Plan, PlannedLaunch
from placebench.record.folder import SCHEMA_VERSION, Status, Trial
from placebench.record.launch_lines import count_steps
from placebench.record.parts import ClusterRecord
from placebench.record.run_file import (
    LaunchRecord,
    LaunchWall,
    PlannedPlacement,
    Resumption,
    RunFile,
    RunWall,
    StartCheckpoint,
)
from placebench.record.writing import utc_now
from placebench.spec.bound import RunPlacement
from placebench.spec.shapes import hub_models
from placebench.version import __version__

_PACKAGES = ("torch", "ray", "transformers", "vllm", "numpy", "nvidia-ml-py")


class Manifest:
    """Keeps a run's `run.json` up to date.

    Args:
        plan: the run.
        command: the command line that started it, or that goes on with it.
    """

    def __init__(self, plan: Plan, command: Sequence[str]) -> None:
        self._plan, self._path = plan, plan.folder.run_file
        self._begun = time.monotonic()
        self._record = _resumed(self._path, command) if plan.resumed else _new_run_file(plan, command)
        self._earlier_s = self._record.wall.total_s
        self._record = _changed(self._record, min_effect=plan.min_effect, ended=None)
        self.extend(plan)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run so far, earlier starts of it included."""
        return self._earlier_s + time.monotonic() - self._begun

    def round_s(self, number: int) -> float:
        """Seconds of the launches of a round."""
        return sum(launch.wall.total_s for launch in self._record.launches if launch.round == number)

    def extend(self, plan: Plan) -> None:
        """Record the rounds of a plan, which may have become more, and the steps that were chosen for them."""
        self._write(Status.RUNNING, rounds=plan.rounds, order=plan.order, auto=plan.auto)

    def add(
        self, launch: PlannedLaunch, trial: Trial, status: Status, wall: LaunchWall, *, other_runs: int = 0
    ) -> None:
        """Record how a launch went and how many other runs went on beside it, in place of an earlier try."""
        entry = LaunchRecord(
            round=launch.round,
            placement=launch.placement.name,
            trial=f"trials/{trial.path.name}",
            status=status,
            wall=wall,
            other_runs=other_runs,
        )
        launches = (*self._record.launches_but(entry.round, entry.placement), entry)
        self._write(Status.RUNNING, launches=launches, **self._steps_of(trial))

    def _steps_of(self, trial: Trial) -> dict[str, int]:
        """The steps of a launch that had no number of them to run."""
        return {"steps": max(count_steps(trial), self._record.warmup_steps + 1)} if self._plan.until_end else {}

    def finish(self, status: Status) -> None:
        """Record how the run ended."""
        self._write(status, ended=utc_now())

    def _write(self, status: Status, **changes: object) -> None:
        record = _changed(self._record, **changes, status=status)
        total, inside = self.elapsed_s, record.launches_s
        wall = RunWall(total_s=total, launches_s=inside, outside_launches_s=total - inside)
        self._record = _changed(record, wall=wall)
        self._record.write(self._path)


def _changed(record: RunFile, **changes: object) -> RunFile:
    return record.model_copy(update=changes)


def _resumed(path: Path, command: Sequence[str]) -> RunFile:
    """The record of an earlier start, with the command that goes on with it.

    The first command alone would not give the run again: its time limit, say, may have stopped it.
    """
    earlier = RunFile.read(path)
    resumption = Resumption(started=utc_now(), command=tuple(command))
    return _changed(earlier, resumptions=(*earlier.resumptions, resumption))


def _new_run_file(plan: Plan, command: Sequence[str]) -> RunFile:
    start = StartCheckpoint(checkpoint=str(plan.start.path), step=plan.start.step) if plan.start else None
    return RunFile(
        schema_version=SCHEMA_VERSION,
        name=plan.name,
        status=Status.RUNNING,
        command=tuple(command),
        started=utc_now(),
        ended=None,
        rounds=plan.rounds,
        calibrates=plan.calibrates,
        steps=plan.steps,
        warmup_steps=plan.warmup_steps,
        sample_hz=plan.sample_hz,
        launcher=plan.launcher,
        checkpoint_every=plan.checkpoint_every,
        resumed_from=start,
        workload={} if plan.job else plan.workload.model_dump(mode="json"),
        job=plan.job.record if plan.job else None,
        models=plan.job.shapes if plan.job else plan.shapes,
        hub_models=() if plan.job else hub_models(plan.workload),
        placements=tuple(_planned(plan, placement) for placement in plan.placements),
        devices=plan.devices,
        host=host_record(),
        cluster=ClusterRecord(**plan.cluster.model_dump()) if plan.cluster else None,
        versions=package_versions(),
        git=_git_state(Path(__file__).parent),
        order=(),
        launches=(),
        wall=RunWall(),
    )


def _planned(plan: Plan, bound: RunPlacement) -> PlannedPlacement:
    estimates = {pool: estimate.peak for (name, pool), estimate in plan.memory.items() if name == bound.name}
    return PlannedPlacement.of(bound, memory_estimate_bytes=estimates)


def package_versions() -> dict[str, str | None]:
    """Versions of what decides over timings; None for a package that is not installed."""
    versions: dict[str, str | None] = {"placebench": __version__, "python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _git_state(package: Path) -> dict[str, Any] | None:
    """Commit of the source tree that placebench runs from and whether files differ; None when it is not one."""
    if not (package.parent / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout

    try:
        return {"commit": git("rev-parse", "HEAD").strip(), "dirty": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None
