"""Which processes a role has, and what memory NVML shows of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layouts import STANDARD
from observing import at, move, of_job, only, told
from synthetic_run import GIB, edit_spans, gpu_run

from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.record.writing import append_jsonl
from placebench.report.summary import summarize
from placebench.report.tables import observed_grid


def with_processes(
    path: Path, spans: Mapping[tuple[str, str], int], shown: Mapping[str, Mapping[int, int | None]]
) -> Path:
    """Say which processes worked, by role and device, and which of them NVML shows on each device with their memory."""
    path = of_job(gpu_run(layouts={"standard": STANDARD}, rounds=1), path)

    def name(span: dict[str, Any]) -> None:
        if (span["role"], span["device"]) in spans:
            span["pid"] = spans[span["role"], span["device"]]

    edit_spans(path, "standard", name)
    (file,) = path.glob("trials/*/devices.jsonl")
    with file.open("a") as stream:
        for mono in (1004.0, 1005.0):
            for device, processes in shown.items():
                found = [{"pid": pid, "memory_bytes": memory} for pid, memory in processes.items()]
                append_jsonl(stream, {"kind": "processes", "mono": mono, "device": device, "processes": found})
    return path


def memory(path: Path) -> dict[tuple[str, str], tuple[float, tuple[str, ...]]]:
    seen = only(path).arrangements[0].seen
    rows = zip(seen["role"], seen["device"], seen["memory_bytes"], seen["memory_with"], strict=True)
    return {(role, device): (found / GIB, others) for role, device, found, others in rows if found == found}


def test_memory_is_of_the_processes_of_a_role_and_says_who_else_these_are(tmp_path: Path) -> None:
    roles = ("actor", "rollout", "ref", "critic", "reward")
    spans = {(role, device): pid for role in roles for device, pid in (("cpu:0", 10), ("cpu:1", 20))}
    spans |= {("critic", "cpu:0"): 11, ("rollout", "cpu:1"): 12}
    shown = {"cpu:0": {10: 8 * GIB, 11: 4 * GIB, 99: 2 * GIB}, "cpu:1": {12: 3 * GIB, 20: GIB}}
    path = with_processes(tmp_path / "run", spans, shown)  # 99 is another job's
    found = memory(path)
    assert found["critic", "cpu:0"] == (4.0, ())
    assert found["rollout", "cpu:1"] == (3.0, ())
    assert found["actor", "cpu:0"] == (8.0, ("rollout", "ref", "reward"))
    # The rollout has a process of its own there, and the critic is in the process of the others.
    assert found["ref", "cpu:1"] == (1.0, ("actor", "critic", "reward"))


def test_who_sends_an_engine_its_weights_is_not_the_engine(tmp_path: Path) -> None:
    spans = {("actor", "cpu:0"): 10, ("ref", "cpu:0"): 10, ("rollout", "cpu:0"): 11}
    path = with_processes(tmp_path / "run", spans, {"cpu:0": {10: 8 * GIB, 11: 4 * GIB}})

    def send(span: dict[str, Any]) -> None:
        if span["phase"] in ("update_weights", "sleep", "wake_up") and span["device"] == "cpu:0":
            span["pid"] = 10

    edit_spans(path, "standard", lambda span: span.update(role=None) if "pid" not in span else send(span))
    assert memory(path) == {
        ("actor", "cpu:0"): (8.0, ("ref",)),
        ("rollout", "cpu:0"): (4.0, ()),
        ("ref", "cpu:0"): (8.0, ("actor",)),
    }
    rows = observed_grid(summarize(compare_run(path))).rows
    assert [(row[1], row[4]) for row in rows] == [
        ("actor", "8.00 GiB with ref"),
        ("rollout", "4.00 GiB"),
        ("ref", "8.00 GiB with actor"),
    ]


def test_a_context_elsewhere_is_memory_without_work(tmp_path: Path) -> None:
    path = with_processes(tmp_path / "run", {("critic", "cpu:0"): 11}, {"cpu:1": {11: GIB // 2}})
    edit_spans(path, "standard", lambda span: span.update(role=None) if span.get("role") != "critic" else None)
    edit_spans(path, "standard", move(at({"critic": "cpu:0"})))
    seen = only(path).arrangements[0].seen
    assert list(zip(seen["role"], seen["device"], seen["memory_bytes"] / GIB, strict=True)) == [
        ("critic", "cpu:0", 0.5),  # the device's: NVML shows nothing of its process there
        ("critic", "cpu:1", 0.5),
    ]
    assert (seen["share"] > 0).tolist() == [True, False]


def test_what_ray_has_allotted_stands_beside_what_was_seen(tmp_path: Path) -> None:
    path = with_processes(tmp_path / "run", {("critic", "cpu:0"): 11, ("actor", "cpu:1"): 12}, {})
    edit_spans(path, "standard", lambda span: span.update(role=None) if "pid" not in span else None)
    (trial,) = path.glob("trials/*")
    with (trial / "ray.jsonl").open("w") as stream:
        for pid, device in ((11, "cpu:0"), (12, "cpu:0"), (99, "cpu:1")):  # 99 has no span
            append_jsonl(stream, {"pid": pid, "device": device, "actor": None})
    grid = observed_grid(summarize(compare_run(path)))
    assert grid.header[-1] == "allotted by Ray"
    assert [(row[1], row[3], row[-1]) for row in grid.rows] == [
        ("actor", "gpu:1 26 %, gpu:0 0 %", "gpu:0"),
        ("critic", "gpu:0 23 %", "gpu:0"),
    ]
    assert [line for line in caveats(compare_run(path)) if "Ray" in line] == [
        "standard: Ray has allotted gpu:0 to the workers of actor; seen at work on gpu:1."
    ]


def test_without_spans_the_processes_are_what_is_seen(tmp_path: Path) -> None:
    path = with_processes(tmp_path / "run", {}, {"cpu:0": {7: GIB, 99: GIB}, "cpu:1": {8: None}})
    edit_spans(path, "standard", lambda span: span.update(role=None))
    (trial,) = path.glob("trials/*")
    with (trial / "processes.jsonl").open("w") as stream:
        append_jsonl(stream, {"pid": 6, "device": "controller", "pool": None, "rank": None, "threads": None})
        append_jsonl(stream, {"pid": 7, "device": "cpu:0", "pool": None, "rank": None, "threads": None})
    grid = observed_grid(summarize(compare_run(path)))
    assert grid.rows == (("standard", "unknown", "gpu:0", "1.00 GiB"),)
    assert told(path) == []
