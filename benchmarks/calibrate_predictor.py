"""Measure on one GPU what `placebench predict` is calibrated by: steps of several sizes in one launch, in minutes.

    python benchmarks/calibrate_predictor.py --model qwen2.5-0.5b --model qwen2.5-1.5b:grpo:8192 --into FOLDER

A launch of `placebench run`, with its sampler, its Ray and its worker, which goes through the sizes again and again
instead of the steps of one: models and engine are built and compiled but once. Short ones are traced once all have been
timed, because a process stays slower once it was traced. What is there when the time is over counts. Writes
`calibration-MODEL.json` for each model, which `predict --from` takes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import sizes_launch
from sizes_launch import Sizes, batch_of, size_of

from placebench.errors import PlacebenchError
from placebench.host.devices import discover
from placebench.plan.plan import make_plan
from placebench.plan.request import RunRequest
from placebench.run.display import open_display
from placebench.run.runner import MeasuredSoFar, execute
from placebench.spec.config import parse_settings
from placebench.spec.devices import parse_devices
from placebench.spec.nested import merge

# Sequences, prompt and response tokens of a step, most telling first. One GPU trains 1.5 billion parameters by PPO only
# with few tokens at a time, so that GRPO, on one replica, stands for both.
TIMED = (
    "64x512+512", "8x512+512", "256x256+256", "16x2048+2048", "64x3584+256", "128x128+128", "32x1024+1024",
    "256x512+512", "4x256+256",
)  # fmt: skip
TRACED = ("64x512+32", "8x512+32", "256x256+32", "32x3584+32", "128x128+32")
# For the report of the last step and the end of all processes.
_END_S = 10.0
# For a size that is traced: its step, and reading what ran in it.
_TRACE_S = 8.0


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    metavar="MODEL[:ALGORITHM[:TOKENS]]",
    help="Tokens: of a micro-batch.",
)
@click.option("--into", required=True, type=click.Path(path_type=Path), help="Folder for the results.")
@click.option("--seconds", default=280.0, show_default=True, help="For all models of a device together.")
@click.option("--devices", default=None, metavar="SPEC", help="As of placebench run.  [default: all GPUs, else CPU]")
@click.option("--point", "points", multiple=True, metavar="NxP+R", help="Sizes in place of the usual ones; repeatable.")
@click.option("--trace", "traced", multiple=True, metavar="NxP+R", help="Likewise of those that are traced.")
@click.option(
    "--repeats",
    default=3,
    show_default=True,
    type=click.IntRange(2),
    help="Steps of a size at most, with one to warm up.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
@click.option("--on", default=None, type=int, hidden=True)
def main(
    models: tuple[str, ...],
    into: Path,
    seconds: float,
    devices: str | None,
    points: tuple[str, ...],
    traced: tuple[str, ...],
    repeats: int,
    settings: tuple[str, ...],
    on: int | None,
) -> None:
    """Time and trace steps of every size."""
    found = discover(parse_devices(devices) if devices else None)
    into.mkdir(parents=True, exist_ok=True)
    if on is not None:
        try:
            measure(models[0], found[0].kind, into, seconds, points, traced, repeats, settings)
        except PlacebenchError as error:
            raise click.ClickException(f"--model {models[0]}: {error}") from None
        return
    lanes = [models[lane :: len(found)] for lane in range(min(len(found), len(models)))]

    def run(lane: int) -> int:
        begin, failed = time.monotonic(), 0
        for done, model in enumerate(lanes[lane]):
            left = (seconds - (time.monotonic() - begin)) / (len(lanes[lane]) - done)
            words = ["--model", model, "--into", str(into), "--seconds", f"{left:.0f}", "--on", str(lane)]
            words += ["--repeats", str(repeats), *(("--devices", devices) if devices else ())]
            words += [word for point in points for word in ("--point", point)]
            words += [word for point in traced for word in ("--trace", point)]
            words += [word for setting in settings for word in ("--set", setting)]
            alone = {"CUDA_VISIBLE_DEVICES": found[lane].id} if found[lane].kind == "gpu" else {}
            done_by = subprocess.run([sys.executable, __file__, *words], env=os.environ | alone, check=False)
            failed += done_by.returncode != 0
        return failed

    with ThreadPoolExecutor(len(lanes)) as pool:
        if any(pool.map(run, range(len(lanes)))):
            raise click.ClickException("a model was not measured to its end; see above")


def measure(
    word: str,
    kind: str,
    into: Path,
    seconds: float,
    points: Sequence[str],
    traced: Sequence[str],
    repeats: int,
    settings: Sequence[str],
) -> None:
    """All sizes of a model on one device, in one launch."""
    until = time.monotonic() + seconds
    model, algorithm, budget = (word.split(":") + ["ppo", ""][word.count(":") :])[:3]
    timed = tuple(points) or TIMED
    traces = tuple(traced) or (() if points else TRACED)
    sizes = [size_of(point) for point in (*timed, *traces)]
    # The engine has room for the longest sequences, and for the most of them.
    batch = batch_of(algorithm, *(max(size[at] for size in sizes) for at in range(3)))
    if budget:
        batch["micro_batch_tokens"] = int(budget)
    content = {"model": model, "algorithm": {"name": algorithm}, "batch": batch, "steps": 3, "warmup_steps": 2}
    request = RunRequest(
        placements="standard" if algorithm == "ppo" else "ddp:1",
        workload=merge(content, parse_settings(settings)),
        devices=f"{kind}:1",
        rounds=1,
        name=f"sizes-{word.replace(':', '-')}",
        out=into / "runs",
        time_limit_s=seconds,
    )
    asked = Sizes(
        into=str(into / f"calibration-{word.replace(':', '-')}.json"),
        source=f"benchmarks/calibrate_predictor.py --model {word}",
        timed=timed,
        traced=traces if kind == "gpu" else (),
        until=until - _END_S,
        trace_s=min(0.3 * seconds, _TRACE_S * len(traces)) if kind == "gpu" else 0.0,
        repeats=repeats,
    )
    job = (sys.executable, sizes_launch.__file__, json.dumps(vars(asked)))
    execute(make_plan(request), sys.argv, open_display(), MeasuredSoFar(lambda *_: 0.0), job).raise_unless_done()


if __name__ == "__main__":
    main()
