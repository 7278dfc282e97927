"""Run folders with known truths, written as the runner, the job and the sampler write them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from layouts import SPLIT, STANDARD, Layout, span_line, step_spans

from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.writing import write_json
from placebench.spec.shapes import PRESETS, JobShapes
from placebench.telemetry.spans import TRACED_STEP

GIB = 2**30
STARTUP_S = 3.0
TRACE_S = 4.0
STOP_S = 0.5
PERIOD_S = 0.2


@dataclass
class SyntheticRun:
    """What to write.

    Attributes:
        layouts: placements by name, in order.
        rounds: launches of each.
        steps: steps of a launch.
        warmup_steps: the first of them, which are twice as slow.
        pace: factor on every time of a launch, by round and placement.
        statuses: launches that are not done, by round and placement; they have no files but `status` and `error.txt`.
        tokens: real tokens of a step, by placement.
        samples: further keys of every sample, or replacements (`util` is computed).
        source: `cpu` or `nvml`.
        missed: samples that the sampler missed.
        device_name: the devices' model.
        workload: the run's.
        metrics: further metrics of every step.
        device_samples: further keys of one device's samples.
        header: further keys of the sampler's header.
        kernels: lines of `kernels.jsonl` of every launch of the first round, traced in `TRACE_S` after its steps, in
            which twice the memory is in use.
        span_memory: `memory_peak_bytes` of every device's span; None where it is not counted.
        step_pace: factor on every time of a step, by round, placement and step.
        step_tokens: factor on the tokens of a step, likewise.
        testing_s: length of a validation at the end of every second step.
        started: when the run began, ISO 8601.
    """

    layouts: Mapping[str, Layout] = field(default_factory=lambda: {"standard": STANDARD, "split": SPLIT})
    rounds: int = 3
    steps: int = 6
    warmup_steps: int = 2
    pace: Callable[[int, str], float] = lambda round_, placement: 1.0 + 0.004 * round_
    statuses: Mapping[tuple[int, str], Status] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    source: str = "cpu"
    missed: int = 0
    device_name: str = "Example device"
    workload: Mapping[str, Any] = field(
        default_factory=lambda: {"model": "tiny", "seed": 0, "batch": {"size": 64}, "precision": "float32"}
    )
    metrics: Mapping[str, float] = field(default_factory=dict)
    device_samples: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    header: Mapping[str, Any] = field(default_factory=dict)
    kernels: Sequence[Mapping[str, Any]] = ()
    span_memory: int | None = None
    step_pace: Callable[[int, str, int], float] = lambda round_, placement, step: 1.0
    step_tokens: Callable[[int, str, int], float] = lambda round_, placement, step: 1.0
    testing_s: float = 0.0
    started: str = "2026-03-01T10:00:00Z"

    def write(self, path: Path) -> Path:
        """Write the run folder and return it."""
        folder = RunFolder(path)
        path.mkdir(parents=True)
        write_json(folder.run_file, self.manifest())
        for round_ in range(1, self.rounds + 1):
            for name, layout in self.layouts.items():
                trial = folder.trial(round_, name)
                status = self.statuses.get((round_, name), Status.DONE)
                if status is not Status.PLANNED:
                    trial.path.mkdir(parents=True)
                    (trial.path / "status").write_text(f"{status}\n")
                if status is Status.DONE:
                    self._write_launch(trial, round_, name, layout)
                elif status is not Status.PLANNED:
                    trial.error.write_text(f"{status}: worker on cpu:1 ended: {status}\nTraceback follows\n")
        return path

    def manifest(self) -> dict[str, Any]:
        """The content of run.json."""
        names = list(self.layouts)
        return {
            "schema_version": 1,
            "name": "demo",
            "status": "running" if self.statuses else "done",
            "command": ["placebench", "run", "--placements", ",".join(names)],
            "started": self.started,
            "ended": "2026-03-01T10:02:00Z",
            "rounds": self.rounds,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "workload": dict(self.workload),
            **self._models(),
            "placements": [self._placement(name) for name in names],
            "devices": self._devices(),
            "host": {
                "hostname": "bench",
                "cpu_model": "Example CPU",
                "cpu_count": 2,
                "memory_bytes": 8 * GIB,
                "gpus": [{"index": 0, "name": self.device_name}] if self.source == "nvml" else [],
            },
            "versions": {"placebench": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
            "git": {"commit": "0123456789abcdef", "dirty": False},
            "order": [names if round_ % 2 == 0 else names[::-1] for round_ in range(self.rounds)],
            "launches": [],
            "wall": {"total_s": 0.0, "launches_s": 0.0, "outside_launches_s": 0.0},
        }

    def _models(self) -> dict[str, Any]:
        """Shapes of a preset's models; nothing for another model, as in a run that did not record them."""
        shape = PRESETS.get(self.workload["model"])
        return {"models": asdict(JobShapes(shape, shape))} if shape else {}

    def _placement(self, name: str) -> dict[str, Any]:
        layout = self.layouts[name]
        pools = {pool: list(devices) for pool, devices in layout.pools.items()}
        return {
            "name": name,
            "pools": pools,
            "roles": dict(layout.roles),
            "overlap": layout.overlap,
            "staleness": layout.staleness,
            "inflight_updates": layout.inflight_updates,
            "scaling": layout.scaling,
        }

    def _devices(self) -> list[dict[str, Any]]:
        ids = sorted({device for layout in self.layouts.values() for pool in layout.pools.values() for device in pool})
        return [
            {
                "id": device,
                "kind": "gpu" if self.source == "nvml" else "cpu",
                "index": index,
                "node": "bench",
                "name": self.device_name,
                "memory_bytes": 8 * GIB,
                "cores": [] if self.source == "nvml" else [index],
            }
            for index, device in enumerate(ids)
        ]

    def _write_launch(self, trial: Trial, round_: int, name: str, layout: Layout) -> None:
        pace = self.pace(round_, name)
        start = 1000.0 * round_
        spans = [span_line(0, "start_ray", None, None, "controller", start, start + STARTUP_S)]
        now = start + STARTUP_S
        steps = []
        for step in range(1, self.steps + 1):
            scale = pace * (2.0 if step <= self.warmup_steps else 1.0) * self.step_pace(round_, name, step)
            testing = self.testing_s if step % 2 == 0 else 0.0
            spans += step_spans(layout, step, now, scale, testing)
            seconds = layout.step_s * scale + testing
            tokens = self.tokens.get(name, 1300) * self.step_tokens(round_, name, step)
            metrics = {
                "timing_s/step": seconds,
                "perf/total_num_tokens": tokens,
                "perf/throughput": tokens / seconds / 2,
                **self.metrics,
                **{f"timing_s/{phase}": (end - begin) * scale for phase, (begin, end) in layout.times.items()},
            }
            steps.append({"step": step, "wall": now + seconds, "metrics": metrics})
            now += seconds
        _write_lines(trial.steps, steps)
        traced = self.kernels if round_ == 1 else ()
        if traced:
            spans.append(span_line(0, TRACED_STEP, None, None, "controller", now, now + TRACE_S))
            now += TRACE_S
        spans.append(span_line(0, "stop", None, None, "controller", now, now + STOP_S))
        memory = {} if self.span_memory is None else {"memory_peak_bytes": self.span_memory}
        _write_lines(trial.spans, [span if span["device"] == "controller" else span | memory for span in spans])
        if traced:
            _write_lines(trial.kernels, traced)
        _write_lines(trial.device_samples, self._samples(layout, spans, start, now + STOP_S))
        write_json(trial.launch_file, {"schema_version": 1, "round": round_, "placement": self._placement(name)})

    def _samples(self, layout: Layout, spans: list[dict[str, Any]], start: float, end: float) -> list[dict[str, Any]]:
        """Samples every 0.2 s: a device's load is exactly the share of the period that its spans cover."""
        lines: list[dict[str, Any]] = [
            {"kind": "header", "schema_version": 1, "hz": 5, "source": self.source, "node": "bench", "gpm": False}
            | dict(self.header)
        ]
        ticks = int((end - start) / PERIOD_S) + 1
        traced = next((span["start_mono"] for span in spans if span["phase"] == TRACED_STEP), end)
        for device in (device for devices in layout.pools.values() for device in devices):
            mine = [(span["start_mono"], span["end_mono"]) for span in spans if span["device"] == device]
            begun, ended = np.array(mine).reshape(-1, 2).T
            nows = start + np.arange(ticks) * PERIOD_S
            shared = np.minimum(nows[:, None], ended) - np.maximum(nows[:, None] - PERIOD_S, begun)
            for tick, (now, busy) in enumerate(zip(nows.tolist(), shared.clip(0).sum(1).tolist(), strict=True)):
                lines.append(
                    {
                        "kind": "sample",
                        "wall": now,
                        "mono": now,
                        "device": device,
                        "util": busy / PERIOD_S if tick else None,
                        "memory_bytes": int((0.5 + 0.25 * int(device[-1])) * GIB) * (2 if now > traced else 1),
                        "power_w": None,
                        **self.samples,
                        **self.device_samples.get(device, {}),
                    }
                )
            lines += self._power_lines(device, start, end)
        lines.append({"kind": "footer", "ticks": ticks, "missed": self.missed, "achieved_hz": 5.0, "cpu_s": 0.1})
        return lines

    def _power_lines(self, device: str, start: float, end: float) -> list[dict[str, Any]]:
        """What constant power gives: the counter at the ends, and the buffer of a GPU once a second."""
        power = self.samples.get("power_w")
        if power is None:
            return []
        lines: list[dict[str, Any]] = [
            {"kind": "energy", "wall": now, "mono": now, "device": device, "energy_j": power * now}
            for now in (start, end)
        ]
        ago = [0.98 - 0.02 * reading for reading in range(50)]
        seconds = range(1, int(end - start) + 2) if self.source == "nvml" else ()
        for now in (start + second for second in seconds):
            content = {"wall": now, "mono": now, "device": device, "ago_s": ago, "power_w": [power] * len(ago)}
            lines.append({"kind": "power", **content})
        return lines


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_spans(path: Path, placement: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change every span of a placement's launches in place."""
    for file in path.glob(f"trials/*-{placement}/spans.jsonl"):
        spans = [json.loads(line) for line in file.read_text().splitlines()]
        for span in spans:
            edit(span)
        file.write_text("".join(json.dumps(span) + "\n" for span in spans))


def record_walls(path: Path, total_s: float) -> None:
    """Record so many seconds for a run, and for each of its launches 3 s before its steps and 5 s after them."""
    wall = {"total_s": 8.0, "before_steps_s": 3.0, "steps_s": 0.0, "after_steps_s": 4.5, "cleanup_s": 0.5}
    manifest = read_json(path / "run.json")
    launches = [
        {"round": number, "placement": name, "trial": "", "status": "done", "wall": wall}
        for number, names in enumerate(manifest["order"], start=1)
        for name in names
    ]
    walls = {"total_s": total_s, "launches_s": total_s, "outside_launches_s": 0.0}
    write_json(path / "run.json", manifest | {"launches": launches, "wall": walls})


def read_json(path: Path) -> Any:
    """Content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


GPU_WORKLOAD = {
    "model": "qwen2.5-1.5b",
    "precision": "bfloat16",
    "algorithm": {"epochs": 2},
    "rollout": {"ignore_eos": True, "tensor_parallel_size": 1},
}
GPU_SAMPLES = {
    "sm_activity": 0.5,
    "tensor_activity": 0.25,
    "dram_activity": 0.125,
    "power_w": 400.0,
    "clock_sm_mhz": 1900,
    "event_reasons": 0,
    "compute_processes": 1,
    "earlier_processes": 0,
}
GPU_METRICS = {
    "perf/attention_length": 1000.0,
    "perf/decode_context_tokens": 1_000_000.0,
    "perf/decode_steps": 500,
    "perf/update_weights_bytes": 30_000_000,
}


def gpu_run(**changes: Any) -> SyntheticRun:
    """A run on two H200s with GPM, of a model of real size."""
    content: dict[str, Any] = {
        "source": "nvml",
        "device_name": "NVIDIA H200",
        "workload": GPU_WORKLOAD,
        "metrics": GPU_METRICS,
        "samples": GPU_SAMPLES,
        "header": {"gpm": True},
        "span_memory": 3 * GIB,
    }
    return SyntheticRun(**content | changes)


def record(folder: str, name: str | None = None) -> Path:
    """A run of which only the name and the start are known."""
    path = Path(folder)
    path.mkdir(parents=True)
    time, _, word = path.name.partition("-")
    started = f"{time[:4]}-{time[4:6]}-{time[6:8]}T{time[9:11]}:00:00Z"
    (path / "run.json").write_text(json.dumps({"name": name or word, "started": started}))
    return path
