import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import Layout
from observing import of_job
from rich.console import Console
from showing import write_report
from synthetic_run import GIB, GPU_WORKLOAD, SyntheticRun, gpu_run

from placebench.compare.comparison import compare_run
from placebench.compare.explain.phase_times import step_model
from placebench.compare.explain.suggestion import NOTHING_LEFT, Suggestion, suggest
from placebench.predict.step import StepModel
from placebench.predict.walk import walk
from placebench.record.folder import Status
from placebench.report.schema import Summary
from placebench.report.show import show
from placebench.spec.placement import Overlap
from placebench.spec.stepgraph import graph_among
from placebench.spec.words import parse_placement
from placebench.spec.workload_reading import build_workload

# Seconds of each phase on n devices: fixed + divided / n.
PHASES = {
    "gen": (0.8, 0.4),
    "old_log_prob": (0.05, 0.2),
    "ref": (0.05, 0.2),
    "values": (0.04, 0.04),
    "adv": (0.01, 0.0),
    "update_critic": (0.15, 0.2),
    "update_actor": (0.3, 1.2),
    "update_weights": (0.01, 0.0),
}
GAP_S = 0.02
DEVICES = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")


def layout(word: str, phases: Mapping[str, tuple[float, float]] = PHASES) -> Layout:
    """What a placement of four devices would measure if its phases scale as told."""
    placement = parse_placement(word, [4])
    graph = graph_among(list(phases))
    pools = {phase.name: placement.pool_of(phase.role) if phase.role else None for phase in graph}
    seconds = {
        name: phases[name][0] + phases[name][1] / pool.size if pool else phases[name][0] for name, pool in pools.items()
    }
    busy = {name: pool.name if pool else "" for name, pool in pools.items()}
    times = walk(graph, seconds, busy, placement.overlap)
    bound, left = {}, list(DEVICES)
    for pool in placement.pools:
        bound[pool.name], left = tuple(left[: pool.size]), left[pool.size :]
    roles = {role.value: pool for role, pool in placement.roles.items()}
    end = max(end for _, end in times.values()) + GAP_S
    return Layout(bound, roles, times, end, overlap=placement.overlap.value)


def suggestion(
    tmp_path: Path, *words: str, batch: int = 96, phases: Mapping[str, tuple[float, float]] = PHASES
) -> Suggestion:
    workload = {"model": "tiny", "batch": {"size": batch, "mini_batch_size": batch}}
    layouts = {word: layout(word, phases) for word in words}
    run = SyntheticRun(layouts, rounds=2, workload=workload, pace=lambda *_: 1.0)
    found = suggest(compare_run(run.write(tmp_path / "run")))
    assert found is not None
    return found


def test_idle_critic_devices_are_given_to_the_actor(tmp_path: Path) -> None:
    found = suggestion(tmp_path, "standard", "split")
    assert found.placement == "split:3+1"
    # standard: 0.9 + 0.1 + 0.1 + 0.05 + 0.01 + 0.2 + 0.6 + 0.01 + 0.02; split:3+1: 0.933 + 2 × 0.1167 + 0.01 + 0.7 + …
    assert found.text == (
        "Try next: split:3+1. Expected: about 1.91 s a step, against 1.99 s in standard, because in split the devices"
        " of critic_pool wait 86 % of the step and 1 device can be spared. This is a rough forecast: one of its pools"
        " is smaller or larger than any that was measured."
    )
    expected = {one.placement: one for one in found.forecasts}
    assert [expected["standard"].expected_s, expected["standard"].measured_s] == pytest.approx([1.99, 1.99])
    by_hand = 0.8 + 0.4 / 3 + 2 * (0.05 + 0.2 / 3) + 0.01 + 0.7 + 0.01 + GAP_S
    assert expected["split:3+1"].expected_s == pytest.approx(by_hand)
    assert expected["split:3+1"].measured_s is None


def test_the_suggestion_stands_in_every_form_of_the_report(tmp_path: Path) -> None:
    workload = {"model": "tiny", "batch": {"size": 96, "mini_batch_size": 96}}
    run = SyntheticRun({word: layout(word) for word in ("standard", "split")}, rounds=2, workload=workload)
    paths = write_report(run.write(tmp_path / "run"))
    console = Console(file=io.StringIO(), width=200)
    show(tmp_path / "run", console, verbose=True)
    assert isinstance(console.file, io.StringIO)
    for text in (paths.markdown.read_text(), paths.html.read_text(), console.file.getvalue()):
        assert "Try next: split:3+1. Expected: about 1.9" in text
    assert re.search(r"^\| split:3\+1 \| 1\.9\d s \| – \| – \|$", paths.markdown.read_text(), re.MULTILINE)
    told = Summary.model_validate_json(paths.summary.read_text()).suggestion
    assert told is not None
    assert told.placement == "split:3+1"


def test_a_batch_that_does_not_divide_is_never_suggested(tmp_path: Path) -> None:
    found = suggestion(tmp_path, "standard", "split", batch=64)
    assert found.placement is None
    assert found.text == f"Measured: standard, split. {NOTHING_LEFT}"


def test_what_does_not_fit_is_not_said_to_have_been_tried(tmp_path: Path) -> None:
    class SmallGpus(SyntheticRun):
        def _devices(self) -> list[dict[str, Any]]:
            small = {"kind": "gpu", "name": "NVIDIA H200", "memory_bytes": 100 * GIB, "cores": []}
            return [device | small for device in super()._devices()]

    batch = {"size": 96, "mini_batch_size": 96}
    workload = {"model": "qwen2.5-7b", "precision": "bfloat16", "sharding": "shard", "batch": batch}
    layouts = {word: layout(word) for word in ("standard", "split")}
    run = SmallGpus(layouts, rounds=2, workload=workload, pace=lambda *_: 1.0).write(tmp_path / "run")
    found = suggest(compare_run(run))
    assert found is not None
    assert (found.placement, found.text) == (
        None,
        "Measured: standard, split. No other standard or split placement fits these devices and this batch.",
    )


def test_what_was_tried_is_not_suggested_again(tmp_path: Path) -> None:
    found = suggestion(tmp_path, "standard", "split", "split:3+1")
    assert found.placement is None
    assert found.text.startswith("No other placement is expected to beat split:3+1. The next best is split:1+3: about")
    assert [one.placement for one in found.forecasts if one.measured_s is None] == ["split:1+3"]


def test_what_the_others_tell_of_a_placement_stands_beside_what_it_took(tmp_path: Path) -> None:
    layouts = {word: layout(word) for word in ("standard", "split", "split:3+1")}
    workload = {"model": "tiny", "batch": {"size": 96, "mini_batch_size": 96}}
    run = SyntheticRun(layouts, rounds=2, workload=workload, pace=lambda *_: 1.0)
    paths = write_report(run.write(tmp_path / "run"))
    told = Summary.model_validate_json(paths.summary.read_text()).suggestion
    assert told is not None
    # Phases scale as a + b/n there, which any two sizes tell.
    for one in told.forecasts[:3]:
        assert one.left_out_s == pytest.approx(one.measured_s, rel=1e-3)
    assert "| placement | expected | from the others | measured |" in paths.markdown.read_text()


def test_a_placement_with_phases_that_nothing_tells_of_has_no_forecast(tmp_path: Path) -> None:
    # An engine sleeps in standard; nobody measured how long that takes, and the peaks of this GPU are not known.
    words = ("standard", "learners:2+engines:2", "learners:3+engines:1")
    workload = GPU_WORKLOAD | {"rollout": {"backend": "vllm"}, "batch": {"size": 96, "mini_batch_size": 96}}
    layouts = {word: layout(word) for word in words}
    run = gpu_run(layouts=layouts, rounds=2, workload=workload, pace=lambda *_: 1.0, device_name="NVIDIA L40S")
    found = suggest(compare_run(run.write(tmp_path / "run")))
    assert found is not None
    assert [one.placement for one in found.forecasts if one.measured_s] == ["learners:2+engines:2", words[2]]


def test_blocking_placements_are_said_to_gain_by_overlap(tmp_path: Path) -> None:
    heavy_critic = PHASES | {"gen": (0.1, 0.1), "values": (0.2, 0.2), "update_critic": (0.5, 0.4)}
    found = suggestion(tmp_path, "standard", "split/overlap=none", phases=heavy_critic)
    assert found.placement == "split"


def test_one_size_of_pools_is_said_to_tell_nothing(tmp_path: Path) -> None:
    found = suggestion(tmp_path, "standard")
    assert found.placement is None
    assert found.text == (
        "No suggestion yet: every phase was measured on one number of devices only. Add a placement whose pools have"
        " other sizes, such as split, to see how phases scale."
    )


@pytest.mark.parametrize(("word", "other"), [("standard", "split"), ("split", "standard")])
def test_replicas_are_said_to_be_left_aside(tmp_path: Path, word: str, other: str) -> None:
    layouts = {word: layout(word)} | {
        name: replace(layout(name), scaling="strong") for name in ("ddp:1", "ddp:2", "ddp:4")
    }
    found = suggest(compare_run(SyntheticRun(layouts, rounds=2).write(tmp_path / "run")))
    assert found is not None
    assert found.text == (
        "No suggestion yet: every phase was measured on one number of devices only, not counting replicas. Add"
        f" a placement whose pools have other sizes, such as {other}, to see how phases scale."
    )


def test_replicas_alone_are_said_to_tell_nothing(tmp_path: Path) -> None:
    layouts = {name: replace(layout(name), scaling="strong") for name in ("ddp:1", "ddp:2")}
    path = SyntheticRun(layouts, rounds=2).write(tmp_path / "run")
    found = suggest(compare_run(path))
    assert found is not None
    assert (found.placement, found.text) == (
        None,
        "No suggestion: only replicas were measured, and their phases do not tell how long other placements take.",
    )
    failed = dict.fromkeys([(round_, name) for round_ in (1, 2) for name in layouts], Status.FAILED)
    assert suggest(compare_run(SyntheticRun(layouts, rounds=2, statuses=failed).write(tmp_path / "none"))) is None


@pytest.mark.parametrize("others", [(), ("standard",)])
def test_what_other_replicas_tell_of_one_stands_beside_what_it_took(tmp_path: Path, others: tuple[str, ...]) -> None:
    replicas = ("ddp:1", "ddp:2", "ddp:4")
    layouts = {word: layout(word) for word in others}
    layouts |= {name: replace(layout(name), scaling="strong") for name in replicas}
    workload = {"model": "tiny", "batch": {"size": 96, "mini_batch_size": 96}}
    run = SyntheticRun(layouts, rounds=2, workload=workload, pace=lambda *_: 1.0).write(tmp_path / "run")
    found = suggest(compare_run(run))
    assert found is not None
    told = [one for one in found.forecasts if one.placement in replicas]
    assert [one.placement for one in found.forecasts] == [*others, *replicas]
    for one in told:
        assert one.left_out_s == pytest.approx(one.measured_s, rel=0.01)


def test_a_workload_of_another_version_is_said_to_be_unknown(tmp_path: Path) -> None:
    layouts = {"standard": layout("standard"), "split": layout("split")}
    run = SyntheticRun(layouts, rounds=1, workload={"model": "tiny", "later_key": 1})
    found = suggest(compare_run(run.write(tmp_path / "run")))
    assert found == Suggestion(None, "No suggestion: this version cannot plan the run's workload and devices.")


def model(tmp_path: Path) -> StepModel:
    """What a run of two layouts tells of others."""
    layouts = {"standard": layout("standard"), "split": layout("split")}
    run = SyntheticRun(layouts, rounds=1, pace=lambda *_: 1.0).write(tmp_path / "run")
    known = step_model(compare_run(run).placements, build_workload({"model": "tiny", "batch": {"size": 64}}))
    assert known is not None
    return known


def test_the_forecast_walks_the_graph_as_the_controller_does(tmp_path: Path) -> None:
    known = model(tmp_path)
    assert known.phases.per_node == 4
    for word in ("split:3+1", "split:1+3", "split:3+1/overlap=none", "split:3+1/overlap=updates"):
        assert known.step(parse_placement(word, [4])).seconds == pytest.approx(layout(word).step_s)
    assert known.covers(parse_placement("split", [4]))
    assert not known.covers(parse_placement("split:3+1", [4]))


def test_engines_that_run_ahead_are_bound_by_the_slower_side(tmp_path: Path) -> None:
    known = model(tmp_path)
    # Engines: 0.8 + 0.4 / 2. Learners: 0.15 + 0.15 + 0.06 + 0.01 + 0.25 + 0.9, one after the other in one pool,
    # which sends the weights in 0.01.
    ahead = parse_placement("learners:2+engines:2/staleness=2", [4])
    assert known.step(ahead).seconds == pytest.approx(1.52 + 0.01 + GAP_S)
    serial = parse_placement("learners:2+engines:2", [4])
    assert known.step(serial).seconds == pytest.approx(1.0 + 1.52 + 0.01 + GAP_S)


@given(
    st.lists(st.floats(0.0, 5), min_size=8, max_size=8),
    st.lists(st.sampled_from("ab"), min_size=8, max_size=8),
    st.sampled_from(list(Overlap)),
)
def test_a_walk_keeps_every_rule(seconds: list[float], pools: list[str], overlap: Overlap) -> None:
    graph = graph_among(list(PHASES))
    names = [phase.name for phase in graph]
    pool_of = dict(zip(names, pools, strict=True)) | {"adv": ""}
    times = walk(graph, dict(zip(names, seconds, strict=True)), pool_of, overlap)
    assert times.keys() == set(names)
    for phase in graph:
        assert all(times[name][1] <= times[phase.name][0] for name in phase.after)
    for first in names:
        for second in names:
            apart = times[first][1] <= times[second][0] or times[second][1] <= times[first][0]
            assert apart or first == second or (pool_of[first] != pool_of[second] and overlap is not Overlap.NONE)


@pytest.mark.parametrize("run", [gpu_run(rounds=2, device_name="NVIDIA H200"), SyntheticRun(rounds=2)])
def test_two_placements_tell_each_other_by_what_they_do(tmp_path: Path, run: SyntheticRun) -> None:
    found = suggest(compare_run(run.write(tmp_path / "run")))
    assert found is not None
    left_out = {one.placement: one.left_out_s for one in found.forecasts if one.measured_s is not None}
    assert set(left_out) == {"standard", "split"}
    assert all(left_out.values())


def test_placements_of_a_job_of_the_users_tell_of_each_other_what_sizes_tell(tmp_path: Path) -> None:
    layouts = {word: layout(word) for word in ("standard", "split", "split:3+1")}
    run = of_job(SyntheticRun(layouts, rounds=2, pace=lambda *_: 1.0), tmp_path / "run")
    found = suggest(compare_run(run))
    assert found is not None
    assert found.text == "What other placements would take: placebench predict --from run --placements …"
    for one in found.forecasts:
        assert one.left_out_s == pytest.approx(one.measured_s, rel=0.01)
    # One size of pools tells nothing of another where nobody knows what its phases compute.
    two = of_job(SyntheticRun({word: layout(word) for word in ("standard", "split")}, rounds=2), tmp_path / "two")
    assert suggest(compare_run(two)) is None
