"""A launch of `placebench run` that goes through several sizes of a step, in place of the steps of one.

`calibrate_predictor.py` has it started as the job of a run: the session, the worker and the engine are those of a
launch, the sampler runs beside them, and only the steps are others. It goes through the sizes again and again, a step
of each: what slows a host down for a while then falls on all of them, and not on one alone. After each time it writes
the calibration file.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from placebench.host.gpus import list_gpus
from placebench.host.machine import cpu_model, usable_cores
from placebench.jobs import ppo
from placebench.ppo.controller import Controller, StepRecord
from placebench.ppo.generation import Generation
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, MeasuredPhase, StepCounts
from placebench.record.folder import FINISHING, TRACING, Trial
from placebench.record.writing import append_jsonl, append_to
from placebench.run.manifest import package_versions
from placebench.spec.nested import merge
from placebench.spec.phases import PHASE
from placebench.spec.shapes import job_shapes
from placebench.spec.workload import Workload, placed_workload
from placebench.tasks.data import open_prompts
from placebench.tasks.tokenizer import load_tokenizer

# Of the time for steps that are timed, the most for those that warm up.
WARM_UP_SHARE = 0.5


@dataclass(frozen=True)
class Sizes:
    """What a launch goes through."""

    into: str
    """The calibration file that it writes."""
    source: str
    """What the file says that was measured."""
    timed: Sequence[str]
    """Sizes as NxP+R: sequences, prompt and response tokens."""
    traced: Sequence[str]
    until: float
    """No step begins later, on the host's monotonic clock."""
    trace_s: float
    """To leave for those that are traced."""
    repeats: int
    """Steps of a size at most, of which the first warms up; the first size has one more, which warms up for all."""


def size_of(point: str) -> tuple[int, int, int]:
    """Sequences, prompt and response tokens of a size."""
    sequences, _, lengths = point.partition("x")
    prompt, _, response = lengths.partition("+")
    return int(sequences), int(prompt), int(response)


def batch_of(algorithm: str, sequences: int, prompt: int, response: int) -> dict[str, Any]:
    """The batch of a size, as the workload has it."""
    batch = {
        "size": sequences,
        "mini_batch_size": max(1, sequences // 2),
        "max_prompt_length": prompt,
        "max_response_length": response,
    }
    return batch | ({"group_size": 4} if algorithm == "grpo" else {})


class SizesJob(ppo.PPOJob):
    """A launch that goes through sizes."""

    def __init__(self, trial: Trial, sizes: Sizes) -> None:
        super().__init__(trial)
        self._sizes = sizes

    def _train(self, workers: Mapping[str, list[Any]], generation: Generation) -> None:
        del generation  # each size has its own
        self._workers, self._step = workers, 0
        self._took: dict[str, float] = {}
        self._cases: dict[str, list[StepRecord]] = {}
        self._kernels: dict[str, list[StepRecord]] = {}
        sizes = self._sizes
        points = list(dict.fromkeys((*sizes.timed, *sizes.traced)))
        self._run(points[0])
        self._took.clear()  # most of it was compiling
        until = sizes.until - sizes.trace_s
        for point in self._go_through(points, time.monotonic() + WARM_UP_SHARE * (until - time.monotonic())):
            self._run(point)
        for _ in range(sizes.repeats - 1):
            if not [self._measure(point) for point in self._go_through(list(self._took), until)]:
                break
            self._keep()
        self._progress(FINISHING, step=self._workload.steps)
        if sizes.traced:
            self._progress(TRACING, self._workload.steps)
            self._get([worker.trace_kernels.remote() for ranks in workers.values() for worker in ranks])
        for point in sizes.traced:
            if time.monotonic() < sizes.until and self._cases.get(point):
                record = self._run(point)
                with append_to(self._trial.kernels) as kernels:
                    for row in record.kernels:
                        append_jsonl(kernels, row | {"size": point})
                self._kernels[point] = [record]
                self._keep()

    def _go_through(self, points: Sequence[str], until: float) -> Iterator[str]:
        """The sizes that there is time for: a step takes as long as the size's last one."""
        yield from (point for point in points if time.monotonic() + self._took.get(point, 0.0) < until)

    def _measure(self, point: str) -> StepRecord:
        record = self._run(point)
        self._cases.setdefault(point, []).append(record)
        return record

    def _run(self, point: str) -> StepRecord:
        self._step += 1
        workload = self._workload_of(point)
        source = open_prompts(workload.data, workload.seed, workload.batch.max_prompt_length)
        controller = Controller(
            workload,
            self._placement,
            self._workers,
            self._session.calls,
            Generation(workload, source, load_tokenizer(workload.model)),
            lambda *_: None,
            hands_over=self._hands_over(),
        )
        record = controller.run_step(self._step)
        end = controller.finish()
        record.spans.extend(end.spans)
        record.kernels.extend(end.kernels)
        took = self._took[point] = record.metrics["timing_s/step"]
        print(f"{point}: {took:.3f} s, gen {record.metrics['timing_s/gen']:.3f} s", flush=True)
        row = {"step": self._step, "wall": time.time(), "mono": time.monotonic(), "metrics": record.metrics}
        with append_to(self._trial.steps) as steps:
            append_jsonl(steps, row | {"size": point})
        self._write_spans(record.spans)
        return record

    def _workload_of(self, point: str) -> Workload:
        algorithm = self._workload.algorithm.name
        batch = batch_of(algorithm, *size_of(point))
        content = merge(self._workload.model_dump(mode="json"), {"batch": batch})
        return placed_workload(Workload.model_validate(content), self._placement)

    def _keep(self) -> None:
        """Write what has been measured so far."""
        device = self._asked.devices[0]
        cases = tuple(
            MeasuredCase(
                name=self._placement.name,
                workload=self._workload_of(point).model_dump(mode="json"),
                models=job_shapes(self._workload_of(point)),
                counts=_counts(records),
                step_s=fmean(record.metrics["timing_s/step"] for record in records),
                gap_s=_gap(records),
                phases=tuple(_phases(records, self._kernels.get(point, []))),
            )
            for point, records in self._cases.items()
        )
        CalibrationFile(
            source=self._sizes.source,
            cpu_model=cpu_model(),
            cores=len(usable_cores()),
            kind=device.kind,
            device=device.name,
            device_count=1,
            device_bytes=device.memory_bytes,
            device_cores=len(device.cores),
            driver=list_gpus().driver,
            versions=package_versions(),
            cases=cases,
        ).write(Path(self._sizes.into))


def _counts(records: Sequence[StepRecord]) -> StepCounts:
    names = {
        "tokens": "total_num_tokens",
        "attention_length": "attention_length",
        "decode_steps": "decode_steps",
        "context_tokens": "decode_context_tokens",
    }
    return StepCounts(**{key: fmean(one.metrics[f"perf/{name}"] for one in records) for key, name in names.items()})


def _spans(record: StepRecord, name: str) -> list[dict[str, Any]]:
    """Of a phase that a device works on, its own spans: the controller's has the handing over besides."""
    found = [span for span in record.spans if span["phase"] == name]
    return [one for one in found if one["device"] != "controller"] or found


def _seconds(spans: Sequence[Mapping[str, Any]]) -> float:
    return max((float(one["end_mono"] - one["start_mono"]) for one in spans), default=0.0)


def _gap(records: Sequence[StepRecord]) -> float:
    """Of a step of one pool, whose phases follow one another: when none runs."""
    return fmean(
        max(0.0, record.metrics["timing_s/step"] - sum(_seconds(_spans(record, name)) for name in PHASE))
        for record in records
    )


def _phases(timed: Sequence[StepRecord], traced: Sequence[StepRecord]) -> Iterator[MeasuredPhase]:
    for name, phase in PHASE.items():
        seconds = [_seconds(found) for record in timed if (found := _spans(record, name))]
        kernels = [row for record in traced for row in record.kernels if row["phase"] == name]
        if seconds:
            yield MeasuredPhase(
                name=name,
                devices=1 if phase.role else 0,
                seconds=fmean(seconds),
                kernel_s=fmean(row["kernel_s"] + row["copy_s"] for row in kernels) if kernels else None,
                collective_s=fmean(row["collective_s"] for row in kernels) if kernels else None,
            )


if __name__ == "__main__":
    told = Sizes(**json.loads(sys.argv[1]))
    ppo.run_and_exit(sys.argv[2], lambda trial: SizesJob(trial, told))
