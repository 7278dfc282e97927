"""A baseline: what the launches of a run measured, and all that must be equal to compare a later run with it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placebench.compare.measure.placements import RunSide, measure_run
from placebench.compare.metrics import STEP_TIME
from placebench.compare.read.run_reading import load_run
from placebench.compare.side import Side
from placebench.errors import BaselineError, LaunchError, UsageError
from placebench.record.folder import RunFolder, Status
from placebench.record.writing import utc_now, write_output
from placebench.spec.launchers import RAY
from placebench.spec.legible import shown
from placebench.spec.reading import refuse_pipe
from placebench.spec.text import plural
from placebench.version import __version__

# Fewer launches have no interval.
MIN_LAUNCHES = 2


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MeasuredPlacement(_Kept):
    """What one placement measured."""

    devices: tuple[str, ...] = Field(description="the model of every device")
    planned: int = Field(description="launches that the run was to have")
    launches: tuple[dict[str, float], ...] = Field(
        description="numbers of each launch, by key; empty for a launch that was set aside"
    )
    steps: tuple[tuple[tuple[int, float, float], ...], ...] = Field(
        (), description="measured steps of each launch: number, seconds, tokens; none in files of earlier versions"
    )
    first_steps: tuple[float | None, ...] = Field(
        (),
        description="when each launch had done its first step, seconds since 1970; none in files of earlier versions",
    )
    failures: tuple[str, ...] = Field((), description="why launches are not done")
    set_aside: tuple[str, ...] = Field((), exclude=True, description="damaged launches; of run folders alone")

    @property
    def finished(self) -> int:
        """How many launches have numbers."""
        return sum(map(bool, self.launches))

    def side(self, name: str) -> Side:
        """The placement as a side of a comparison, its launches numbered from 1 in the order of their rounds."""
        columns = ("step", STEP_TIME.key, "tokens")
        steps = [
            dict(zip(columns, step, strict=True)) | {"round": number}
            for number, steps in enumerate(self.steps, start=1)
            for step in steps
        ]
        return Side(
            name=name,
            launch_values=pd.DataFrame.from_dict(
                {number: launch for number, launch in enumerate(self.launches, start=1) if launch}, orient="index"
            ),
            steps=pd.DataFrame(steps) if len(self.steps) == len(self.launches) else pd.DataFrame(),
        )


class Baseline(_Kept):
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

    @property
    def set_aside(self) -> tuple[str, ...]:
        """Damaged launches that are in none of the numbers, one line each."""
        return tuple(f"set aside: {line}" for placement in self.placements.values() for line in placement.set_aside)

    def is_of_same_run(self, other: "Baseline") -> bool:
        """Whether both have a launch in common, of one placement of one run."""
        named = [(one.run, one.measured, one.host.get("hostname")) for one in (self, other)]
        shared = self.placements.keys() & other.placements.keys()
        return named[0] == named[1] and any(
            launch and launch in other.placements[name].launches
            for name in shared
            for launch in self.placements[name].launches
        )

    def only(self, placement: str) -> "Baseline":
        """This baseline with one placement, or none where it lacks it."""
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
    run = load_run(path)
    _refuse_unknown(placement, path, [one.name for one in run.placements])
    record = run.record
    return Baseline(
        placebench=__version__,
        run=run.name,
        measured=record.started or utc_now(),
        host=record.host,
        versions=record.versions,
        workload=record.work,
        launcher=record.launcher,
        placements={side.name: _measured(side) for side in measure_run(run, placement)},
    )


def _measured(side: RunSide) -> MeasuredPlacement:
    missing = [launch for launch in side.run.missing if launch.placement == side.name]
    failures = [
        f"{launch.label}: {launch.status}{f': {launch.error}' if launch.error else ''}"
        for launch in missing
        if launch.status is not Status.DAMAGED
    ]
    first_steps = {one.round: one.lines.steps[0].wall for one in side.launches if one.lines.steps}
    damaged = [one.round for one in missing if one.status is Status.DAMAGED]
    # Interleaved launches are paired by their places.
    values = side.launch_values.reindex(sorted({*side.launch_values.index, *damaged}))
    return MeasuredPlacement(
        devices=tuple(side.run.devices[device].name for device in side.placement.devices),
        planned=side.run.record.rounds,
        launches=tuple(
            {str(key): float(value) for key, value in row.items() if np.isfinite(value)} for _, row in values.iterrows()
        ),
        steps=tuple(_steps(side.steps_by_round.get(int(round_))) for round_ in values.index),
        first_steps=tuple(first_steps.get(int(round_)) for round_ in values.index),
        failures=tuple(failures),
        set_aside=tuple(f"{one.label}: {one.error}" for one in missing if one.status is Status.DAMAGED),
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
        if measured.finished < MIN_LAUNCHES:
            done = plural(measured.finished, "finished launch", "finished launches")
            raise LaunchError(f"{run}: {name} has {done}: a baseline needs {MIN_LAUNCHES} or more (--rounds)")
    write_named(path, baseline.model_dump_json(indent=1) + "\n")
    return baseline


def write_named(path: Path, text: str) -> None:
    """Write a file that the user has named, with the folders above it.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_output(path, text)
    except OSError as error:
        raise UsageError(f"{path}: cannot write it: {error.strerror}") from None


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
        if not (folder := RunFolder(path)).run_file.is_file():
            why = ": it was shared without its raw files" if folder.lacks_raw_files else " in this folder"
            raise BaselineError(f"{path}: no baseline: there is no run.json{why}")
        return measured_run(path, placement)
    baseline = _read_baseline(path)
    _refuse_unknown(placement, path, baseline.placements)
    return baseline if placement is None else baseline.only(placement)


def _refuse_unknown(placement: str | None, path: Path, names: Iterable[str]) -> None:
    if placement is not None and placement not in (known := list(names)):
        raise UsageError(f"{path} has no placement {shown(placement)}: it has {', '.join(known)}")


def _read_baseline(path: Path) -> Baseline:
    try:
        refuse_pipe(path)
    except UsageError as error:
        raise BaselineError(*error.args) from None
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
