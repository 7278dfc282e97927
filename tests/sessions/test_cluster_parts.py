import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from launching import wait_for

from placebench.errors import UsageError
from placebench.host.devices import discover
from placebench.host.network import use_interface_of
from placebench.record.folder import Trial
from placebench.record.writing import append_jsonl
from placebench.sessions.ray_cluster.clocks import (
    DRIFT,
    ROUND_TRIPS,
    ClockOffset,
    ClockTable,
    clock_notes,
    measure_offset,
)
from placebench.sessions.ray_cluster.discovery import Cluster, ClusterNode, discover_cluster
from placebench.sessions.ray_cluster.naming import node_names
from placebench.sessions.ray_cluster.node import NodeAgent
from placebench.sessions.ray_cluster.pools import bundle
from placebench.spec.devices import device_to_dict, parse_devices
from placebench.telemetry.spans import SpanClock

SECONDS = st.floats(0, 0.5)


class Time(SpanClock):
    """A clock that goes on when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def mono(self) -> float:
        return self.time


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(SECONDS, SECONDS), min_size=ROUND_TRIPS, max_size=ROUND_TRIPS))
def test_an_offset_is_right_within_its_error_whatever_the_ways_take(
    ahead: float, ways: list[tuple[float, float]]
) -> None:
    clock, trips = Time(), iter(ways)

    def ask() -> float:
        there, back = next(trips)
        clock.time += there
        told = clock.time + ahead
        clock.time += back
        return told

    measured = measure_offset("b", ask, clock)
    assert abs(measured.offset_s + ahead) <= measured.error_s + 1e-9 * max(1.0, abs(ahead))
    assert measured.error_s == pytest.approx(min(there + back for there, back in ways) / 2, abs=1e-9)


def test_a_later_measurement_replaces_one_that_may_have_drifted_more() -> None:
    clock = Time()
    table = ClockTable(clock)
    row = {"mono": 1.0, "wall": 0.0}
    table.add(ClockOffset("b", 10.0, 1e-3, 16, 0.0))
    table.add(ClockOffset("b", 20.0, 5e-3, 16, 60.0))
    assert table.shift("b", row)["mono"] == 11.0
    table.add(ClockOffset("b", 20.0, 5e-3, 16, 4e-3 / DRIFT + 1))
    assert table.shift("b", row)["mono"] == 21.0


def test_a_clock_that_is_known_coarsely_is_told(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    assert clock_notes(trial) == ()
    measured = [
        ClockOffset("a", 0.0, 0.03, 16, 0.0),
        ClockOffset("b", 0.0, 0.02, 16, 0.0),
        ClockOffset("a", 0.0, 0.001, 16, 9.0),
    ]
    with trial.clocks.open("w") as stream:
        for one in measured:
            append_jsonl(stream, asdict(one))
    (note,) = clock_notes(trial)
    assert note.startswith("the clock of node b is known only to 20 ms")


def test_both_clocks_of_a_row_are_shifted_and_lengths_stay() -> None:
    clock = Time()
    table = ClockTable(clock)
    table.add(ClockOffset("b", 2.5, 1e-3, 16, 0.0))
    span = {"phase": "gen", "start_mono": 1.0, "end_mono": 4.0, "start_wall": 7.0, "end_wall": 10.0}
    assert table.shift("b", span) == {
        "phase": "gen",
        "start_mono": 3.5,
        "end_mono": 6.5,
        "start_wall": 3.5 + clock.offset,
        "end_wall": 6.5 + clock.offset,
    }
    power = {"kind": "power", "mono": 4.0, "wall": 10.0, "ago_s": [0.5, 0.0], "power_w": [1.0, 2.0]}
    assert table.shift("b", power) == power | {"mono": 6.5, "wall": 6.5 + clock.offset}
    assert table.shift("b", {"kind": "footer", "ticks": 3}) == {"kind": "footer", "ticks": 3}


def node(ray_id: str, name: str, host: str, address: str) -> dict[str, str]:
    return {"NodeID": ray_id, "NodeName": name, "NodeManagerHostname": host, "NodeManagerAddress": address}


def test_nodes_are_called_by_their_given_name_then_host_then_address_then_id() -> None:
    assert node_names([node("1", "left", "h", "10.0.0.1"), node("2", "10.0.0.2", "gpu-2", "10.0.0.2")]) == [
        "left",
        "gpu-2",
    ]
    shared = [node("1", "10.0.0.1", "h", "10.0.0.1"), node("2", "10.0.0.2", "h", "10.0.0.2")]
    assert node_names(shared) == ["10.0.0.1", "10.0.0.2"]
    twins = [node("1" * 56, "10.0.0.1", "h", "10.0.0.1"), node("2" * 56, "10.0.0.1", "h", "10.0.0.1")]
    assert node_names(twins) == ["10.0.0.1-11111111", "10.0.0.1-22222222"]


@given(st.lists(st.tuples(st.sampled_from(["", "x"]), st.sampled_from("hk"), st.sampled_from("12"))))
def test_names_are_unique(parts: list[tuple[str, str, str]]) -> None:
    nodes = [
        node(f"{index:08d}ff", name or address, host, address) for index, (name, host, address) in enumerate(parts)
    ]
    assert len(set(node_names(nodes))) == len(nodes)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://head:10001", "write host:port"),
        ("head", "write host:port"),
        (":6379", "write host:port"),
        ("head:0", "write host:port"),
        ("head:99999", "write host:port"),
        ("127.0.0.1:1", "no Ray answers there (Connection refused)"),
    ],
)
def test_an_address_that_cannot_be_is_refused_at_once(address: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        discover_cluster(address, None)
    assert said in str(raised.value)
    assert address in str(raised.value)


def entry(name: str, devices: int = 2, **changes: Any) -> dict[str, Any]:
    found = discover(parse_devices(f"cpu:{devices}"))
    return {
        "name": name,
        "ray_id": f"id-{name}",
        "address": "10.0.0.1",
        "cpus": 8.0,
        "gpus": 0.0,
        "host": {"hostname": name},
        "devices": [device_to_dict(device) | {"node": name, "id": f"{name}/{device.id}"} for device in found],
        **changes,
    }


def answer(monkeypatch: pytest.MonkeyPatch, *entries: dict[str, Any]) -> None:
    """Let the probe's process say this."""
    program = f"print({json.dumps(json.dumps({'nodes': entries}))})"
    monkeypatch.setattr("placebench.sessions.ray_cluster.discovery.PROBE", (sys.executable, "-c", program))


def test_devices_come_node_after_node(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, entry("a"), entry("b"))
    cluster, devices = discover_cluster("auto", parse_devices("cpu:2"))
    assert [device.id for device in devices] == ["a/cpu:0", "a/cpu:1", "b/cpu:0", "b/cpu:1"]
    assert [known.name for known in cluster.nodes] == ["a", "b"]


def test_every_reason_of_every_node_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = {"id": "GPU-1", "kind": "gpu", "index": 0, "node": "c", "name": "H", "memory_bytes": 1, "cores": []}
    answer(
        monkeypatch,
        entry("a", cpus=1.0),
        {"name": "b", "error": "placebench cannot be imported there"},
        entry("c", devices=1) | {"devices": [gpu]},
    )
    with pytest.raises(UsageError) as raised:
        discover_cluster("auto", None)
    lines = str(raised.value).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith(
        "node a: 2 devices need as many CPUs in Ray, which has 1 there: start it with --num-cpus=2"
    )
    assert lines[1] == "node b: placebench cannot be imported there"
    assert lines[2].startswith("node c: there are 1 GPUs and Ray has 0 of them")
    assert "nodes without (a): use --devices cpu" in lines[3]


def test_a_probe_that_says_nothing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "placebench.sessions.ray_cluster.discovery.PROBE", (sys.executable, "-c", "raise OSError('no room')")
    )
    with pytest.raises(UsageError) as raised:
        discover_cluster("auto", None)
    assert str(raised.value) == "--ray-address auto: Ray cannot be asked: OSError: no room"


def test_a_cluster_comes_back_from_its_object() -> None:
    node = ClusterNode.model_validate(entry("a"))
    cluster = Cluster(address="h:1", placement_timeout_s=60.0, nodes=(node,))
    assert Cluster.model_validate_json(cluster.model_dump_json()) == cluster


def test_a_gpu_takes_a_cpu_too() -> None:
    assert bundle(3, on_gpus=True) == {"CPU": 3.0, "GPU": 3.0}
    assert bundle(2, on_gpus=False) == {"CPU": 2.0}


def test_gloo_takes_the_interface_of_the_address_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    use_interface_of("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "mine"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    use_interface_of("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.fixture
def stubborn() -> Iterator["subprocess.Popen[bytes]"]:
    """A process with a child, both deaf to SIGTERM."""
    sleep = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    program = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {sleep!r}]); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
    process.stdout.close()
    process.wait()


def test_an_agent_samples_its_devices_and_ends_workers_with_their_children(
    stubborn: "subprocess.Popen[bytes]",
) -> None:
    (child,) = psutil.Process(stubborn.pid).children()
    (device,) = discover(parse_devices("cpu:1"))
    agent = NodeAgent([device_to_dict(device)], hz=20)
    agent.register(stubborn.pid, device.id)
    rows: list[dict[str, Any]] = []

    def counted() -> list[dict[str, Any]]:
        more, failed = agent.drain()
        assert failed is None
        rows.extend(more)
        return [row for row in rows if row.get("device") == device.id and row["processes"] >= 1]

    wait_for(counted)
    assert rows[0]["kind"] == "header"
    agent.find_workers()
    last = agent.finish(0.2)
    assert last[-1]["kind"] == "footer"
    assert not psutil.pid_exists(stubborn.pid)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
