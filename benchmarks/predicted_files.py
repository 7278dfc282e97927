"""What was predicted before it was run, as `predicted_runs.py` and `predicted_here.py` keep it in files."""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from predicted_runs import size_of_case
from prediction_cases import Result, model_of

from placebench.predict.interval import HeldOut, PredictionClass
from placebench.predict.phases import PhaseModel
from placebench.predict.step import HOST_BOUND, StepModel
from placebench.record.calibration_file import MeasuredCase, read_calibration

# Folders of a calibration's folder, whose predictions were tested on the host that had calibrated them.
OWN_HOST = ("here", "committed")
# Where the configurations of each file of errors were measured, below the file's folder.
MEASURED_AT = {
    "errors.csv": "",
    "errors-2.csv": "here",
    "errors-3.csv": "here",
    "errors-4.csv": "committed/h200-qwen2.5-1.5b-grpo-8192",
}


def predicted_before(path: Path) -> Iterator[Result]:
    """Steps that were predicted before they were run, as `predicted_runs.py` and `predicted_here.py` wrote them.

    Those of `errors*.csv` ran on another host than what they were predicted from; those of the folders under `here` and
    `committed` on the host on which launches through a few other sizes had calibrated the predictor.
    """
    for errors in sorted(path.glob("errors*.csv")):
        measured_at = "/".join(filter(None, (path.name, MEASURED_AT[errors.name])))
        predictions = path / f"{errors.stem.replace('errors', 'predictions')}.json"
        yield from _of_file(errors, predictions, measured_at)
    for folder in own_host_folders(path):
        name = f"{path.name}/{folder.parent.name}/{folder.name}"
        yield from _of_file(folder / "errors.csv", folder / "predictions.json", name)


def own_host_folders(path: Path) -> list[Path]:
    """Those that `predicted_here.py` wrote: a calibration, what it predicted, and launches on the same host."""
    return [errors.parent for where in OWN_HOST for errors in sorted(path.glob(f"{where}/*/errors.csv"))]


@dataclass(frozen=True)
class MeasuredSize:
    """A size that was measured on the host of its calibration, in one launch or more."""

    model: str
    predicted_s: float
    """By today's predictor, for cores as fast as those that were measured."""
    launches: tuple[tuple[float, float | None], ...]
    """Seconds of the step in each, and those that today's predictor has for cores as fast as they were in it."""


def sizes_again(path: Path) -> Iterator[MeasuredSize]:
    """The sizes that were measured on the host of their calibration, by today's predictor."""
    for folder in own_host_folders(path):
        by = [read_calibration(one) for one in sorted(folder.glob("calibration-*.json"))]
        launches = [read_calibration(one) for one in sorted(folder.glob("launch-*.json"))]
        alike: dict[str, list[MeasuredCase]] = {}
        for one in (case for file in launches for case in file.cases):
            alike.setdefault(size_of_case(one), []).append(one)
        for cases in alike.values():
            model, placement = model_of(by, launches[0], cases[0])
            seconds = [
                (one.step_s, _on_cores(model, one.core_loop_s).step(placement).seconds if one.core_loop_s else None)
                for one in cases
                if one.step_s
            ]
            yield MeasuredSize(cases[0].workload["model"], model.step(placement).seconds, tuple(seconds))


def _on_cores(model: StepModel, core_loop_s: float) -> StepModel:
    one = model.phases
    phases = PhaseModel(one.workload, one.shapes, one.calibrations, one.device, one.per_node, core_loop_s)
    return StepModel(phases, model.devices)


@dataclass(frozen=True)
class CommittedSizes:
    """Sizes of one GPU that were predicted by a calibration of its host, and committed before any of them was run."""

    host: str
    errors: tuple[tuple[float, float], ...]
    """Of each step: predicted / measured − 1, and the share of generation in which it was expected to wait for the
    host.
    """
    on_cores: tuple[tuple[float, float], ...]
    """The same by the same files, for cores as fast as they were; empty where nothing sampled that."""


def committed_sizes(path: Path) -> Iterator[CommittedSizes]:
    """By the host, which folders of several models have in common."""
    by_host: dict[str, list[Path]] = {}
    for folder in (errors.parent for errors in sorted(path.glob("committed/*/errors.csv"))):
        by_host.setdefault(folder.name.split("-qwen")[0], []).append(folder)
    for host, folders in sorted(by_host.items()):
        yield CommittedSizes(
            host,
            tuple(one for folder in folders for one in _step_errors(folder / "errors.csv")),
            tuple(one for folder in folders for one in _step_errors(folder / "errors-cores.csv")),
        )


def _step_errors(path: Path) -> Iterator[tuple[float, float]]:
    for row in _step_rows(path) if path.exists() else ():
        yield float(row["predicted_s"]) / float(row["measured_s"]) - 1, float(row["host_bound_share"])


def _step_rows(path: Path) -> list[dict[str, str]]:
    """The rows of whole steps that were measured."""
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["phase"] == "step" and row["measured_s"]]


def _of_file(errors: Path, predictions: Path, measured_at: str) -> Iterator[Result]:
    is_here = errors.parent.parent.name in OWN_HOST
    kind = PredictionClass.OTHER_SIZE if is_here else PredictionClass.OTHER_HOST
    group = f"calibration/{errors.parent.name if is_here else errors.stem}, predicted beforehand"
    device = json.loads(predictions.read_text(encoding="utf-8"))["device"]
    for row in _step_rows(errors):
        name = row["configuration"]
        kept = HeldOut(
            kind,
            group,
            name,
            name.split("-ppo-")[0].split("-grpo-")[0],
            device,
            float(row["host_bound_share"]) > HOST_BOUND,
            float(row["predicted_s"]),
            float(row["measured_s"]),
            int(row["launches"]),
            measured_at,
        )
        yield Result(kept, measured_at, 0.0, 1, {})
