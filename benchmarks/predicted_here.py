"""Calibrate on the GPU that is there, predict other sizes by it, then measure them: what a user can expect.

    python benchmarks/predicted_here.py qwen2.5-0.5b:ppo:16384 --into FOLDER --seconds 480

A launch that goes through a few sizes calibrates (see `calibrate_predictor.py`), traced steps included. By it all other
sizes are predicted: `predictions.json` is there, and its hash is printed, before one of them has begun; beside it
`predictions-one.json`, by the first of the calibrating sizes alone. Then launches go through the predicted sizes until
the time is over, and `errors.csv` and `errors-one.csv` compare. `--also` predicts other configurations, too, which are
not run here.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from predicted_runs import ROOM_S, Configuration, cases_by_name, compare, keep_runs, predict_all
from sizes_launch import size_of

from placebench.host.devices import discover
from placebench.record.calibration_file import read_calibration
from placebench.report.calibrations import load_calibration

CALIBRATING = ("64x512+512", "8x512+512", "128x256+128", "16x1024+1024")
TRACED = ("64x512+32", "8x1024+32")
# Of the largest batches and lengths that are asked for, the quick ones first.
PREDICTED = (
    "8x256+256", "256x192+64", "128x128+384", "16x512+1536", "64x1024+256", "32x3072+1024", "256x256+256",
)  # fmt: skip
# For a host without GPUs, on which the figures mean nothing.
SMALL_CALIBRATING, SMALL_PREDICTED = ("8x16+8", "4x16+8"), ("16x16+8", "4x8+4")
# Of the time, for calibrating.
SHARE = 0.5


@click.command()
@click.argument("model", metavar="MODEL:ALGORITHM:TOKENS")
@click.option("--into", required=True, type=click.Path(path_type=Path), help="Folder; with --by the file.")
@click.option("--seconds", default=480.0, show_default=True)
@click.option("--point", "points", multiple=True, metavar="NxP+R", help="Sizes to predict in place of the usual ones.")
@click.option("--also", multiple=True, metavar="MODEL:ALGORITHM:TOKENS", help="Whose sizes are predicted, too.")
@click.option(
    "--by",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Predict by this run or calibration file instead, and run nothing; repeatable.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload that is run.")
def main(
    model: str,
    into: Path,
    seconds: float,
    points: tuple[str, ...],
    also: tuple[str, ...],
    by: tuple[Path, ...],
    settings: tuple[str, ...],
) -> None:
    """Calibrate, predict and measure, on the first device that is there."""
    if by:
        wanted = [_configuration(word, point) for word in (model, *also) for point in points or PREDICTED]
        predict_all(list(map(load_calibration, by)), wanted, into)
        return
    begin, is_gpu = time.monotonic(), discover()[0].kind == "gpu"
    calibrating, predicted = (CALIBRATING, points or PREDICTED) if is_gpu else (SMALL_CALIBRATING, SMALL_PREDICTED)
    into.mkdir(parents=True, exist_ok=True)

    def left() -> float:
        return seconds - (time.monotonic() - begin)

    common = [word for setting in settings for word in ("--set", setting)]
    traced = [word for point in TRACED for word in ("--trace", point)] if is_gpu else []
    file = None
    while file is None and left() > ROOM_S:
        _launch(model, into / "calibration", calibrating, [*common, *traced, "--seconds", f"{SHARE * left():.0f}"])
        file = next(map(read_calibration, (into / "calibration").glob("calibration-*.json")), None)
        print(f"calibration at {seconds - left():.0f} s", flush=True)
    if file is None:
        raise click.ClickException("nothing was measured to predict by; see above")
    configurations = [_configuration(word, point) for word in (model, *also) for point in predicted]
    predict_all([file], configurations, into / "predictions.json")
    predict_all([file.model_copy(update={"cases": file.cases[:1]})], configurations, into / "predictions-one.json")
    launches = 0
    while left() > ROOM_S:
        launches += 1
        timing = [*common, "--repeats", "2", "--seconds", f"{left():.0f}"]
        _launch(model, into / f"launch-{launches}", predicted, timing)
        print(f"launch {launches} at {seconds - left():.0f} s", flush=True)
    measured = cases_by_name(read_calibration(path) for path in sorted(into.glob("launch-*/calibration-*.json")))
    compare(into / "predictions.json", measured, into / "errors.csv")
    compare(into / "predictions-one.json", measured, into / "errors-one.csv")


def _launch(model: str, into: Path, points: Sequence[str], words: Sequence[str]) -> None:
    """A launch that goes through sizes; what it has measured when it ends counts, however it ends."""
    command = [sys.executable, str(Path(__file__).with_name("calibrate_predictor.py")), "--model", model]
    command += [word for point in points for word in ("--point", point)]
    done = subprocess.run([*command, "--into", str(into), *words], check=False)
    print(f"{into.name}: exit code {done.returncode}", flush=True)
    if (runs := into / "runs").exists():
        keep_runs(runs, into)
        shutil.rmtree(runs)


def _configuration(word: str, point: str) -> Configuration:
    model, algorithm, budget = word.split(":")
    return model, algorithm, *size_of(point), int(budget)


if __name__ == "__main__":
    main()
