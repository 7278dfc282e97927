"""Where roles were seen, beside where they were asked to be."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import SPLIT, STANDARD, Layout
from observing import at, move, of_job, only, told
from showing import printed
from synthetic_run import SyntheticRun, edit_spans, read_json

from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.record.folder import Trial
from placebench.record.job_record import LogFlag, LogRecord
from placebench.record.writing import append_jsonl, write_json
from placebench.report.observed_plot import roles_on_devices
from placebench.report.summary import summarize
from placebench.report.tables import device_grid, observed_grid
from placebench.report.time_tables import device_wait_grid

FOUR = tuple(f"cpu:{index}" for index in range(4))
NO_LOAD = {device: {"util": None} for device in FOUR}
POOL_OF = {"cpu:0": "actor_pool", "cpu:1": "actor_pool", "cpu:2": "actor_pool", "cpu:3": "critic_pool"}
WIDE = Layout({"actor_pool": FOUR[:3], "critic_pool": FOUR[3:]}, SPLIT.roles, SPLIT.times, SPLIT.step_s)


def edit_one(file: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the spans of one launch in place."""
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    for span in spans:
        edit(span)
    file.write_text("".join(json.dumps(span) + "\n" for span in spans))


@pytest.mark.parametrize(("name", "layout"), [("standard", STANDARD), ("split", SPLIT), ("split:3+1", WIDE)])
def test_roles_where_they_were_asked_to_be_give_no_warning(tmp_path: Path, name: str, layout: Layout) -> None:
    run = SyntheticRun(layouts={name: layout}, rounds=2)
    assert told(run.write(tmp_path / "own")) == told(of_job(run, tmp_path / "job")) == []
    # Nobody could have traced its kernels, nor said in a span how it starts.
    summary = summarize(compare_run(tmp_path / "job"))
    assert device_wait_grid(summary).notes[-1].startswith("A dash: not known, because kernels are not traced in a job")
    assert [launch.startup_s for launch in summary.launches] == [None, None]


def test_what_hooks_and_logs_say_is_said_once_with_whose_it_is(tmp_path: Path) -> None:
    layouts = {"standard": STANDARD, "split": SPLIT}
    path = of_job(SyntheticRun(layouts=layouts, rounds=3), tmp_path / "job")

    def log(launch: str, *flags: tuple[str, str]) -> None:
        said = tuple(LogFlag(name=name, text=text) for name, text in flags)
        LogRecord(framework="verl", format="verl", flags=said).write(Trial(path / "trials" / launch))

    trap = ("trap", "of the framework")
    log("01-standard", trap, ("spans", "hook a"), ("restart", "at step 3"), ("restart", "at step 5"))
    log("02-standard", trap, ("spans", "hook a"), ("spans", "hook b"), ("cut-off", "a step"))
    log("03-standard", trap, ("cut-off", "a step"), ("restart", "at step 4"))
    log("01-split", trap, ("spans", "process 12 ends"), ("cut-off", "a step"))
    log("02-split", trap, ("restart", "at step 6"), ("restart", "at step 7"))
    log("03-split", trap, *(("spans", f"process {pid} ends") for pid in (13, 14, 15)))
    names = ("hook", "process", "more like", "trap", "restart", "cut-off")
    found = [line for line in caveats(compare_run(path)) if any(name in line for name in names)]
    assert found == [
        "standard in rounds 1–2: hook a",
        "round 2 standard: hook b",
        "round 1 split: process 12 ends",
        "round 3 split: process 13 ends",
        "round 3 split: process 14 ends",
        "and 1 more like these: see log.json of split in round 3",
        "trap: of the framework",
        "round 1 standard: restart: at step 3",
        "round 1 standard: restart: at step 5",
        "round 3 standard: restart: at step 4",
        "restart: and 2 more like these: see log.json of split in round 2",
        "standard in rounds 2–3, split in round 1: cut-off: a step",
    ]


def test_training_has_failed_where_a_job_has_logged_it(tmp_path: Path) -> None:
    path = of_job(SyntheticRun(layouts={"standard": STANDARD}, rounds=2), tmp_path / "job")

    def log(launch: str, metrics: Callable[[int], dict[str, float]]) -> None:
        file = path / "trials" / launch / "steps.jsonl"
        found = [json.loads(line) for line in file.read_text().splitlines()]
        with file.open("w") as stream:
            for row in found:
                append_jsonl(stream, row | {"metrics": row["metrics"] | metrics(row["step"])})

    def failed() -> list[str]:
        return [line for line in caveats(compare_run(path)) if "failed" in line]

    log("01-standard", lambda step: {"actor/pg_loss": 0.5, "actor/grad_norm": 0.5} if step > 4 else {})
    assert failed() == []  # verl's actor does not train as long as the critic warms up
    log("01-standard", lambda step: {"loss": math.nan, "actor/grad_norm": math.nan})
    log("02-standard", lambda step: {"train/loss": 0.5, "grad_norm": math.inf} if step == 5 else {})
    told = "although its times were measured."
    assert failed() == [
        f"round 1 standard: loss is nan in measured step 3 and 3 later steps: training has failed, {told}",
        f"round 2 standard: grad_norm is inf in measured step 5: training failed there, {told}",
    ]


def test_shares_are_of_the_measured_steps(tmp_path: Path) -> None:
    path = SyntheticRun(layouts={"split": SPLIT}, rounds=1).write(tmp_path / "run")
    seen = only(path).arrangements[0].seen
    shares = dict(zip(seen["role"], seen["share"], strict=True))
    assert list(shares) == ["actor", "rollout", "ref", "critic", "reward"]
    assert shares["rollout"] == pytest.approx((0.9 + 0.01) / 1.83)
    assert shares["critic"] == pytest.approx((0.2 + 0.4) / 1.83)
    assert list(seen["device"]) == ["cpu:0"] * 3 + ["cpu:1"] * 2
    rows = observed_grid(summarize(compare_run(path))).rows
    assert rows[1] == ("split", "rollout", "actor_pool (1)", "cpu:0 50 %")


def test_which_gpus_a_jobs_pool_has_is_the_frameworks_choice(tmp_path: Path) -> None:
    path = of_job(SyntheticRun(layouts={"split:3+1": WIDE}, rounds=2), tmp_path / "run")
    turned = {"cpu:0": "cpu:3", "cpu:3": "cpu:0"}
    (first,) = path.glob("trials/*1-split*")
    edit_one(first / "spans.jsonl", move(lambda _, device: turned.get(device, device)))
    assert told(path) == []
    assert [one.rounds for one in only(path).arrangements] == [(1,), (2,)]
    # So what pools have to do with is right in both.
    values = only(path).launch_values
    assert values["hidden"].tolist() == pytest.approx((0.614 / 1.008) * np.array([1.004, 1.008]), rel=0.01)
    assert values["wait/critic_pool/gen"].nunique() == 2
    rows = observed_grid(summarize(compare_run(path))).rows
    assert rows[3] == ("split:3+1 (round 1)", "critic", "critic_pool (1)", "cpu:0 33 %")
    assert rows[8] == ("split:3+1 (round 2)", "critic", "critic_pool (1)", "cpu:3 33 %")


def test_devices_are_told_by_pool_and_rounds_where_launches_differ(tmp_path: Path) -> None:
    loads = {"cpu:0": 0.25, "cpu:1": 0.25, "cpu:2": 0.25, "cpu:3": 0.75}
    samples: dict[str, dict[str, float | None]] = {device: {"util": load} for device, load in loads.items()}
    run = SyntheticRun(layouts={"standard": STANDARD, "split:3+1": WIDE}, rounds=3, device_samples=samples)
    path = of_job(run, tmp_path / "run")
    alike = device_grid(summarize(compare_run(path)))
    assert [row[:3] for row in alike.rows[2:]] == [("split:3+1", name, pool) for name, pool in POOL_OF.items()]
    turned = {"cpu:0": "cpu:3", "cpu:3": "cpu:0"}
    (second,) = path.glob("trials/*2-split*")
    edit_one(second / "spans.jsonl", move(lambda _, device: turned.get(device, device)))
    summary = summarize(compare_run(path))
    grid = device_grid(summary)
    load = grid.header.index("load")
    assert [(*row[:3], row[load]) for row in grid.rows[2:]] == [
        ("split:3+1 (rounds 1,3)", "cpu:0–2", "actor_pool", "25 %"),
        ("split:3+1 (rounds 1,3)", "cpu:3", "critic_pool", "75 %"),
        ("split:3+1 (round 2)", "cpu:1–3", "actor_pool", "42 %"),
        ("split:3+1 (round 2)", "cpu:0", "critic_pool", "25 %"),
    ]
    assert grid.rows[:2] == alike.rows[:2]
    assert "mean load" in grid.notes[0]
    # What the samples say of a phase is of the devices that its pool had in each launch.
    (found,) = (one for one in summary.placements[1].phases_in_pools if one.phase == "update_critic")
    assert (found.pool, found.devices) == ("critic_pool", 1)
    assert found.load == pytest.approx((0.75 + 0.25 + 0.75) / 3, rel=0.02)


def test_the_same_turn_is_told_of_placebenchs_own_job_with_its_round(tmp_path: Path) -> None:
    path = SyntheticRun(layouts={"split": SPLIT}, rounds=2).write(tmp_path / "run")
    (first,) = path.glob("trials/*1-split")
    edit_one(first / "spans.jsonl", move(lambda _, device: {"cpu:0": "cpu:1", "cpu:1": "cpu:0"}[device]))
    assert told(path) == [
        "split in round 1: asked for actor, rollout and ref on cpu:0; seen on cpu:1.",
        "split in round 1: asked for critic and reward on cpu:1; seen on cpu:0.",
    ]
    assert "Roles on devices: asked and observed" in printed(path)


@pytest.mark.parametrize(
    ("layout", "moved", "lines"),
    [
        (
            SPLIT,
            {"critic": "cpu:0", "reward": "cpu:0"},
            [
                "asked for actor, rollout and ref in actor_pool and critic and reward in critic_pool, apart; actor,"
                " rollout, ref, critic and reward were seen together on cpu:0.",
                "asked for 2 devices; no role was seen at work on cpu:1.",
            ],
        ),
        (
            SPLIT,
            {"ref": "cpu:1"},
            [
                "asked for actor, rollout and ref in actor_pool and critic and reward in critic_pool, apart; ref,"
                " critic and reward were seen together on cpu:1.",
                "asked for actor, rollout and ref on 1 device; seen on cpu:0–1.",
                "asked for actor, rollout and ref together in actor_pool; seen apart: actor and rollout on cpu:0"
                " and ref on cpu:1.",
            ],
        ),
        (
            WIDE,
            {"rollout": "cpu:2", "actor": "cpu:0", "ref": "cpu:0"},
            [
                "asked for actor, rollout and ref together in actor_pool; seen apart: actor and ref on cpu:0"
                " and rollout on cpu:2.",
                "asked for 4 devices; no role was seen at work on cpu:1.",
            ],
        ),
    ],
    ids=["together", "outside", "apart"],
)
def test_what_a_job_made_of_it_is_told(tmp_path: Path, layout: Layout, moved: dict[str, str], lines: list[str]) -> None:
    path = of_job(SyntheticRun(layouts={"split": layout}, device_samples=NO_LOAD), tmp_path / "run")
    edit_spans(path, "split", move(at(moved)))
    assert told(path) == [f"split: {line}" for line in lines]


def test_a_device_at_load_has_work_whose_spans_nobody_knows(tmp_path: Path) -> None:
    busy = {device: {"util": 0.5} for device in FOUR}
    path = of_job(SyntheticRun(layouts={"split": SPLIT}, device_samples=busy), tmp_path / "run")
    edit_spans(path, "split", move(at({"critic": "cpu:0", "reward": "cpu:0"})))
    assert [line for line in told(path) if "no role" in line] == []


def test_own_placements_show_what_was_seen_alone(tmp_path: Path) -> None:
    path = of_job(SyntheticRun(layouts={"mine": STANDARD}, rounds=1), tmp_path / "run")
    record = read_json(path / "run.json")
    record["placements"][0]["roles"] = {}
    write_json(path / "run.json", record)
    grid = observed_grid(summarize(compare_run(path)))
    assert grid.header[:3] == ("placement", "role", "observed")
    assert grid.rows[0][:3] == ("mine", "actor", "cpu:0–1 26 %")
    assert told(path) == []
    edit_spans(path, "mine", move(lambda *_: "cpu:0"))
    (file,) = path.glob("trials/*/devices.jsonl")
    file.unlink()
    assert told(path) == ["mine: asked for 2 devices; no role was seen at work on cpu:1."]


def test_of_a_plain_command_nothing_was_asked_but_its_devices(tmp_path: Path) -> None:
    path = of_job(SyntheticRun(layouts={"standard": STANDARD}, rounds=1), tmp_path / "run")
    edit_spans(path, "standard", move(lambda role, _: "cpu:1" if role == "rollout" else "cpu:0"))
    assert [line for line in told(path) if "seen apart" in line]
    record = read_json(path / "run.json")
    record["job"]["framework"] = "command"
    write_json(path / "run.json", record)
    assert told(path) == []


def test_the_figure_has_a_panel_a_placement_and_a_cell_a_device(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    figure = roles_on_devices(compare_run(path))
    assert figure is not None
    split = figure.axes[1]
    assert split.get_title(loc="left") == "split"
    assert [label.get_text() for label in split.get_yticklabels()][2:4] == [
        "ref · actor_pool (1)",
        "critic · critic_pool (1)",
    ]
    assert [text.get_text() for text in split.texts] == ["37", "50", "11", "33", "1"]
    edit_spans(path, "split", lambda span: span.update(role=None))
    edit_spans(path, "standard", lambda span: span.update(role=None))
    assert roles_on_devices(compare_run(path)) is None


def test_a_jobs_placement_is_shown_as_most_launches_had_it(tmp_path: Path) -> None:
    path = of_job(SyntheticRun(layouts={"split": SPLIT}, rounds=3), tmp_path / "run")
    for number in (2, 3):
        (trial,) = path.glob(f"trials/*{number}-split")
        edit_one(trial / "spans.jsonl", move(lambda _, device: {"cpu:0": "cpu:1", "cpu:1": "cpu:0"}[device]))
    side = only(path)
    assert side.placement.pools == {"actor_pool": ("cpu:1",), "critic_pool": ("cpu:0",)}
    assert [side.placed(launch).pool_of("cpu:0") for launch in side.launches] == ["actor_pool", *["critic_pool"] * 2]
