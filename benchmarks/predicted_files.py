"""What was predicted before it was run, as `predicted_runs.py` and `predicted_here.py` keep it in files."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from predicted_runs import size_of_case
from prediction_cases import Result, model_of

from placebench.predict.interval import HeldOut, PredictionClass
from placebench.predict.step import HOST_BOUND
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


def sizes_again(path: Path) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Of each size that was measured on the host of its calibration: seconds by today's predictor, and by launch."""
    for folder in own_host_folders(path):
        by = [read_calibration(one) for one in sorted(folder.glob("calibration-*.json"))]
        launches = [read_calibration(one) for one in sorted(folder.glob("launch-*.json"))]
        alike: dict[str, list[MeasuredCase]] = {}
        for one in (case for file in launches for case in file.cases):
            alike.setdefault(size_of_case(one), []).append(one)
        for cases in alike.values():
            model, placement = model_of(by, launches[0], cases[0])
            yield model.step(placement).seconds, tuple(one.step_s for one in cases if one.step_s)


def _of_file(errors: Path, predictions: Path, measured_at: str) -> Iterator[Result]:
    is_here = errors.parent.parent.name in OWN_HOST
    kind = PredictionClass.OTHER_SIZE if is_here else PredictionClass.OTHER_HOST
    group = f"calibration/{errors.parent.name if is_here else errors.stem}, predicted beforehand"
    device = json.loads(predictions.read_text(encoding="utf-8"))["device"]
    for row in csv.DictReader(errors.read_text(encoding="utf-8").splitlines()):
        if row["phase"] == "step" and row["measured_s"]:
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
