"""`trace.json.gz`: every finished launch in Chrome's trace event format, which Perfetto opens.

A process is a launch, so launches lie under each other, all from 0. It has tracks for the critical path of every step,
for the controller's view (whole steps; phases from submission to result), one per device with the phases it worked on,
counters of load, memory, power and traffic over NVLink and PCIe, as far as recorded, and of the queue between engines
and learners. Times are microseconds from the launch's first span. Format: 'Trace Event Format', the Chromium project.
"""

import gzip
import json
import math
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.compare.comparison import Comparison
from placebench.compare.measure.attribution import GPM_RATES
from placebench.compare.measure.critical_path import SpanGraph
from placebench.compare.measure.energy import power_curve
from placebench.compare.measure.placements import RunSide
from placebench.compare.read.run import Launch, is_whole_step
from placebench.record.writing import replacing
from placebench.spec.legible import legible, visible
from placebench.spec.phases import STEP
from placebench.telemetry.spans import CONTROLLER

GIB = 2**30
# Perfetto wants thread ids that are unique in the whole trace; a launch has room for this many tracks.
TRACKS = 1000
LINKS = {
    "nvlink_rx_bytes_s": "NVLink received",
    "nvlink_tx_bytes_s": "NVLink sent",
    "pcie_rx_bytes_s": "PCIe received",
    "pcie_tx_bytes_s": "PCIe sent",
}
Event = dict[str, Any]


def write_trace(comparison: Comparison, path: Path) -> bool:
    """Replace the trace of all finished launches; False, and no file, where none has spans."""
    launches = [(launch, side) for side in comparison.placements for launch in side.launches if not launch.spans.empty]
    launches.sort(key=lambda entry: entry[0].round)
    if not launches:
        path.unlink(missing_ok=True)
        return False
    events: list[Event] = []
    for process, (launch, side) in enumerate(launches, start=1):
        zero = float(launch.spans["start"].min())
        events.append(_metadata("process_name", process, 0, name=launch.label))
        events.append(_metadata("process_sort_index", process, 0, sort_index=process))
        events += _tracks(side, launch, process, zero)
        events += _counters(side, launch, process, zero)
        events += _queue(launch, process, zero)
    content = {"displayTimeUnit": "ms", "otherData": {"run": visible(launches[0][1].run.name)}, "traceEvents": events}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    with replacing(path) as scratch:
        scratch.write_bytes(gzip.compress(text.encode(), 6, mtime=0))
    return True


def _tracks(side: RunSide, launch: Launch, process: int, zero: float) -> Iterator[Event]:
    """A named track for each row of spans, and a slice for each span."""
    track = TRACKS * process
    if launch.has_path:
        yield from _name_track(process, track, "critical path")
        yield from _path(side, launch, process, track, zero)
    for name, spans in _rows(side, launch):
        for lane, chosen in enumerate(_lanes(spans)):
            track += 1
            yield from _name_track(process, track, name if lane == 0 else f"{name} ({lane + 1})")
            for span in chosen:
                yield _slice(
                    f"step {span['step']}" if span["phase"] == STEP else span["phase"],
                    "phase",
                    (process, track),
                    (span["start"], span["end"], zero),
                    step=span["step"],
                    role=span["role"],
                    pool=span["pool"],
                )


def _path(side: RunSide, launch: Launch, process: int, track: int, zero: float) -> Iterator[Event]:
    """The critical path of every step: its phases with the device that ended each last, and the gaps between them."""
    graph = SpanGraph(launch.spans, side.placed(launch), joins_updates=launch.is_of_job)
    labels = {**side.run.labels, CONTROLLER: CONTROLLER}
    for segment in (segment for step in graph.steps for segment in graph.critical_path(step)):
        yield _slice(
            f"gap before {segment.phase}" if segment.is_gap else segment.phase,
            "critical path",
            (process, track),
            (segment.start, segment.end, zero),
            step=segment.step,
            device=labels.get(str(segment.device)),
        )


def _slice(
    name: str, category: str, track: tuple[int, int], times: tuple[float, float, float], **arguments: Any
) -> Event:
    """A span on a track (process, thread); times are its start and end and the launch's start, in seconds."""
    start, end = (_micros(time, times[2]) for time in times[:2])
    return {
        "ph": "X",
        "name": visible(name),
        "cat": category,
        "pid": track[0],
        "tid": track[1],
        "ts": start,
        "dur": round(end - start, 3),
        "args": legible({key: value for key, value in arguments.items() if isinstance(value, int | str)}),
    }


def _name_track(process: int, track: int, name: str) -> Iterator[Event]:
    yield _metadata("thread_name", process, track, name=name)
    yield _metadata("thread_sort_index", process, track, sort_index=track)


def _rows(side: RunSide, launch: Launch) -> Iterator[tuple[str, pd.DataFrame]]:
    spans = launch.spans
    whole = is_whole_step(spans)
    yield "steps", spans[whole]
    yield "controller, submission to result", spans[(spans["device"] == CONTROLLER) & ~whole]
    placed = side.placed(launch)
    for device in placed.devices:
        yield f"{side.run.labels[device]} ({placed.pool_of(device)})", spans[spans["device"] == device]


def _lanes(spans: pd.DataFrame) -> list[list[dict[str, Any]]]:
    """Divide spans into as few tracks as possible on which none overlaps another, as slices of a track must nest."""
    lanes: list[list[dict[str, Any]]] = []
    columns = {name: spans[name].tolist() for name in ("start", "end", "step", "phase", "role", "pool")}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for span in sorted(rows, key=itemgetter("start")):
        lane = next((lane for lane in lanes if lane[-1]["end"] <= span["start"]), None)
        if lane is None:
            lanes.append([span])
        else:
            lane.append(span)
    return lanes


def _counters(side: RunSide, launch: Launch, process: int, zero: float) -> Iterator[Event]:
    """A counter track for each device and quantity that has readings."""
    # Means over the time since the sample before, and readings of a moment.
    rates = (
        (side.load_signal, "load", "%", 100.0),
        ("tensor_activity", "tensor cores", "%", 100.0),
        ("dram_activity", "memory traffic", "%", 100.0),
        *((column, name, "GB/s", 1e-9) for column, name in LINKS.items()),
    )
    readings = (("memory_bytes", "memory", "GiB", 1 / GIB), ("clock_sm_mhz", "SM clock", "MHz", 1.0))
    for device in side.placement.devices:
        samples = launch.samples[launch.samples["device"] == device]
        label = side.run.labels[device]
        lag = _gpm_lag(side, launch, device)
        # Perfetto draws a value from its time on, so a mean stands where its stretch begins.
        series: list[tuple[str, str, float, NDArray[np.float64], NDArray[np.float64]]] = []
        for columns, first in ((readings, 0), (rates, 1)):
            for column, name, unit, factor in columns:
                if column in samples:
                    # GPM is not asked at every tick where ticks are many: a reading covers the time since the last.
                    of_gpm = column in {*GPM_RATES, *LINKS}
                    known = samples[samples[column].notna()] if of_gpm else samples
                    times, values = (known[key].to_numpy(dtype=np.float64) for key in ("mono", column))
                    series.append((name, unit, factor, times - (lag if of_gpm else 0.0), values[first:]))
        ticks = samples["mono"].to_numpy(dtype=np.float64)
        # Readings of the buffer would be ten times as many.
        series.append(("power", "W", 1.0, ticks, power_curve(launch, device).between(ticks)))
        for name, unit, factor, times, values in series:
            for mono, value in zip(times, values, strict=False):
                if mono >= zero and not math.isnan(value):
                    yield _counter(process, f"{label} {name}", unit, _micros(mono, zero), factor * value)


def _gpm_lag(side: RunSide, launch: Launch, device: str) -> float:
    """By how many seconds GPM's readings of a device are late, as far as its launch could tell."""
    if side.samples.empty:
        return 0.0
    mine = side.samples[(side.samples["round"] == launch.round) & (side.samples["device"] == device)]
    return float(mine["lag_s"].max()) if len(mine) else 0.0


def _queue(launch: Launch, process: int, zero: float) -> Iterator[Event]:
    """Sequences that wait for learners, where engines are apart from them: a value from the start of each step on."""
    starts = launch.whole_steps.set_index("step")["start"]
    for column, name in (("training/queue_mean", "mean"), ("training/queue_max", "most")):
        if column not in launch.steps:
            continue
        known = pd.concat([starts, launch.steps[column].dropna()], axis=1, join="inner")
        for start, sequences in known.itertuples(index=False, name=None):
            yield _counter(process, f"queue, {name} of a step", "sequences", _micros(start, zero), sequences)


def _counter(process: int, name: str, unit: str, micros: float, value: float) -> Event:
    """A reading; Perfetto joins the name and the unit to the name of a track."""
    return {"ph": "C", "name": visible(name), "pid": process, "ts": micros, "args": {unit: round(value, 4)}}


def _metadata(kind: str, process: int, track: int, **arguments: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": legible(arguments)}


def _micros(mono: float, zero: float) -> float:
    """Microseconds from the launch's start, to the nanosecond: Perfetto's own resolution, so that ends meet starts."""
    return round((mono - zero) * 1e6, 3)
