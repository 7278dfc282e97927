"""Measure on one GPU what `placebench predict` is calibrated by: whole steps of several sizes, in minutes.

    python benchmarks/calibrate_predictor.py --model qwen2.5-0.5b --model qwen2.5-1.5b:grpo --into FOLDER

The job's own worker and controller run in one process, without Ray, so that models and engine are built but once for
all sizes; a model's steps have a process and, where there are several GPUs, a GPU of their own. First come steps that
are timed, then shorter ones that are timed and then traced, because a process stays slower once it was traced. What is
there when the time is over counts. Writes `calibration-MODEL.json` for each model, which `predict --from` takes.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

import click

from placebench.host.devices import discover
from placebench.host.machine import cpu_model, usable_cores
from placebench.ppo.controller import Controller, StepRecord
from placebench.ppo.generation import Generation
from placebench.ppo.worker import Worker
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, MeasuredPhase, StepCounts
from placebench.run.manifest import package_versions
from placebench.spec.config import merge, parse_settings
from placebench.spec.devices import Device, device_to_dict, parse_devices
from placebench.spec.phases import PHASE
from placebench.spec.placement import Placement, Role
from placebench.spec.shapes import job_shapes
from placebench.spec.words import parse_placement
from placebench.spec.workload import Workload, placed_workload
from placebench.spec.workload_reading import build_workload
from placebench.tasks.data import open_prompts
from placebench.tasks.tokenizer import load_tokenizer

# Sequences, prompt and response tokens of a step, most telling first. One GPU trains 1.5 billion parameters by PPO only
# with few tokens at a time, so that GRPO, on one replica, stands for both.
TIMED = (
    "64x512+512", "8x512+512", "256x256+256", "16x2048+2048", "64x3584+256", "128x128+128", "32x1024+1024",
    "256x512+512", "4x256+256",
)  # fmt: skip
TRACED = ("64x512+32", "8x512+32", "256x256+32", "32x3584+32", "128x128+32")
LONGEST = 2048, 2048
# Steps of a size; the first two sizes come once more before all, for what they compile.
REPEATS = 3
LONG_STEP_S = 4.0


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
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
@click.option("--on", default=None, type=int, hidden=True)
def main(
    models: tuple[str, ...],
    into: Path,
    seconds: float,
    devices: str | None,
    points: tuple[str, ...],
    settings: tuple[str, ...],
    on: int | None,
) -> None:
    """Time and trace steps of every size."""
    found = discover(parse_devices(devices) if devices else None)
    into.mkdir(parents=True, exist_ok=True)
    if on is not None:
        measure(models[0], found[on], into, seconds, points, settings)
        return
    lanes = [models[lane :: len(found)] for lane in range(min(len(found), len(models)))]

    def run(lane: int) -> int:
        begin, failed = time.monotonic(), 0
        for done, model in enumerate(lanes[lane]):
            left = (seconds - (time.monotonic() - begin)) / (len(lanes[lane]) - done)
            words = ["--model", model, "--into", str(into), "--seconds", f"{left:.0f}", "--on", str(lane)]
            words += ["--devices", devices] if devices else []
            words += [word for point in points for word in ("--point", point)]
            words += [word for setting in settings for word in ("--set", setting)]
            failed += subprocess.run([sys.executable, __file__, *words], check=False).returncode != 0
        return failed

    with ThreadPoolExecutor(len(lanes)) as pool:
        if any(pool.map(run, range(len(lanes)))):
            raise click.ClickException("a model was not measured to its end; see above")


def measure(
    word: str, device: Device, into: Path, seconds: float, points: Sequence[str], settings: Sequence[str]
) -> None:
    """All steps of a model on a device; what is measured is written after each."""
    begin = time.monotonic()
    model, algorithm, budget = (word.split(":") + ["ppo", ""][word.count(":") :])[:3]
    given: dict[str, Any] = merge({"model": model, "algorithm": {"name": algorithm}}, parse_settings(settings))
    if budget:
        given = merge(given, {"batch": {"micro_batch_tokens": int(budget)}})
    is_gpu = device.kind == "gpu"
    timed, traced = (points, points[:1]) if points else (TIMED, TRACED)
    most = max(int(point.split("x")[0]) for point in (*timed, *traced))
    prompt, response = LONGEST if not points else map(max, zip(*(_lengths(one) for one in points), strict=True))
    base = _workload(given, most, prompt, response)
    worker = _start(base, device)
    print(f"{word}: started in {time.monotonic() - begin:.0f} s", flush=True)
    path = into / f"calibration-{word.replace(':', '-')}.json"
    step, cases, kernels = 0, dict[str, list[StepRecord]](), dict[str, list[StepRecord]]()
    workloads: dict[str, Workload] = {}

    def run(point: str, records: list[StepRecord] | None = None) -> StepRecord:
        nonlocal step
        step += 1
        workloads[point] = _workload(given, int(point.split("x")[0]), *_lengths(point))
        record = _run_step(workloads[point], worker, step, hands_over=is_gpu and base.rollout.backend == "vllm")
        (cases.setdefault(point, []) if records is None else records).append(record)
        took = record.metrics["timing_s/step"]
        print(f"{word} {point}: {took:.3f} s after {time.monotonic() - begin:.0f} s", flush=True)
        return record

    def save() -> None:
        if any(cases.values()):
            _calibration(word, device, workloads, cases, kernels).write(path)

    trace_s = 0.3 * seconds if is_gpu else 0.0
    for point in timed[:2]:
        run(point)
        cases.pop(point)
    for point in timed:
        for _ in range(REPEATS):
            if time.monotonic() - begin > seconds - trace_s:
                break
            if run(point).metrics["timing_s/step"] > LONG_STEP_S and len(cases[point]) > 1:
                break
        save()
    for point in traced if is_gpu else ():
        for _ in range(2 if point not in cases else 0):
            if time.monotonic() - begin < seconds - trace_s / 2:
                run(point)
    save()
    worker.trace_kernels()
    for point in traced if is_gpu else ():
        if time.monotonic() - begin < seconds and cases.get(point):
            run(point, kernels.setdefault(point, []))
            save()
    print(f"{path}: {sum(map(bool, cases.values()))} sizes in {time.monotonic() - begin:.0f} s", flush=True)
    worker.stop()


def _lengths(point: str) -> tuple[int, int]:
    prompt, response = point.split("x")[1].split("+")
    return int(prompt), int(response)


def _workload(given: dict[str, Any], sequences: int, prompt: int, response: int) -> Workload:
    batch = {
        "size": sequences,
        "mini_batch_size": max(1, sequences // 2),
        "max_prompt_length": prompt,
        "max_response_length": response,
    }
    if given["algorithm"]["name"] == "grpo":
        batch["group_size"] = 4
    return build_workload(merge({"batch": batch, "steps": 1_000, "warmup_steps": 2}, given))


def _placed(workload: Workload) -> tuple[Placement, Workload]:
    """The placement of one device that the algorithm is usually run with, and the workload as it runs it."""
    word = "standard" if workload.algorithm.has_critic else "ddp:1"
    placement = parse_placement(word, [1], has_critic=workload.algorithm.has_critic)
    return placement, placed_workload(workload, placement)


def _start(workload: Workload, device: Device) -> Worker:
    placement, workload = _placed(workload)
    (pool,) = placement.pools
    roles = [role for role in Role if role is not Role.CRITIC or workload.algorithm.has_critic]
    worker = Worker(workload.model_dump(mode="json"), roles, pool.name, device_to_dict(device), 0, 1)
    worker.start("127.0.0.1")
    worker.build(worker.open_store())
    return worker


class _Here:
    """A worker in this process: what it is asked is answered at once."""

    def __init__(self, worker: Worker) -> None:
        self.run = self
        self._worker = worker

    def remote(self, *arguments: Any) -> Any:
        return partial(self._worker.run, *arguments)


class _HereCalls:
    """Calls of workers in this process, done as they are waited for."""

    error = failed = died = RuntimeError

    def __init__(self) -> None:
        self._done: dict[Any, Any] = {}

    def wait(self, answers: Sequence[Any], count: int = 1, timeout_s: float | None = None) -> list[Any]:
        self._done[answers[0]] = answers[0]()
        return [answers[0]]

    def get(self, answers: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        return [self._done.pop(answer) for answer in answers]


def _run_step(workload: Workload, worker: Worker, step: int, *, hands_over: bool) -> StepRecord:
    """A step of the job, on the worker that all sizes share."""
    placement, workload = _placed(workload)
    source = open_prompts(workload.data, workload.seed, workload.batch.max_prompt_length)
    generation = Generation(workload, source, load_tokenizer(workload.model))
    pools = {placement.pools[0].name: [_Here(worker)]}
    controller = Controller(
        workload, placement, pools, _HereCalls(), generation, lambda *_: None, hands_over=hands_over
    )
    return controller.run_step(step)


def _calibration(
    word: str,
    device: Device,
    workloads: dict[str, Workload],
    timed: dict[str, list[StepRecord]],
    traced: dict[str, list[StepRecord]],
) -> CalibrationFile:

    cases = tuple(
        MeasuredCase(
            name=point,
            workload=_placed(workloads[point])[1].model_dump(mode="json"),
            models=job_shapes(workloads[point]),
            counts=_counts(records),
            phases=tuple(_phases(records, traced.get(point, []))),
        )
        for point, records in timed.items()
        if records
    )
    return CalibrationFile(
        source=f"benchmarks/calibrate_predictor.py --model {word}",
        cpu_model=cpu_model(),
        cores=len(usable_cores()),
        kind=device.kind,
        device=device.name,
        device_count=1,
        device_bytes=device.memory_bytes,
        device_cores=len(device.cores),
        driver=_driver(),
        versions=package_versions(),
        cases=cases,
    )


def _driver() -> str | None:
    from placebench.host.gpus import list_gpus

    return list_gpus().driver


def _counts(records: Sequence[StepRecord]) -> StepCounts:
    metrics = [record.metrics for record in records]
    names = {
        "tokens": "total_num_tokens",
        "attention_length": "attention_length",
        "decode_steps": "decode_steps",
        "context_tokens": "decode_context_tokens",
    }
    return StepCounts(**{key: fmean(one[f"perf/{name}"] for one in metrics) for key, name in names.items()})


def _phases(timed: Sequence[StepRecord], traced: Sequence[StepRecord]) -> Iterator[MeasuredPhase]:
    rows = [row for record in traced for row in record.kernels]
    for name, phase in PHASE.items():
        # Of a phase that a device works on, its own span: the controller's has the handing over besides.
        where = [[span for span in record.spans if span["phase"] == name] for record in timed]
        spans = [[one for one in found if one["device"] != "controller"] or found for found in where]
        seconds = [max(one["end_mono"] - one["start_mono"] for one in found) for found in spans if found]
        kernels = [row for row in rows if row["phase"] == name]
        if seconds:
            yield MeasuredPhase(
                name=name,
                devices=1 if phase.role else 0,
                seconds=median_low(seconds),
                kernel_s=fmean(row["kernel_s"] + row["copy_s"] for row in kernels) if kernels else None,
                collective_s=fmean(row["collective_s"] for row in kernels) if kernels else None,
            )


if __name__ == "__main__":
    main()
