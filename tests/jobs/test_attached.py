"""Spans that the hooks of a job's processes leave become those of the launch."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_jobs import cpu_devices, prepare, write

from placebench.errors import JobExit
from placebench.jobs import bridge
from placebench.jobs.adapter import TIMERS
from placebench.jobs.attached import AttachedSpans, Window
from placebench.jobs.nodes import Nodes
from placebench.jobs.registry import ADAPTERS
from placebench.record.job_record import LogRecord
from placebench.record.progress import Progress
from placebench.record.writing import read_jsonl
from placebench.spec.bound import bind
from placebench.spec.devices import Device
from placebench.spec.words import parse_placement

STEPS = (Window(1, 10.0, 20.0), Window(2, 20.0, 30.0))
HERE = os.uname().nodename
KEYS = ("step", "phase", "role", "pool", "device", "start_mono", "end_mono")
OFFSET = time.time() - time.monotonic()
GPUS = tuple(Device(f"GPU-{index}", "gpu", index, "here", "test", 1 << 30) for index in range(2))


def attached(folder: Path, word: str, devices: tuple[Device, ...] = GPUS, framework: str = "verl") -> AttachedSpans:
    bound = bind(parse_placement(word, (len(devices),)), devices)
    nodes = Nodes()
    nodes.clock.offset = OFFSET
    return AttachedSpans(folder, bound, devices, ADAPTERS[framework].timers, nodes)


def leave(
    folder: Path,
    pid: int,
    *lines: dict[str, Any],
    host: str = HERE,
    offset: float = 0.0,
    parent: int = 0,
    **environment: str,
) -> None:
    """The file of a process."""
    head = {
        "kind": "process",
        "pid": pid,
        "ppid": parent,
        "host": host,
        "wall_offset": offset,
        "environment": environment,
    }
    text = "".join(json.dumps(line) + "\n" for line in (head, *lines))
    (folder / f"{host}-{pid}.jsonl").write_text(text)


def span(name: str, start: float, end: float, source: str = "timer") -> dict[str, Any]:
    return {"kind": "span", "name": name, "source": source, "start": start, "end": end}


def device(number: int) -> dict[str, Any]:
    return {"kind": "device", "device": f"GPU-{number}"}


def rows(spans: AttachedSpans, windows: tuple[Window, ...] = STEPS, *, final: bool = True) -> list[tuple[Any, ...]]:
    spans.read(all_files=True)
    return [tuple(row[key] for key in KEYS) for row in spans.rows(windows, final=final)]


def bound(spans: AttachedSpans) -> set[tuple[int, str]]:
    return {(pid, device.id) for pid, device in spans.bound()}


def test_phases_of_the_step_under_way_are_told_before_it_is_whole(tmp_path: Path) -> None:
    read = attached(tmp_path, "split")
    leave(tmp_path, 1, span("step", 10, 20), span("gen", 11, 13), span("gen", 21, 23), span("update_critic", 24, 24.1))
    leave(tmp_path, 3, device(1), span("values", 15, 16, "worker"), span("update_critic", 24, 27, "worker"), RANK="0")
    read.read(all_files=True)
    before = [(one.phase, one.devices, one.start, one.end) for one in read.since(20.0)]
    assert before == [("gen", ("controller",), 21, 23), ("update_critic", ("GPU-1",), 24, 27)]
    assert len(read.rows(STEPS, final=True)) == 7
    assert read.since(20.0) == ()


def test_a_controller_and_its_workers_say_what_ran_where(tmp_path: Path) -> None:
    read = attached(tmp_path, "split")
    leave(tmp_path, 1, span("step", 10, 20), span("init", 1, 2), span("gen", 11, 13), span("update_critic", 14, 14.1))
    leave(tmp_path, 2, span("update_actor", 14, 18, "worker"), device(0), RANK="0")
    leave(tmp_path, 3, device(1), span("values", 5, 6, "worker"), span("update_critic", 14, 17, "worker"), RANK="0")
    # Placed by Ray where it wanted: the pool is that of the role, the device the one that was seen.
    read.read(all_files=True)
    found = read.rows(STEPS, final=True)
    assert [(row["device"], row.get("pid")) for row in found] == [
        ("controller", None), ("GPU-0", None), ("controller", None), ("GPU-1", 3), ("GPU-0", 2),
    ]  # fmt: skip
    assert [tuple(row[key] for key in KEYS) for row in found] == [
        (1, "gen", "rollout", "actor_pool", "controller", 11, 13),
        (1, "gen", "rollout", "actor_pool", "GPU-0", 11, 13),
        (1, "update_critic", "critic", "critic_pool", "controller", 14, 17),  # not the submission alone
        (1, "update_critic", "critic", "critic_pool", "GPU-1", 14, 17),
        (1, "update_actor", "actor", "actor_pool", "GPU-0", 14, 18),
    ]
    assert bound(read) == {(2, "GPU-0"), (3, "GPU-1")}
    assert (read.step(1), read.step(2)) == (STEPS[0], None)
    assert (rows(read), bound(read)) == ([], set())


def test_a_rank_s_work_is_of_its_own_step_where_it_ends_after_the_first_rank_s(tmp_path: Path) -> None:
    read = attached(tmp_path, "standard", framework="trl")
    for rank, (begin, end) in enumerate(((8.0, 9.5), (9.6, 10.8))):
        work = [
            line
            for start in (10, 20)
            for line in (
                span("training_step", start + 1, start + 6),
                span("optimizer_step", start + begin, start + end),
                span("trainer_step", start, start + end + 0.1),
            )
        ]
        leave(tmp_path, rank + 1, device(rank), *work, RANK=str(rank))
    found = {row[:2] + row[4:] for row in rows(read) if row[4] == "GPU-1"}
    assert found == {
        (step, "update_actor", "GPU-1", 10 * step + begin, 10 * step + end)
        for step in (1, 2)
        for begin, end in ((1, 6), (9.6, 10.8))
    }


def test_a_rank_whose_step_is_told_before_that_of_the_first_counts_none(tmp_path: Path) -> None:
    spans = attached(tmp_path, "standard", framework="trl")
    leave(tmp_path, 2, device(1), span("trainer_step", 1.0, 2.0), RANK="1")
    spans.read(all_files=True)
    assert (spans.counts_steps, spans.steps, spans.step(0), spans.step(1)) == (True, 0, None, None)
    leave(tmp_path, 1, device(0), span("trainer_step", 1.0, 2.1), RANK="0")
    spans.read(all_files=True)
    assert (spans.steps, spans.step(0), spans.step(1)) == (1, None, Window(1, 1.0, 2.1))


def test_what_an_engine_says_of_generation_goes_before_who_waits_for_it(tmp_path: Path) -> None:
    read = attached(tmp_path, "standard", framework="trl")
    timers = [span("T.vLLM.generate", 11, 15), span("T._prepare_inputs", 10, 16), span("training_step", 10, 19)]
    leave(tmp_path, 1, device(0), *timers, span("gen", 11.5, 14, "engine"), RANK="0")
    leave(tmp_path, 2, device(1), *timers, RANK="1")
    assert rows(read) == [
        (1, "gen", "rollout", "global_pool", "GPU-0", 11.5, 14),
        (1, "gen", "rollout", "global_pool", "controller", 11, 15),
        (1, "gen", "rollout", "global_pool", "GPU-1", 11, 15),
        *((1, "update_actor", "actor", "global_pool", place, 16, 19) for place in ("GPU-0", "controller", "GPU-1")),
    ]


def test_an_engine_works_where_its_workers_are(tmp_path: Path) -> None:
    spans = attached(tmp_path, "standard")
    leave(tmp_path, 1, span("gen", 11, 15), span("step", 10, 20))
    leave(tmp_path, 2, device(0), span("update_actor", 16, 19, "worker"), RANK="0")
    leave(tmp_path, 3, span("gen", 11.5, 14, "engine"))
    for number in (0, 1):
        leave(tmp_path, 4 + number, device(number), parent=3)
    leave(tmp_path, 6, device(1), parent=2)
    assert rows(spans)[:3] == [
        (1, "gen", "rollout", "global_pool", "GPU-0", 11.5, 14),
        (1, "gen", "rollout", "global_pool", "GPU-1", 11.5, 14),
        (1, "gen", "rollout", "global_pool", "controller", 11, 15),
    ]
    assert bound(spans) == {(2, "GPU-0"), (4, "GPU-0"), (5, "GPU-1"), (6, "GPU-1")}


def test_memory_of_an_engine_is_that_of_its_workers(tmp_path: Path) -> None:
    spans = attached(tmp_path, "standard", GPUS[:1])
    leave(tmp_path, 1, span("gen", 11, 15), span("step", 10, 20))
    leave(tmp_path, 3, span("gen", 11.5, 14, "engine"))
    leave(tmp_path, 4, device(0), parent=3)
    spans.read(all_files=True)
    found = {(row["device"], row.get("pid")) for row in spans.rows(STEPS, final=True) if row["phase"] == "gen"}
    assert found == {("GPU-0", 4), ("controller", None)}


def test_bits_of_an_engine_s_work_are_one_and_what_comes_after_the_last_step_is_left_out(tmp_path: Path) -> None:
    spans = attached(tmp_path, "standard", GPUS[:1], "trl")
    bits = [(11.0, 11.25), (11.26, 11.5), (11.6, 11.7), (31.0, 31.1)]
    lines = [span("gen", *bit, "engine") for bit in bits]
    leave(tmp_path, 1, device(0), *lines, span("optimizer_step", 29.0, 30.0), span("optimizer_step", 30.5, 31.0))
    found = [(row[0], row[1], row[5], row[6]) for row in rows(spans) if row[4] == "GPU-0"]
    assert found == [(1, "gen", 11.0, 11.5), (1, "gen", 11.6, 11.7), (2, "update_actor", 29.0, 30.0)]


def test_bits_of_engines_that_work_beside_each_other_are_one_on_each_device(tmp_path: Path) -> None:
    spans = attached(tmp_path, "standard")
    leave(tmp_path, 1, span("gen", 11, 15), span("step", 10, 20))
    for number in (0, 1):
        bits = [(start + number / 128, start + number / 128 + 0.234375) for start in (11.0, 11.25, 11.5)]
        leave(tmp_path, 2 + number, device(number), *(span("gen", *bit, "engine") for bit in bits))
    found = [(row[4], row[5], row[6]) for row in rows(spans) if row[4] != "controller"]
    assert found == [("GPU-0", 11.0, 11.734375), ("GPU-1", 11.0078125, 11.7421875)]


def test_what_ends_after_its_step_waits_for_the_next_call(tmp_path: Path) -> None:
    read = attached(tmp_path, "standard")
    leave(tmp_path, 1, device(0), span("gen", 11, 12, "engine"), span("gen", 19, 22, "engine"))
    assert rows(read, STEPS[:1], final=False) == []
    assert [row[:2] for row in rows(read, STEPS[1:], final=False)] == [(1, "gen")]
    assert [row[:2] for row in rows(read, ())] == [(2, "gen")]


def test_times_of_another_host_are_on_the_clock_of_this_one(tmp_path: Path) -> None:
    read = attached(tmp_path, "standard")
    leave(tmp_path, 1, device(0), span("gen", 1011, 1012, "engine"), host="other", offset=OFFSET - 1000)
    ((*_, start, end),) = rows(read)
    assert (start, end) == pytest.approx((11, 12))


def test_a_number_that_is_another_processs_now_begins_anew(tmp_path: Path) -> None:
    read = attached(tmp_path, "standard")
    leave(tmp_path, 1, device(0), span("gen", 11, 12, "engine"))
    path = tmp_path / f"{HERE}-1.jsonl"
    first = path.read_text()
    leave(tmp_path, 1, device(1), span("gen", 21, 22, "engine"))
    path.write_text(first + path.read_text())
    read.read(all_files=True)
    assert bound(read) == {(1, "GPU-0"), (1, "GPU-1")}


def test_on_cpu_devices_role_and_rank_say_the_device_and_notes_are_kept(tmp_path: Path) -> None:
    read = attached(tmp_path, "split:2+1", cpu_devices(3))
    leave(tmp_path, os.getpid(), span("values", 11, 12, "worker"), {"kind": "note", "text": "odd"}, RANK="0")
    leave(tmp_path, 2**22 + 1, span("old_log_prob", 11, 12, "worker"), RANK="1")
    leave(tmp_path, 2**22 + 2, span("gen", 11, 12))
    before = os.sched_getaffinity(0)
    try:
        assert {one[4] for one in rows(read)} == {"cpu:2", "cpu:1", "controller", "cpu:0"}
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
    assert bound(read) == {(os.getpid(), "cpu:2"), (2**22 + 1, "cpu:1")}
    assert list(read.notes) == ["odd"]


def test_phases_of_which_no_device_is_known_are_left_out_and_it_is_said(tmp_path: Path) -> None:
    spans = attached(tmp_path, "standard")
    leave(tmp_path, 1, span("step", 10, 20), span("gen", 11, 13))
    assert rows(spans, STEPS[:1]) == []
    assert list(spans.notes) == ["processes do not say which of the 2 devices they work on, so phases are left out"]


def test_of_processes_without_a_rank_it_is_said_how_they_are_told_apart(tmp_path: Path) -> None:
    spans = attached(tmp_path, "standard", cpu_devices(2))
    for pid in (2**22 + 1, 2**22 + 2):
        leave(tmp_path, pid, span("gen", 11, 13), span("step", 10, 20))
    assert rows(spans, STEPS[:1]) == []
    rank = "let each process set RANK in its environment before its first span, 0 in the first"
    assert list(spans.notes) == [
        f"several processes mark steps, and only the steps of one count: to choose it, {rank}",
        f"processes do not say which of the 2 devices they work on, so phases are left out; {rank},"
        " or give --devices cpu:1, one device for all of them",
    ]


def test_lines_that_the_hooks_did_not_write_are_left_out_and_it_is_said(tmp_path: Path) -> None:
    spans = attached(tmp_path, "standard")
    odd = span("gen", 11, float("nan"))
    leave(tmp_path, 1, span("step", 10, 20), {"kind": "span"}, {"no": 1}, odd)
    (tmp_path / "odd.jsonl").write_bytes(b"\xff{\n[1]\n" + json.dumps(span("step", 1, 2)).encode() + b"\n")
    rows(spans, STEPS[:1])
    assert spans.steps == 1
    assert sum("has lines that the hooks did not write" in text for text in spans.notes) == 2


def test_what_ray_has_allotted_is_a_device_of_the_launch_or_noted(tmp_path: Path) -> None:
    spans = attached(tmp_path, "standard")
    for pid, gpus in ((1, ["1"]), (2, ["GPU-0"]), (3, ["7"]), (4, [])):
        head = {"kind": "process", "pid": pid, "host": HERE, "wall_offset": 0.0, "environment": {}, "ray_gpus": gpus}
        head["ray_actor"] = "WorkerDict_0:0" if pid == 1 else None
        (tmp_path / f"{HERE}-{pid}.jsonl").write_text(json.dumps(head) + "\n")
    spans.read(all_files=True)
    assert spans.allotted() == [
        {"pid": 1, "device": "GPU-1", "actor": "WorkerDict_0:0"},
        {"pid": 2, "device": "GPU-0", "actor": None},
    ]
    assert list(spans.notes) == ["Ray has allotted gpu:7, which is not a device of the placement, to a worker"]
    assert spans.allotted() == []


def test_who_sends_weights_is_known_by_what_else_it_does(tmp_path: Path) -> None:
    spans = attached(tmp_path, "learners:1+engines:1", cpu_devices(2))
    lines = [span("update_weights", 8, 9, "worker")]
    leave(tmp_path, 2**22 + 1, *lines, RANK="0")
    spans.read(all_files=True)
    assert bound(spans) == set()
    with (tmp_path / f"{HERE}-{2**22 + 1}.jsonl").open("a") as stream:
        stream.write(json.dumps(span("update_actor", 11, 12, "worker")) + "\n")
        stream.write(json.dumps(span("update_weights", 12, 13, "worker")) + "\n")
    # It is the learner's work there: the engines are elsewhere.
    spans.read(all_files=True)
    found = {(row["phase"], row["role"], row["pool"], row["device"]) for row in spans.rows(STEPS, final=True)}
    assert found == {(phase, "actor", "learners", "cpu:0") for phase in ("update_actor", "update_weights")}
    assert bound(spans) == {(2**22 + 1, "cpu:0")}


@pytest.mark.parametrize("name", ADAPTERS)
def test_timers_name_phases_that_there_are(name: str) -> None:
    assert set(ADAPTERS[name].timers.values()) <= {*TIMERS, ""}


# Two ranks, as torchrun starts them, of a loop of the user's own; one has a trainer that is not as it is known.
_LOOP = """
import multiprocessing, os, sys, time
from placebench_attach import span
together = multiprocessing.Barrier(2)
for rank in ("0", "1"):
    if os.fork() == 0:
        os.environ["RANK"] = rank
        if rank == "1":
            import trl.extras.profiling
        for step in range(int(sys.argv[1])):
            with span("step"):
                together.wait()
                with span("gen"):
                    time.sleep(0.01)
                with span("update_actor"):
                    time.sleep(0.01)
                together.wait()
            if rank == "0":
                print(f"step:{step + 1} - loss:0.5", flush=True)
        os._exit(0)
for _ in range(2):
    os.wait()
"""


@pytest.fixture
def _own_affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("_own_affinity")
def test_a_loop_of_the_users_own_says_its_phases(tmp_path: Path) -> None:
    write(tmp_path / "trl/extras", "profiling.py", "")
    for package in ("trl", "trl/extras"):
        (tmp_path / package / "__init__.py").touch()
    job = [sys.executable, str(write(tmp_path, "loop.py", _LOOP)), "{steps}"]
    trial = prepare(tmp_path, *job, log={"format": "verl"}, steps=3, env={"PYTHONPATH": str(tmp_path)})
    assert bridge.main(str(trial.path)) == JobExit.DONE
    spans = list(read_jsonl(trial.spans))
    for step in (1, 2, 3):
        mine = {(one["phase"], one["device"]) for one in spans if one["step"] == step}
        assert mine == {
            ("step", "controller"),
            *((phase, place) for phase in ("gen", "update_actor") for place in ("cpu:0", "cpu:1", "controller")),
        }
    assert {row["device"] for row in read_jsonl(trial.processes)} == {"cpu:0", "cpu:1"}
    record = LogRecord.read(trial)
    assert record
    assert any("trl.extras.profiling is not as this version of placebench knows it" in one.text for one in record.flags)


def test_a_job_that_is_not_to_be_attached_loads_no_hooks(tmp_path: Path) -> None:
    text = "import sys\nprint('step:1 - loss:0.5', flush=True)\nassert 'placebench_attach.imports' not in sys.modules"
    trial = prepare(tmp_path, sys.executable, str(write(tmp_path, "job.py", text)), steps=1, attach=False)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert not trial.attached.exists()


# Ends its only step when what it has done so far stands in the launch's progress.
_TOLD = """
import os, pathlib, time
from placebench_attach.spans import emit
now = time.monotonic()
emit("gen", "worker", now, now + 0.001)
progress = pathlib.Path(os.environ["PLACEBENCH_SPANS"]).parent / "progress.json"
while '"gen"' not in (told := progress.read_text()):
    time.sleep(0.01)
print(told)
print("step:1 - timing_s/step:0.5")
"""


def test_the_bridge_says_what_has_run_of_a_step_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "_TELL_EVERY_S", 0.0)
    trial = prepare(tmp_path, sys.executable, str(write(tmp_path, "job.py", _TOLD)), steps=1)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    told = Progress.model_validate_json(trial.log.read_text().splitlines()[0])
    assert (told.stage, told.step) == ("step", 1)
    assert [one.phase for one in told.phases] == ["gen"]
    assert told.phases[0].devices
