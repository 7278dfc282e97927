"""Calibrate on the GPU that is there, predict other sizes by it, then measure them: what a user can expect.

    python benchmarks/predicted_here.py calibrate qwen2.5-0.5b:ppo:16384 --into FOLDER --seconds 120
    python benchmarks/predicted_here.py measure FOLDER --into MEASURED --seconds 210

`calibrate` has launches go through a few sizes (see `calibrate_predictor.py`), the first of them with traced steps, and
writes what all other sizes are expected to take by them: `predictions.json`, and `predictions-one.json` by the first of
the calibrating sizes alone, in the first launch. Several models take turns, each in a folder of its own below `--into`,
so that slow minutes of the host fall on all of them. `measure` has launches go through the sizes that were predicted,
until the time is over, and compares: `errors.csv` and `errors-one.csv`. In a checkout it measures only what is
committed as it is, so that nobody can choose a prediction afterwards. Several folders, each of a model, take turns.
`errors-cores.csv` has the same predictions for cores as fast as they were while each size was measured.

    python benchmarks/predicted_here.py predict qwen2.5-0.5b:ppo:16384 --by CALIBRATION --into predictions.json

`predict` writes what the same sizes are expected to take by what was measured elsewhere.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import click
from predicted_runs import ROOM_S, Configuration, cases_by_name, compare, predict_all, size_of_case
from sizes_launch import size_of

from placebench.host.devices import discover
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, read_calibration
from placebench.record.folder import RunFolder, Trial
from placebench.record.writing import append_jsonl, read_jsonl
from placebench.report.calibrations import load_calibration

# They reach as far as what is predicted: small and large batches, short and long sequences. Those that are traced tell
# the kernels apart: of weights, of keys and values, of the sampler.
CALIBRATING = ("64x512+512", "8x256+512", "256x128+128", "16x1536+512")
TRACED = ("8x1024+32", "32x3072+32", "256x128+32")
PREDICTED = ("8x256+256", "256x192+64", "32x256+768", "64x1024+256", "128x256+256", "16x3072+1024")
# The first calibrating launch compiles and traces: it has so many times as long as each of the others.
FIRST_SHARE = 2.0
# For a host without GPUs, on which the figures mean nothing.
SMALL_CALIBRATING, SMALL_PREDICTED = ("8x16+8", "4x16+8"), ("16x16+8", "4x8+4")

_SECONDS = click.option("--seconds", default=240.0, show_default=True, help="For all of it.")
_POINTS = click.option(
    "--point", "points", multiple=True, metavar="NxP+R", help="Sizes to predict in place of the usual ones; repeatable."
)
_STEPS = click.option(
    "--steps",
    default=100,
    show_default=True,
    type=click.IntRange(2),
    help="Of a size in a launch, while there is time.",
)
_SETTINGS = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")


@dataclass(frozen=True)
class _Asked:
    """What a file of predictions asks to be measured."""

    path: Path
    model: str
    """As MODEL:ALGORITHM:TOKENS."""
    points: tuple[str, ...]
    settings: tuple[str, ...]


@click.group()
def main() -> None:
    """Calibrate, predict and measure, on the first device that is there."""


@main.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL:ALGORITHM:TOKENS...")
@click.option("--into", required=True, type=click.Path(path_type=Path), help="Folder for calibration and predictions.")
@_SECONDS
@_STEPS
@_POINTS
@_SETTINGS
@click.option(
    "--launches",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Of each model. One can be slower than another as a whole: several even that out.",
)
def calibrate(
    models: tuple[str, ...],
    into: Path,
    seconds: float,
    steps: int,
    points: tuple[str, ...],
    settings: tuple[str, ...],
    launches: int,
) -> None:
    """Measure a few sizes and predict others."""
    begin, is_gpu = time.monotonic(), discover()[0].kind == "gpu"
    calibrating, predicted = (CALIBRATING, PREDICTED) if is_gpu else (SMALL_CALIBRATING, SMALL_PREDICTED)
    traced = TRACED if is_gpu else ()
    folders = {model: into if len(models) == 1 else into / model.replace(":", "-") for model in models}
    for folder in folders.values():
        if old := next(folder.glob("calibration-*.json"), None):
            raise click.ClickException(f"--into {into}: {old.name} is there from another time: name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
    asked = len(calibrating) + len(traced)
    waiting = [
        (number, model, FIRST_SHARE if number == 1 else 1.0) for number in range(1, launches + 1) for model in models
    ]
    files: dict[str, list[CalibrationFile]] = {model: [] for model in models}
    for done, (number, model, share) in enumerate(waiting):
        file = folders[model] / f"calibration-{model.replace(':', '-')}{f'-{number}' if number > 1 else ''}.json"
        left = (seconds - (time.monotonic() - begin)) * share / sum(other for *_, other in waiting[done:])
        words = [*_words("--trace" if number == 1 else "--point", traced), *_words("--set", settings)]
        if _launch(model, file, calibrating, words, steps, left):
            files[model].append(read_calibration(file))
            if (had := len(files[model][-1].cases)) < asked:
                print(f"{file.name}: only {had} of {asked} sizes had time: give it more --seconds", flush=True)
    if nothing := [model for model, found in files.items() if not found]:
        raise click.ClickException(f"nothing was measured to predict {' and '.join(nothing)} by; see above")
    for model, found in files.items():
        configurations = [_configuration(model, point) for point in points or predicted]
        predict_all(found, configurations, folders[model] / "predictions.json", settings)
        first = found[0].model_copy(update={"cases": found[0].cases[:1]})
        predict_all([first], configurations, folders[model] / "predictions-one.json", settings)
    print(f"{into.name}: calibrated in {time.monotonic() - begin:.0f} s", flush=True)


@main.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL:ALGORITHM:TOKENS...")
@click.option(
    "--by", multiple=True, required=True, type=click.Path(exists=True, path_type=Path), help="A run or calibration."
)
@click.option("--into", required=True, type=click.Path(path_type=Path), help="The file to write.")
@_POINTS
@_SETTINGS
def predict(
    models: tuple[str, ...], by: tuple[Path, ...], into: Path, points: tuple[str, ...], settings: tuple[str, ...]
) -> None:
    """Predict the same sizes by other measurements, and run nothing."""
    wanted = [_configuration(model, point) for model in models for point in points or PREDICTED]
    predict_all(list(map(load_calibration, by)), wanted, into, settings)


@main.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--into", required=True, type=click.Path(path_type=Path), help="Folder for the results.")
@_SECONDS
@_STEPS
@click.option("--launches", default=2, show_default=True, type=click.IntRange(1), help="Of each folder's sizes.")
def measure(folders: tuple[Path, ...], into: Path, seconds: float, steps: int, launches: int) -> None:
    """Run what was predicted in the folders and compare."""
    begin = time.monotonic()
    asked = [_read(folder.resolve() / "predictions.json") for folder in folders]
    waiting = [(number, one) for number in range(1, launches + 1) for one in asked]
    for done, (number, one) in enumerate(waiting):
        left = seconds - (time.monotonic() - begin)
        if left < ROOM_S:
            print(f"no time for {len(waiting) - done} of {len(waiting)} launches", flush=True)
            break
        file = into / one.path.parent.name / f"launch-{number}.json"
        _launch(one.model, file, one.points, _words("--set", one.settings), steps, left / (len(waiting) - done))
        print(f"{file.relative_to(into)} at {time.monotonic() - begin:.0f} s", flush=True)
    for one in asked:
        results = into / one.path.parent.name
        found = cases_by_name(map(read_calibration, sorted(results.glob("launch-*.json"))))
        results.mkdir(parents=True, exist_ok=True)
        compare(one.path, found, results / "errors.csv")
        if (alone := one.path.with_name("predictions-one.json")).exists():
            compare(alone, found, results / "errors-one.csv")
        _compare_by_cores(one, found, results)


def _compare_by_cores(asked: _Asked, measured: Mapping[str, Sequence[MeasuredCase]], results: Path) -> None:
    """Predict anew, for cores as fast as they were when each size was measured, and compare."""
    files = [read_calibration(one) for one in sorted(asked.path.parent.glob("calibration-*.json"))]
    known = {name: [case.core_loop_s for case in cases if case.core_loop_s] for name, cases in measured.items()}
    loops = {name: fmean(found) for name, found in known.items() if found}
    if loops and any(case.core_loop_s for file in files for case in file.cases):
        print("with the cores as fast as they were:", flush=True)
        configurations = [_configuration(asked.model, point) for point in asked.points]
        predict_all(files, configurations, results / "predictions-cores.json", asked.settings, loops)
        compare(results / "predictions-cores.json", measured, results / "errors-cores.csv")


def _read(path: Path) -> _Asked:
    """What is to be measured of a file of predictions, once it can no longer be changed unseen."""
    if not path.exists():
        raise click.ClickException(f"{path} is missing: make it by `predicted_here.py calibrate`")
    if git := shutil.which("git"):
        words = [git, "-C", str(path.parent), "status", "--porcelain", "--ignored", "--", path.name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if not done.returncode and done.stdout:
            raise click.ClickException(
                f"{path} is not committed as it is: commit it before it is measured, or have it outside the checkout"
            )
    text = path.read_bytes()
    print(f"{path}: sha256 {hashlib.sha256(text).hexdigest()}", flush=True)
    content = json.loads(text)
    predictions = content["predictions"].values()
    models = {one["model"] for one in predictions}
    if len(models) != 1:
        raise click.ClickException(
            f"{path} has predictions of {len(models)} models: one launch goes through one's sizes"
        )
    return _Asked(path, models.pop(), tuple(one["size"] for one in predictions), tuple(content["settings"]))


def _launch(model: str, into: Path, points: Sequence[str], words: Sequence[str], steps: int, seconds: float) -> bool:
    """A launch that goes through sizes; what it has measured when it ends counts, however it ends.

    Leaves the calibration file, and beside it the log of steps, the kernels of those that were traced, and how fast the
    job's cores were meanwhile. Says whether there is a calibration.
    """
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        command = [sys.executable, str(Path(__file__).with_name("calibrate_predictor.py")), "--model", model]
        command += [*_words("--point", points), "--repeats", str(steps), *words]
        done = subprocess.run([*command, "--into", folder, "--seconds", f"{seconds:.0f}"], check=False)
        print(f"{into.stem}: exit code {done.returncode}", flush=True)
        for found in Path(folder).glob("calibration-*.json"):
            shutil.copyfile(found, into)
        for run in Path(folder, "runs").glob("*/run.json"):
            for trial in RunFolder(run.parent).trials():
                # A launch that the time was too short for has none.
                for kept in (trial.steps, trial.kernels):
                    if kept.exists():
                        shutil.copyfile(kept, into.with_name(f"{into.stem}-{kept.name}"))
                if into.exists() and trial.steps.exists() and trial.device_samples.exists():
                    _note_cores(trial, into)
    return into.exists()


def _note_cores(trial: Trial, into: Path) -> None:
    """Note how fast the job's cores were: in a file beside the calibration, and in the calibration for each size."""
    samples = [line for line in read_jsonl(trial.device_samples) if line.get("core_loop_s") is not None]
    with into.with_name(f"{into.stem}-cores.jsonl").open("w", encoding="utf-8") as stream:
        for line in samples:
            append_jsonl(stream, {key: line[key] for key in ("mono", "core_loop_s")})
    loops: dict[str, list[float]] = {}
    for size, begin, end in _timed_steps(trial):
        loops.setdefault(size, []).extend(line["core_loop_s"] for line in samples if begin <= line["mono"] <= end)
    file = read_calibration(into)
    cases = [
        case.model_copy(update={"core_loop_s": fmean(found) if (found := loops.get(size_of_case(case))) else None})
        for case in file.cases
    ]
    file.model_copy(update={"cases": tuple(cases)}).write(into)


def _timed_steps(trial: Trial) -> Iterator[tuple[str, float, float]]:
    """Size, begin and end of each step that was timed: neither the first of all, nor a size's first, nor traced."""
    traced = {row["step"] for row in read_jsonl(trial.kernels)} if trial.kernels.exists() else set()
    seen = set()
    for row in list(read_jsonl(trial.steps))[1:]:
        if row["size"] in seen and row["step"] not in traced:
            yield row["size"], row["mono"] - row["metrics"]["timing_s/step"], row["mono"]
        seen.add(row["size"])


def _words(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _configuration(word: str, point: str) -> Configuration:
    model, algorithm, budget = word.split(":")
    return model, algorithm, *size_of(point), int(budget)


if __name__ == "__main__":
    main()
