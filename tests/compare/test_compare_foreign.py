from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from layouts import SPLIT, STANDARD
from observing import of_job
from synthetic_run import GIB, edit_spans, gpu_run

from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.record.writing import append_jsonl, read_jsonl

# Steps of 13 s and 18.3 s, so that phases last for many samples; the measured ones begin at 1000 + 3 + 4 steps.
PACE = 10.0
MEASURED_FROM = {"standard": 1003 + 4 * 13.0, "split": 1003 + 4 * 18.3}


def warnings(
    path: Path,
    name: str,
    edit: Callable[[dict[str, Any]], None],
    *,
    of_user: bool = False,
    **changes: Any,
) -> list[str]:
    """Warnings of one launch after an edit of its samples; the job's allocator reserves all that is in use."""
    layout = {"standard": STANDARD, "split": SPLIT}[name]
    run = gpu_run(**{"rounds": 1, "steps": 5, "layouts": {name: layout}, "pace": lambda *_: PACE} | changes)
    path = of_job(run, path / "run") if of_user else run.write(path / "run")

    def reserve(span: dict[str, Any]) -> None:
        if span["device"] != "controller":
            span["memory_reserved_bytes"] = int((0.5 + 0.25 * int(span["device"][-1])) * GIB)

    edit_spans(path, name, reserve)
    (file,) = path.glob("trials/*/devices.jsonl")
    lines = list(read_jsonl(file))
    with file.open("w") as stream:
        for line in lines:
            if line["kind"] == "sample":
                edit(line)
            append_jsonl(stream, line)
    return list(caveats(compare_run(path)))


def add_memory(since: float, until: float = float("inf")) -> Callable[[dict[str, Any]], None]:
    def edit(line: dict[str, Any]) -> None:
        if line["device"] == "cpu:0" and since <= line["mono"] < until:
            line["memory_bytes"] += 3 * GIB

    return edit


@pytest.mark.parametrize("name", ["standard", "split"])
def test_memory_that_comes_in_the_measured_steps(tmp_path: Path, name: str) -> None:
    """Also on a device that is alone in its pool, and has no peers."""
    step = {"standard": 13.0, "split": 18.3}[name]
    assert warnings(tmp_path, name, add_memory(MEASURED_FROM[name] + step)) == [
        f"round 1 {name}: gpu:0 had 3.00 GiB more in use in 2 of 3 measured steps than in others, which the job did not"
        " take: another process"
    ]


def test_memory_that_comes_and_goes_in_the_measured_steps(tmp_path: Path) -> None:
    start = MEASURED_FROM["standard"]
    assert warnings(tmp_path, "standard", add_memory(start + 14.0, start + 26.0)) == [
        "round 1 standard: gpu:0 had 3.00 GiB more in use in 1 of 3 measured steps than in others, which the job did"
        " not take: another process"
    ]


def test_memory_that_came_while_the_job_started(tmp_path: Path) -> None:
    assert warnings(tmp_path, "standard", add_memory(1001.0)) == [
        "round 1 standard: gpu:0 had 3.00 GiB more in use than the other devices of its pool, which the job did not"
        " take: another process"
    ]


def test_memory_that_the_job_takes_or_that_is_there_for_a_moment_is_its_own(tmp_path: Path) -> None:
    start = MEASURED_FROM["standard"]
    assert warnings(tmp_path / "moment", "standard", add_memory(start + 14.0, start + 18.0)) == []

    def only_in_gen(line: dict[str, Any]) -> None:
        if line["device"] == "cpu:0" and (line["mono"] - start) % 13.0 < 5.1:
            line["memory_bytes"] += 3 * GIB

    assert warnings(tmp_path / "engine", "standard", only_in_gen) == []


def test_readings_that_miss_when_most_was_reserved_tell_of_nobody_else(tmp_path: Path) -> None:
    start = MEASURED_FROM["standard"]

    def swing(line: dict[str, Any]) -> None:
        step, since = divmod(line["mono"] - start, 13.0)
        if line["device"] == "cpu:0" and since >= 5.1 and round(line["mono"] * 5) % 2:
            line["memory_bytes"] += int(2 * (1 + step) * GIB)

    assert warnings(tmp_path, "standard", swing) == []


def test_the_learner_that_sends_weights_has_connections_of_its_own(tmp_path: Path) -> None:
    roles = dict.fromkeys(("actor", "ref", "critic", "reward"), "learner_pool") | {"rollout": "engine_pool"}
    pools = {"learner_pool": ("cpu:0", "cpu:1"), "engine_pool": ("cpu:2",)}
    layout = {"split": replace(SPLIT, pools=pools, roles=roles)}
    assert warnings(tmp_path, "split", add_memory(1001.0), layouts=layout) == []


def load(value: float) -> Callable[[dict[str, Any]], None]:
    """A load of cpu:1 in the first 9 s of each step, when it has no work in `split`, nor in the 1.1 s before."""

    def edit(line: dict[str, Any]) -> None:
        since = (line["mono"] - MEASURED_FROM["split"]) % 18.3
        if line["device"] == "cpu:1" and since < 9.0:
            line["util"] = value

    return edit


def test_load_while_the_job_has_no_work_on_the_device(tmp_path: Path) -> None:
    assert warnings(tmp_path, "split", load(0.6)) == [
        "round 1 split: gpu:1 was 53 % busy while no phase of the job ran on it: another process"
    ]


def test_load_that_a_framework_may_make_between_its_phases(tmp_path: Path) -> None:
    said = "round 1 split: gpu:1 was 53 % busy while no phase of the job ran on it: work between its phases, or another"
    assert f"{said} process" in warnings(tmp_path, "split", load(0.6), of_user=True)


def test_little_load_and_what_is_left_of_a_phase_tell_nothing(tmp_path: Path) -> None:
    assert warnings(tmp_path / "little", "split", load(0.1)) == []

    def late(line: dict[str, Any]) -> None:
        since = (line["mono"] - MEASURED_FROM["split"]) % 18.3
        if line["device"] == "cpu:1" and (since < 0.6 or since > 17.2):
            line["util"] = 1.0

    assert warnings(tmp_path / "late", "split", late) == []


def test_samples_without_a_load_tell_nothing_of_it(tmp_path: Path) -> None:
    def drop(line: dict[str, Any]) -> None:
        del line["util"]

    assert [line for line in warnings(tmp_path, "split", drop) if "another process" in line] == []


def test_a_span_that_never_ended_is_not_taken_for_idle_time(tmp_path: Path) -> None:
    """What an engine does for a step that the job did not wait for."""

    def edit(line: dict[str, Any]) -> None:
        if line["device"] == "cpu:0" and line["mono"] > MEASURED_FROM["split"] + 2 * 18.3 + 13.0:
            line["util"] = 1.0

    cut = replace(SPLIT, times={**SPLIT.times, "update_actor": (1.31, 1.32), "update_weights": (1.32, 1.33)})
    assert warnings(tmp_path, "split", edit, layouts={"split": cut}) == []


def test_processes_beside_each_other_are_told_of_placebench_s_own_job_alone(tmp_path: Path) -> None:
    def three(line: dict[str, Any]) -> None:
        if line["device"] == "cpu:0":
            line["compute_processes"] = 3

    told = "round 1 standard: gpu:0 had 2 processes beside the job's own in the measured steps: another job"
    assert told in warnings(tmp_path / "own", "standard", three)
    # How many of them a framework starts on a GPU is not known: a trainer and its engine are two.
    assert [
        line for line in warnings(tmp_path / "user", "standard", three, of_user=True) if "another job" in line
    ] == []
