import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field
from synthetic_run import STARTUP_S, SyntheticRun, gpu_run

from placebench.compare.comparison import compare_run
from placebench.record.folder import RunFolder
from placebench.record.writing import read_jsonl
from placebench.report.trace import write_trace
from placebench.spec.intervals import covered, union

Event = dict[str, Any]


class _Named(BaseModel):
    """What every event of Chromium's 'Trace Event Format' has, whole ids and no key that the format does not know."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(min_length=1)]
    pid: Annotated[int, Field(gt=0)]


class Slice(_Named):
    """A complete event: microseconds of its start and length."""

    ph: Literal["X"]
    cat: str
    tid: int
    ts: Annotated[float, Field(ge=0)]
    dur: Annotated[float, Field(ge=0)]
    args: dict[str, int | str]


class Counter(_Named):
    """A counter event: its process is all that it belongs to, and its values are numbers."""

    ph: Literal["C"]
    ts: Annotated[float, Field(ge=0)]
    args: Annotated[dict[str, float], Field(min_length=1)]


class TrackName(_Named):
    """A metadata event with the name of a process or thread."""

    name: Literal["process_name", "thread_name"]
    ph: Literal["M"]
    tid: int
    args: dict[Literal["name"], str]


class TrackOrder(_Named):
    """A metadata event with the place of a process or thread."""

    name: Literal["process_sort_index", "thread_sort_index"]
    ph: Literal["M"]
    tid: int
    args: dict[Literal["sort_index"], int]


class TraceFile(BaseModel):
    """The format's JSON object form."""

    model_config = ConfigDict(extra="forbid", strict=True)
    displayTimeUnit: Literal["ms", "ns"]  # noqa: N815 - the format's name
    otherData: dict[str, str]  # noqa: N815
    traceEvents: Annotated[list[Slice | Counter | TrackName | TrackOrder], Field(min_length=1)]  # noqa: N815


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("trace")
    run = SyntheticRun(rounds=2, pace=lambda *_: 1.0, samples={"power_w": 250.0})
    assert write_trace(compare_run(run.write(folder / "run")), folder / "trace.json.gz")
    content = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    assert content["displayTimeUnit"] == "ms"
    found: list[Event] = content["traceEvents"]
    return found


def names(events: list[Event], kind: str) -> dict[tuple[int, int], str]:
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == kind}


def test_a_launch_is_a_process_and_a_device_a_track(events: list[Event]) -> None:
    assert list(names(events, "process_name").values()) == [
        "round 1 standard", "round 1 split", "round 2 standard", "round 2 split",
    ]  # fmt: skip
    tracks = [name for (process, _), name in names(events, "thread_name").items() if process == 2]
    assert tracks == [
        "critical path",
        "steps",
        "controller, submission to result",
        "controller, submission to result (2)",
        "cpu:0 (actor_pool)",
        "cpu:1 (critic_pool)",
    ]


def test_ids_are_unique_in_the_trace(events: list[Event]) -> None:
    tracks = list(names(events, "thread_name"))
    processes = {process for process, _ in tracks}
    assert len({track for _, track in tracks}) == len(tracks)
    assert not processes & {track for _, track in tracks}
    assert min(processes) == 1


def test_slices_lie_where_the_spans_lie(events: list[Event]) -> None:
    tracks = names(events, "thread_name")
    gen = [
        event
        for event in events
        if event["ph"] == "X" and event["name"] == "gen" and event["pid"] == 2 and event["args"]["step"] == 3
    ]
    on_device = next(event for event in gen if tracks[2, event["tid"]] == "cpu:0 (actor_pool)")
    # Start-up, two warm-up steps of 3.66 s, then 0.01 s into the step.
    assert on_device["ts"] == pytest.approx((STARTUP_S + 2 * 3.66 + 0.01) * 1e6, abs=1)
    assert on_device["dur"] == pytest.approx(0.90e6, abs=1)
    assert on_device["args"] == {"step": 3, "role": "rollout", "pool": "actor_pool"}


def test_slices_of_a_track_follow_each_other(events: list[Event]) -> None:
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    assert len(tracks) == 2 * 5 + 2 * 6
    for slices in tracks.values():
        nanoseconds = [(round(1000 * one["ts"]), round(1000 * (one["ts"] + one["dur"]))) for one in slices]
        assert all(end <= start for (_, end), (start, _) in pairwise(nanoseconds))
        assert min(start for start, _ in nanoseconds) >= 0


def test_the_critical_path_fills_every_step(events: list[Event]) -> None:
    tracks = names(events, "thread_name")
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    path = [event for event in slices if tracks[2, event["tid"]] == "critical path" and event["args"]["step"] == 3]
    assert [event["name"] for event in path] == [
        "gap before gen", "gen", "old_log_prob", "ref", "adv", "update_actor", "update_weights",
        "gap before end of the step",
    ]  # fmt: skip
    assert path[1]["args"] == {"step": 3, "device": "cpu:0"}
    assert path[4]["args"]["device"] == "controller"
    (whole,) = (event for event in slices if event["name"] == "step 3")
    assert (path[0]["ts"], sum(event["dur"] for event in path)) == pytest.approx((whole["ts"], whole["dur"]))


def test_counters_have_units_and_no_missing_values(events: list[Event]) -> None:
    counters = [event for event in events if event["ph"] == "C" and event["pid"] == 1]
    assert {(event["name"], *event["args"]) for event in counters} == {
        (f"cpu:{device} {name}", unit)
        for device in (0, 1)
        for name, unit in (("load", "%"), ("memory", "GiB"), ("power", "W"))
    }
    loads = [event["args"]["%"] for event in counters if event["name"] == "cpu:0 load"]
    assert 0 <= min(loads) <= max(loads) <= 100
    assert {event["args"]["GiB"] for event in counters if event["name"] == "cpu:1 memory"} == {0.75}
    # The first sample has no load, as nothing came before it.
    assert len(loads) == len([event for event in counters if event["name"] == "cpu:0 memory"]) - 1


def test_a_mean_begins_where_its_stretch_does_and_a_reading_stands_at_its_moment(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1, source="nvml", pace=lambda *_: 1.0, header={"gpm": True}).write(tmp_path / "run")
    for file in path.glob("trials/*/devices.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        start = min(line["mono"] for line in lines if line["kind"] == "sample")
        for line in lines:
            if line["kind"] == "sample":
                tick = round((line["mono"] - start) / 0.2)
                # GPM answers at every third tick, with the number of its stretch; power is that of the tick's stretch.
                activity = tick / 1000 if tick % 3 == 0 else None
                line |= {"sm_activity": activity, "clock_sm_mhz": tick, "power_w": float(tick)}
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    comparison = compare_run(path)
    assert comparison.placements[0].load_signal == "sm_activity"
    assert write_trace(comparison, tmp_path / "trace.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    ticks = {
        name: {round(event["ts"] / 0.2e6): next(iter(event["args"].values())) for event in events if event["ph"] == "C"
               and event["pid"] == 1 and event["name"] == f"gpu:0 {name}"}
        for name in ("load", "SM clock", "power")
    }  # fmt: skip
    assert len(ticks["SM clock"]) > 50
    assert {tick: clock for tick, clock in ticks["SM clock"].items() if tick != clock} == {}
    assert {tick: power for tick, power in ticks["power"].items() if power != tick + 1} == {}
    assert set(ticks["load"]) == set(range(0, max(ticks["load"]) + 1, 3))
    assert {tick: load for tick, load in ticks["load"].items() if load != pytest.approx((tick + 3) / 10)} == {}


@pytest.mark.parametrize("run", [SyntheticRun(rounds=2, missed=3), gpu_run(rounds=1)])
def test_every_event_is_one_of_the_format(tmp_path: Path, run: SyntheticRun) -> None:
    assert write_trace(compare_run(run.write(tmp_path / "run")), tmp_path / "trace.json.gz")
    text = gzip.decompress((tmp_path / "trace.json.gz").read_bytes()).decode()
    content = TraceFile.model_validate_json(text)
    kinds = {type(event) for event in content.traceEvents}
    assert kinds == {Slice, Counter, TrackName, TrackOrder}
    # A track has one name, which stands before its first slice, and no slice is on a track without one.
    named: set[tuple[int, int]] = set()
    for event in content.traceEvents:
        if isinstance(event, TrackName):
            assert (event.pid, event.tid) not in named
            named.add((event.pid, event.tid))
        elif isinstance(event, Slice):
            assert (event.pid, event.tid) in named


def test_the_queue_of_engines_is_a_counter_by_step(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    run = SyntheticRun(rounds=1, steps=3, metrics={"training/queue_mean": 2.5, "training/queue_max": 8})
    write_trace(compare_run(run.write(tmp_path / "run")), path)
    events = [one for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if one["pid"] == 1]
    queue = [(one["name"], one["ts"], one["args"]) for one in events if one["ph"] == "C" and "queue" in one["name"]]
    starts = [one["ts"] for one in events if one["ph"] == "X" and one["name"] in ("step 1", "step 2", "step 3")]
    assert queue == [
        *(("queue, mean of a step", start, {"sequences": 2.5}) for start in starts),
        *(("queue, most of a step", start, {"sequences": 8}) for start in starts),
    ]
    assert len(starts) == 3


def test_gpus_have_counters_of_tensor_cores_memory_traffic_and_clocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    write_trace(compare_run(gpu_run(rounds=1).write(tmp_path / "run")), path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    counters = {event["name"]: event["args"] for event in events if event["ph"] == "C" and "gpu:1" in event["name"]}
    assert not any("NVLink" in name or "PCIe" in name for name in counters)
    assert counters["gpu:1 tensor cores"] == {"%": 25}
    assert counters["gpu:1 memory traffic"] == {"%": 12.5}
    assert counters["gpu:1 SM clock"] == {"MHz": 1900}
    assert counters["gpu:1 load"] == {"%": 50}


def test_gpus_have_counters_of_nvlink_and_pcie_where_they_were_recorded(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    links = {"nvlink_rx_bytes_s": 90e9, "nvlink_tx_bytes_s": 80e9, "pcie_rx_bytes_s": 2e9, "pcie_tx_bytes_s": None}
    run = gpu_run(rounds=1, device_samples={"cpu:1": links})
    write_trace(compare_run(run.write(tmp_path / "run")), path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    counters = {
        event["name"]: event["args"]
        for event in events
        if event["ph"] == "C" and ("NVLink" in event["name"] or "PCIe" in event["name"])
    }
    assert counters == {
        "gpu:1 NVLink received": {"GB/s": 90},
        "gpu:1 NVLink sent": {"GB/s": 80},
        "gpu:1 PCIe received": {"GB/s": 2},
    }


def test_counters_of_gpm_stand_where_what_they_tell_has_been(tmp_path: Path) -> None:
    folder = gpu_run(rounds=1, steps=16, pace=lambda *_: 1.0).write(tmp_path / "run")
    trial = RunFolder(folder).trial(1, "standard")
    spans = [span for span in read_jsonl(trial.spans) if span["phase"] in ("gen", "update_actor")]
    lines = list(read_jsonl(trial.device_samples))
    for line in lines:
        if line["kind"] == "sample":
            busy = np.array([[s["start_mono"], s["end_mono"]] for s in spans if s["device"] == line["device"]])
            told = np.array([[line["mono"] - 0.3, line["mono"] - 0.1]])
            line["sm_activity"] = float(covered(told, union(busy))[0]) / 0.2
    trial.device_samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    comparison = compare_run(folder)
    assert comparison.placements[0].samples["lag_s"].to_numpy() == pytest.approx(0.1)
    path = tmp_path / "trace.json.gz"
    write_trace(comparison, path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    (process,) = (event["pid"] for event in events if event.get("args") == {"name": "round 1 standard"})
    mine = [event for event in events if event["ph"] == "C" and event["pid"] == process]
    load, clock = ([event["ts"] for event in mine if event["name"] == f"gpu:1 {name}"] for name in ("load", "SM clock"))
    assert load[-1] == pytest.approx(clock[-2] - 1e5, abs=1)
