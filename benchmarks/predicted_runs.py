"""Predict steps of one GPU before they are run, run them, and compare: how far `placebench predict` is to be trusted.

    python benchmarks/predicted_runs.py predict CALIBRATION... --into predictions.json     # commit it
    python benchmarks/predicted_runs.py run --into FOLDER --seconds 400
    python benchmarks/predicted_runs.py errors predictions.json FOLDER/runs.tar.gz --into errors.csv

`run` starts `placebench run` for one configuration after the other, on several GPUs beside each other, and keeps of
each run what its numbers follow from. What there is no time for is left out, from the end of the list.
"""

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import fmean
from typing import Any

import click

from placebench.host.devices import discover
from placebench.predict.phases import PhaseModel
from placebench.predict.step import PredictedStep, StepModel
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, read_calibration
from placebench.report.calibrations import load_calibration
from placebench.spec.config import parse_settings
from placebench.spec.devices import Device
from placebench.spec.nested import merge, nest
from placebench.spec.shapes import job_shapes
from placebench.spec.words import parse_placement
from placebench.spec.workload_reading import build_workload

Configuration = tuple[str, str, int, int, int, int]
# Model, algorithm, sequences, prompt and response tokens, tokens of a micro-batch; in the order in which they are run.
CONFIGURATIONS: tuple[Configuration, ...] = (
    ("qwen2.5-0.5b", "ppo", 64, 512, 512, 16_384),
    ("qwen2.5-1.5b", "grpo", 64, 512, 512, 8_192),
    ("qwen2.5-0.5b", "ppo", 256, 192, 64, 16_384),
    ("qwen2.5-1.5b", "ppo", 32, 512, 512, 4_096),
    ("qwen2.5-0.5b", "grpo", 128, 1_024, 1_024, 16_384),
    ("qwen2.5-1.5b", "grpo", 128, 128, 384, 8_192),
    ("qwen2.5-0.5b", "ppo", 16, 512, 1_536, 16_384),
    ("qwen2.5-1.5b", "grpo", 32, 3_072, 1_024, 8_192),
    ("qwen2.5-0.5b", "ppo", 8, 256, 256, 16_384),
    ("qwen2.5-1.5b", "ppo", 64, 768, 256, 4_096),
    ("qwen2.5-0.5b", "grpo", 256, 512, 512, 16_384),
    ("qwen2.5-0.5b", "ppo", 32, 2_048, 2_048, 16_384),
    ("qwen2.5-1.5b", "grpo", 16, 1_024, 3_072, 8_192),
    ("qwen2.5-1.5b", "grpo", 256, 256, 256, 8_192),
)
# For a host without GPUs, on which the figures mean nothing.
SMALL: tuple[Configuration, ...] = (("tiny", "ppo", 16, 16, 8, 16_384), ("tiny", "ppo", 8, 16, 8, 16_384))
KEPT = ("run.json", "launch.json", "status", "steps.jsonl", "spans.jsonl", "kernels.jsonl")
STEPS, WARMUP = 4, 2
# A configuration is begun while so much time is left.
ROOM_S = 45.0


_SMALL = click.option("--small", is_flag=True, help="The configurations of a host without GPUs.")
_SKIP = click.option("--skip", default=0, type=click.IntRange(0), help="Leave out so many from the start of the list.")


@click.group()
def main() -> None:
    """Predict, run and compare."""


@main.command()
@click.argument("calibrations", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--into", required=True, type=click.Path(path_type=Path))
@_SMALL
@_SKIP
def predict(calibrations: tuple[Path, ...], into: Path, small: bool, skip: int) -> None:
    """Write what each configuration is expected to take, by runs and calibration files."""
    configurations = (SMALL if small else CONFIGURATIONS)[skip:]
    into.parent.mkdir(parents=True, exist_ok=True)
    predict_all(tuple(map(load_calibration, calibrations)), configurations, into)


def predict_all(
    files: Sequence[CalibrationFile],
    configurations: Sequence[Configuration],
    into: Path,
    settings: Sequence[str] = (),
    core_loops: Mapping[str, float] | None = None,
) -> None:
    """Write what each configuration is expected to take, by these settings beside it, and print the file's hash.

    Args:
        files: what was measured.
        configurations: what to predict.
        into: the file to write.
        settings: of the workload.
        core_loops: how fast the cores are, as `core_loop_s` of a sample, by the configuration's name; None for as fast
            as those that were measured.
    """
    file = files[0]
    device = Device("0", file.kind, 0, "node", file.device, file.device_bytes, tuple(range(file.device_cores)))
    predictions = {}
    for configuration in configurations:
        workload = build_workload(merge(_content(configuration), parse_settings(settings)))
        shapes = job_shapes(workload)
        loop_s = (core_loops or {}).get(_name(configuration))
        model = StepModel(PhaseModel(workload, shapes, files, device, core_loop_s=loop_s), (device,))
        step = model.step(parse_placement(_word(configuration), [1], has_critic=workload.algorithm.has_critic))
        (memory,) = model.memory(step.placement).values()
        model_word = ":".join((*configuration[:2], str(configuration[-1])))
        what = {"model": model_word, "size": _size(configuration)}
        predictions[_name(configuration)] = what | _prediction(step, memory, file.device_bytes)
        held = f"{memory / 2**30:5.1f} GiB  host {step.host_bound_share:.0%}"
        print(f"{_name(configuration):40} {step.seconds:7.3f} s  {held}")
    content = {
        "device": file.device,
        "commit": commit(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "calibrations": [one.source for one in files],
        "settings": list(settings),
        "predictions": predictions,
    }
    text = json.dumps(content, indent=1) + "\n"
    into.write_text(text, encoding="utf-8")
    print(f"{into.name}: sha256 {hashlib.sha256(text.encode()).hexdigest()} at {content['written']}", flush=True)


@main.command()
@click.option("--into", required=True, type=click.Path(path_type=Path))
@click.option("--seconds", default=400.0, show_default=True)
@_SMALL
@_SKIP
@click.option("--launches", default=1, show_default=True, help="Of each configuration, all of them once before again.")
def run(into: Path, seconds: float, small: bool, skip: int, launches: int) -> None:
    """Run the configurations for so many seconds."""
    begin, devices = time.monotonic(), discover()
    lanes = [device.id for device in devices] if devices[0].kind == "gpu" else [""]
    waiting: SimpleQueue[tuple[int, Configuration]] = SimpleQueue()
    for launch in range(launches):
        for configuration in (SMALL if small else CONFIGURATIONS)[skip:]:
            waiting.put((launch, configuration))
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:

        def serve(lane: str) -> None:
            while seconds - (time.monotonic() - begin) > ROOM_S:
                try:
                    launch, configuration = waiting.get_nowait()
                except Empty:
                    return
                left = seconds - (time.monotonic() - begin)
                done = _run(configuration, launch, Path(folder), lane, left)
                print(f"{_name(configuration)}: {done} at {time.monotonic() - begin:.0f} s", flush=True)

        with ThreadPoolExecutor(len(lanes)) as pool:
            list(pool.map(serve, lanes))
        keep_runs(Path(folder), into)


def keep_runs(folder: Path, into: Path) -> None:
    """Keep of runs what their numbers follow from, as `runs.tar.gz`."""
    with tarfile.open(into / "runs.tar.gz", "w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.name in KEPT:
                archive.add(path, path.relative_to(folder))


@main.command()
@click.argument("predictions", type=click.Path(exists=True, path_type=Path))
@click.argument("measured", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--into", required=True, type=click.Path(path_type=Path))
def errors(predictions: Path, measured: tuple[Path, ...], into: Path) -> None:
    """Compare what was predicted with what was measured, all of it: archives of `run`, or calibration files."""
    files = [read_calibration(path) for path in measured if path.suffix == ".json"]
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        for archive in (path for path in measured if path.suffix != ".json"):
            with tarfile.open(archive) as stream:
                stream.extractall(folder, filter="data")
        files += map(load_calibration, sorted(path.parent for path in Path(folder).glob("*/run.json")))
    compare(predictions, cases_by_name(files), into)


def cases_by_name(files: Iterable[CalibrationFile]) -> dict[str, list[MeasuredCase]]:
    """What was measured, by the name of its configuration."""
    found: dict[str, list[MeasuredCase]] = {}
    for file in files:
        for case in file.cases:
            name = f"{case.workload['model']}-{case.workload['algorithm']['name']}-{size_of_case(case)}"
            found.setdefault(name, []).append(case)
    return found


def size_of_case(case: MeasuredCase) -> str:
    """A case's sequences, prompt and response tokens, as `calibrate_predictor.py` takes them."""
    batch = case.workload["batch"]
    return f"{batch['size']}x{batch['max_prompt_length']}+{batch['max_response_length']}"


def compare(predictions: Path, measured: Mapping[str, Sequence[MeasuredCase]], into: Path) -> None:
    """Write and print a row for every step and phase that was predicted, whether or not it was measured."""
    predicted: Mapping[str, Mapping[str, Any]] = json.loads(predictions.read_text(encoding="utf-8"))["predictions"]
    rows = list(_rows(predicted, measured))
    with into.open("w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        if row["launches"]:
            print("  ".join(f"{key} {value}" for key, value in row.items() if value != ""))
    steps = [abs(float(row["error_pct"])) for row in rows if row["phase"] == "step" and row["error_pct"] != ""]
    if steps:
        print(f"{len(steps)} configurations: mean {fmean(steps):.1f} %, largest {max(steps):.1f} %")


def _rows(
    predicted: Mapping[str, Mapping[str, Any]], measured: Mapping[str, Sequence[MeasuredCase]]
) -> Iterator[dict[str, Any]]:
    """A row for the step of each configuration, and for each of its phases."""
    for name, found in predicted.items():
        cases = [case for case in measured.get(name, ()) if case.step_s is not None]
        times = {"step": (found["step_s"], [case.step_s or 0.0 for case in cases])}
        for phase, one in found["phases"].items():
            seconds = [other.seconds for case in cases for other in case.phases if other.name == phase]
            times[phase] = (one["total_s"], seconds)
        for phase, (expected, seconds) in times.items():
            mean = fmean(seconds) if seconds else None
            yield {
                "configuration": name,
                "phase": phase,
                "predicted_s": round(expected, 4),
                "measured_s": "" if mean is None else round(mean, 4),
                "launches": len(seconds),
                "error_pct": "" if not mean else round(100 * (expected / mean - 1), 1),
                "host_bound_share": round(found["host_bound_share"], 3) if phase == "step" else "",
            }


def _prediction(step: PredictedStep, memory: int, have: int) -> dict[str, Any]:
    return {
        "step_s": step.seconds,
        "gaps_s": step.gaps,
        "host_bound_share": step.host_bound_share,
        "memory_bytes": memory,
        "fits": memory <= have,
        "phases": {
            name: {"total_s": one.total, "kernels_s": one.kernels, "host_s": one.host}
            for name, one in step.phases.items()
        },
    }


def _name(configuration: Configuration) -> str:
    return f"{configuration[0]}-{configuration[1]}-{_size(configuration)}"


def _size(configuration: Configuration) -> str:
    _, _, sequences, prompt, response, _ = configuration
    return f"{sequences}x{prompt}+{response}"


def _word(configuration: Configuration) -> str:
    return "standard" if configuration[1] == "ppo" else "ddp:1"


def _content(configuration: Configuration) -> dict[str, Any]:
    model, algorithm, sequences, prompt, response, budget = configuration
    batch: dict[str, Any] = {
        "size": sequences,
        "mini_batch_size": sequences // 2,
        "max_prompt_length": prompt,
        "max_response_length": response,
        "micro_batch_tokens": budget,
    }
    if algorithm == "grpo":
        batch["group_size"] = 4
    shared = {"model": model, "steps": STEPS, "warmup_steps": WARMUP, "trace_kernels": False, "batch": batch}
    return merge(shared, nest(["algorithm", "name"], algorithm))


def _run(configuration: Configuration, launch: int, out: Path, lane: str, seconds: float) -> str:
    """A run of one launch; returns how it ended."""
    content = _content(configuration)
    words = ["--model", content["model"], "--steps", str(STEPS), "--warmup-steps", str(WARMUP), "--rounds", "1"]
    keys = {f"batch.{key}": value for key, value in content["batch"].items()}
    keys |= {"algorithm.name": configuration[1], "trace_kernels": "false"}
    words += [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    name = f"{_name(configuration)}-{launch + 1}"
    words += ["--placements", _word(configuration), "--name", name, "--out", str(out)]
    words += ["--devices", "gpu:1" if lane else "cpu:1", "--time-limit", f"{seconds:.0f}"]
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": lane} if lane else {})}
    command = [sys.executable, "-m", "placebench", "run", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return "done" if not done.returncode else f"exit code {done.returncode}: {done.stderr.strip()[-300:]}"


def commit() -> str | None:
    """The commit of this checkout; None outside of one."""
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run([git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


if __name__ == "__main__":
    main()
