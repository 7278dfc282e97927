"""A baseline: what the launches of a run measured, and all that must be equal to compare a later run with it."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placebench import __version__
from placebench.compare.comparison import PlacementResult, compare_run
from placebench.compare.measure.metrics import STEP_TIME
from placebench.compare.read.run import Run
from placebench.errors import BaselineError, LaunchError, UsageError
from placebench.record.folder import RunFolder, utc_now, write_output
from placebench.spec.launchers import RAY
from placebench.spec.reading import refuse_pipe

# Fewer launches have no interval.
MIN_LAUNCHES = 2


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MeasuredPlacement(_Part):
    """What one placement measured."""

    devices: tuple[str, ...] = Field(description="the model of every device")
    planned: int = Field(description="launches that the run was to have")
    launches: tuple[dict[str, float], ...] = Field(description="numbers of each finished launch, by key")
    steps: tuple[tuple[tuple[int, float, float], ...], ...] = Field(
        (), description="measured steps of each launch: number, seconds, tokens; none in files of earlier versions"
    )
    failures: tuple[str, ...] = Field((), description="why launches are not done")

    @property
    def has_steps(self) -> bool:
        """Whether the steps of every launch are known."""
        return len(self.steps) == len(self.launches)

    def values(self, key: str) -> dict[int, float]:
        """One number of every launch that has it."""
        return {number: launch[key] for number, launch in enumerate(self.launches, start=1) if key in launch}


class Baseline(_Part):
    """The content of a baseline file; also what a run is turned into to be compared with one."""

    schema_version: Literal[1] = 1
    placebench: str
    run: str = Field(description="name of the run")
    measured: str = Field(description="when the run began, UTC")
    host: dict[str, Any]
    versions: dict[str, Any]
    workload: dict[str, Any]
    launcher: str = Field(RAY, description="what starts the workers")
    placements: dict[str, MeasuredPlacement]

    def only(self, placement: str) -> "Baseline":
        """The same with one placement, or none where it lacks it."""
        kept = {name: found for name, found in self.placements.items() if name == placement}
        return self.model_copy(update={"placements": kept})


def measured_run(path: Path, placement: str | None = None) -> Baseline:
    """A run folder as a baseline, finished or not.

    Args:
        path: the run's folder.
        placement: the only one to take; None takes all.

    Raises:
        UsageError: the folder is not a run's, or has no such placement.
    """
    comparison = compare_run(path)
    record = comparison.run.record
    results = {result.name: result for result in comparison.results}
    if placement is not None and placement not in results:
        raise UsageError(f"{path} has no placement {placement!r}: it has {', '.join(results)}")
    return Baseline(
        placebench=__version__,
        run=comparison.run.name,
        measured=record.started or utc_now(),
        host=record.host,
        versions=record.versions,
        workload=record.workload,
        launcher=record.launcher,
        placements={
            name: _measured(comparison.run, result) for name, result in results.items() if placement in (None, name)
        },
    )


def _measured(run: Run, result: PlacementResult) -> MeasuredPlacement:
    failures = [
        f"{launch.label}: {launch.status}{f': {launch.error}' if launch.error else ''}"
        for launch in run.missing
        if launch.placement == result.name
    ]
    values = result.launch_values.sort_index()
    launches = (
        {str(key): float(value) for key, value in row.items() if np.isfinite(value)} for _, row in values.iterrows()
    )
    return MeasuredPlacement(
        devices=tuple(run.devices[device].name for device in result.placement.devices),
        planned=run.record.rounds,
        launches=tuple(launches),
        steps=tuple(_steps(result.steps_by_round.get(int(round_))) for round_ in values.index),
        failures=tuple(failures),
    )


def _steps(measured: pd.DataFrame | None) -> tuple[tuple[int, float, float], ...]:
    """What tells work apart: number, time and tokens of each step that has both."""
    if measured is None:
        return ()
    known = measured[[STEP_TIME.key, "tokens"]].dropna()
    return tuple((step, time, tokens) for step, time, tokens in known.itertuples())


def save_baseline(run: Path, path: Path, placement: str | None = None) -> Baseline:
    """Write a run's baseline file.

    Raises:
        LaunchError: launches of the run have failed, or there are too few for an interval.
        UsageError: the folder is not a run's, or the file cannot be written.
    """
    baseline = measured_run(run, placement)
    for name, measured in baseline.placements.items():
        if measured.failures:
            raise LaunchError(f"{run}: no baseline from a run with launches that are not done: {measured.failures[0]}")
        if len(measured.launches) < MIN_LAUNCHES:
            raise LaunchError(
                f"{run}: {name} has {len(measured.launches)} finished launch: a baseline needs {MIN_LAUNCHES} or more"
                " (--rounds)"
            )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, baseline.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"{path}: cannot write it: {error.strerror}") from None
    return baseline


def load_baseline(path: Path, placement: str | None = None) -> Baseline:
    """Read a baseline file, or a run folder as one.

    Args:
        path: of the file or folder.
        placement: the only one to take; None takes all.

    Raises:
        BaselineError: there is none, or it cannot be read.
        UsageError: it has no such placement.
    """
    if path.is_dir():
        if not RunFolder(path).run_file.is_file():
            raise BaselineError(f"{path}: no baseline: there is no run.json in this folder")
        return measured_run(path, placement)
    baseline = _read_baseline(path)
    if placement is None:
        return baseline
    if placement not in baseline.placements:
        raise UsageError(f"{path} has no placement {placement!r}: it has {', '.join(baseline.placements)}")
    return baseline.only(placement)


def _read_baseline(path: Path) -> Baseline:
    try:
        refuse_pipe(path)
    except UsageError as error:
        raise BaselineError(str(error)) from None
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BaselineError(
            f"{path}: there is no baseline: save one with placebench baseline save RUN {path}"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise BaselineError(f"{path}: cannot read the baseline: {reason}") from None
    try:
        return Baseline.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise BaselineError(f"{path}: not a baseline that this placebench reads: {what}") from None
