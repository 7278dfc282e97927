"""A run in OpenTelemetry's file format, OTLP as lines of JSON, as the collector's `otlpjsonfile` receiver reads it.

A line a launch of its trace, whose steps are spans and their phases the spans below them; a line a launch of its
metrics, gauges of each step. Format: 'OpenTelemetry Protocol File Exporter' and the JSON mapping of OTLP, in which ids
are hexadecimal and 64-bit numbers are text.
"""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from placebench.compare.read.run import Launch, Run, is_whole_step
from placebench.compare.read.run_reading import load_run
from placebench.out.tracked import TrackedLaunch, track, wall_offset
from placebench.record.folder import Status
from placebench.record.writing import making_folder, replacing_output
from placebench.telemetry.samples import QUANTITIES
from placebench.version import __version__

_SCOPE = {"name": "placebench", "version": __version__}
_INTERNAL = 1
# Units of UCUM, which OpenTelemetry writes, by ours.
_UCUM = {"1": "1", "B": "By", "B/s": "By/s", "MHz": "MHz", "W": "W", "s": "s", "°C": "Cel"}
_UNITS = {quantity.key: _UCUM[quantity.unit] for quantity in QUANTITIES if quantity.unit in _UCUM}


def write(path: Path, where: Path) -> str:
    """Write traces and metrics of all finished launches; returns the file."""
    run = load_run(path)
    done = [launch for launch in run.launches if launch.status is Status.DONE and len(launch.steps)]
    with (
        making_folder(where.parent),
        replacing_output(where) as scratch,
        scratch.open("w", encoding="utf-8") as stream,
    ):
        for launch, found in zip(done, track(run).launches, strict=True):
            resource = {"attributes": _attributes({"service.name": "placebench", **found.config})}
            spans = list(_spans(run, launch))
            traces = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": _SCOPE, "spans": spans}]}]}
            metrics = {"scope": _SCOPE, "metrics": list(_metrics(found))}
            for line in (traces, {"resourceMetrics": [{"resource": resource, "scopeMetrics": [metrics]}]}):
                stream.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
    return str(where)


def _spans(run: Run, launch: Launch) -> Iterator[dict[str, Any]]:
    """The spans of a launch, each phase below its step and each step below the launch."""
    spans, offset = launch.spans, wall_offset(run, launch)
    known = f"{run.folder.path.name}/{launch.label}"
    trace, root = _id(known, 32), _id(f"{known}/launch", 16)
    whole = is_whole_step(spans)
    steps = {int(step): _id(f"{known}/{step}", 16) for step in spans.loc[whole, "step"]}
    ends = (float(spans["start"].min()), float(spans["end"].max()))
    yield _span(trace, root, "", launch.label, ends, offset, {})
    for number, span in enumerate(spans.to_dict("records")):
        step = int(span["step"])
        about = {"step": step, **{key: span[key] for key in ("phase", "role", "pool")}}
        about["device"] = run.labels.get(span["device"], span["device"])
        is_step = bool(whole[number])
        own = steps[step] if is_step else _id(f"{known}/span/{number}", 16)
        above = root if is_step else steps.get(step, root)
        name = f"step {step}" if is_step else str(span["phase"])
        yield _span(trace, own, above, name, (span["start"], span["end"]), offset, about)


def _span(
    trace: str, own: str, above: str, name: str, times: tuple[float, float], offset: float, about: dict[str, Any]
) -> dict[str, Any]:
    return {
        "traceId": trace,
        "spanId": own,
        **({"parentSpanId": above} if above else {}),
        "name": name,
        "kind": _INTERNAL,
        "startTimeUnixNano": _nanos(times[0] + offset),
        "endTimeUnixNano": _nanos(times[1] + offset),
        "attributes": _attributes(about),
    }


def _metrics(launch: TrackedLaunch) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(name for step in launch.steps for name in step.values):
        points = [
            {
                "timeUnixNano": _nanos(step.wall),
                "asDouble": step.values[name],
                "attributes": _attributes({"step": step.step}),
            }
            for step in launch.steps
            if name in step.values
        ]
        yield {"name": name, "unit": _unit(name), "gauge": {"dataPoints": points}}


def _unit(name: str) -> str:
    """The unit of a metric; empty where it has none, or none is known."""
    if name.startswith("timing_s/"):
        return "s"
    if name == "perf/throughput":
        return "{token}/s"
    return _UNITS.get(name.rpartition("/")[2], "") if name.startswith("devices/") else ""


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    """What is text or a number; None and NaN are left out."""
    known = {key: value for key, value in values.items() if isinstance(value, _KINDS) and value == value}
    return [{"key": key, "value": _value(value)} for key, value in known.items()]


_KINDS = (str, bool, int, float)


def _value(value: str | bool | float) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


def _nanos(seconds: float) -> str:
    return str(round(seconds * 1e9))


def _id(text: str, digits: int) -> str:
    """The same id for the same span each time, so that what is sent twice is seen to be the same."""
    return sha256(text.encode()).hexdigest()[:digits]
