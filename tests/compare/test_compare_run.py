import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import SPLIT, STANDARD, Layout
from scipy.stats import false_discovery_control, ttest_1samp
from synthetic_run import SyntheticRun, edit_spans, read_json

from placebench.compare.comparison import compare_run, compare_sides
from placebench.compare.explain.caveats import caveats, load_meaning
from placebench.compare.explain.headlines import headline
from placebench.compare.measure.sides import run_sides
from placebench.compare.read.run_reading import load_run
from placebench.errors import UsageError
from placebench.record.folder import RunFolder, Status
from placebench.record.run_file import RunFile
from placebench.record.writing import append_jsonl, read_jsonl
from placebench.report.notes import notes
from placebench.report.summary import summarize
from placebench.spec.text import format_seconds


def test_a_half_finished_run_names_what_is_missing(tmp_path: Path) -> None:
    statuses = {
        (2, "split"): Status.OOM,
        (3, "standard"): Status.RUNNING,
        (3, "split"): Status.PLANNED,
    }
    run = load_run(SyntheticRun(statuses=statuses).write(tmp_path / "run"))
    assert [launch.round for launch in run.done("standard")] == [1, 2]
    assert [launch.round for launch in run.done("split")] == [1]
    assert [(launch.label, launch.status) for launch in run.missing] == [
        ("round 2 split", Status.OOM),
        ("round 3 standard", Status.RUNNING),
        ("round 3 split", Status.PLANNED),
    ]
    assert run.missing[0].error == "worker on cpu:1 ended: oom"
    assert run.missing[2].error is None


def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = SyntheticRun().write(tmp_path / "run")
    for name in ("spans", "steps", "devices"):
        with (path / "trials" / "01-split" / f"{name}.jsonl").open("a") as stream:
            stream.write('{"step": 7, "ph')
    launch = load_run(path).done("split")[0]
    assert (launch.spans["step"].max(), launch.steps.index.max(), launch.samples["device"].isna().sum()) == (6, 6, 0)


def damage_run_file(path: Path, **content: object) -> Path:
    (path / "run.json").write_text(json.dumps(read_json(path / "run.json") | content))
    return path


def test_folders_that_are_no_run_are_refused_in_one_line(tmp_path: Path) -> None:
    run = SyntheticRun(rounds=1).write(tmp_path / "run")
    empty = tmp_path / "empty"
    empty.mkdir()
    no_json = SyntheticRun(rounds=1).write(tmp_path / "no-json")
    (no_json / "run.json").write_text("{")
    deep = SyntheticRun(rounds=1).write(tmp_path / "deep")
    (deep / "run.json").write_text("[" * 100_000)
    other = SyntheticRun(rounds=1).write(tmp_path / "other")
    (other / "run.json").write_text("[]")
    cases = {
        tmp_path / "missing": "there is no such folder",
        empty: "there is no run.json in it",
        run / "run.json": "is a file",
        no_json: "cannot read it as JSON",
        deep: "cannot read it as JSON: its brackets are nested too deep",
        other: "it has no schema_version",
        damage_run_file(SyntheticRun(rounds=1).write(tmp_path / "newer"), schema_version=2): "upgrade placebench",
        damage_run_file(SyntheticRun(rounds=1).write(tmp_path / "odd"), rounds="many"): "not as placebench writes it",
        damage_run_file(
            SyntheticRun(rounds=1).write(tmp_path / "gone-on"), resumptions=1
        ): "resumptions: 1 is not a list",
        damage_run_file(SyntheticRun(rounds=1).write(tmp_path / "vast"), rounds=math.inf): "not as placebench writes",
        damage_run_file(SyntheticRun(rounds=1).write(tmp_path / "less"), devices=[{}]): "'kind' is missing",
    }
    for path, message in cases.items():
        with pytest.raises(UsageError, match=message) as caught:
            load_run(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("spans.jsonl", "nonsense\n", "Invalid JSON"),
        ("spans.jsonl", "[" * 100_000 + "\n", "Invalid JSON: recursion limit exceeded"),
        ("spans.jsonl", '{"step": 1}\n', "phase: Field required"),
        ("steps.jsonl", "[1]\n", "Input should be an object"),
        ("devices.jsonl", '{"mono": 1}\n', "Unable to extract tag using discriminator 'kind'"),
        ("devices.jsonl", '{"kind": "sample", "device": "cpu:0"}\n', "sample.mono: Field required"),
        (
            "devices.jsonl",
            '{"kind": "power", "mono": 1.0, "device": "cpu:0", "power_w": [1.0], "ago_s": []}\n',
            "power: ago_s and power_w must be of one length",
        ),
    ],
)
def test_a_launch_with_a_damaged_line_is_set_aside_and_the_line_named(
    tmp_path: Path, name: str, line: str, message: str
) -> None:
    path = SyntheticRun().write(tmp_path / "run")
    file = path / "trials" / "01-standard" / name
    count = len(file.read_text().splitlines())
    file.write_text(file.read_text() + line)
    comparison = compare_run(path)
    told = [text for text in caveats(comparison) if "set aside" in text]
    assert len(told) == 1
    assert told[0].startswith(f"round 1 standard: set aside: {file}, line {count + 1}: {message}")
    assert [side.launch_count for side in comparison.sides] == [2, 3]


def test_power_and_energy_of_early_versions_are_read_from_the_samples(tmp_path: Path) -> None:
    samples = {"power_w": 100.0, "power_instant_w": 250.0, "energy_j": 5.0}
    launch = load_run(SyntheticRun(source="nvml", samples=samples).write(tmp_path / "run")).launches[0]
    file = launch.trial.device_samples
    lines = [line for line in read_jsonl(file) if line["kind"] not in ("power", "energy")]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    launch = load_run(launch.trial.path.parents[1]).launches[0]
    ticks = len(launch.samples)
    assert launch.power["power_w"].tolist() == [250.0] * ticks
    assert (launch.power["mono"] - launch.samples["mono"]).tolist() == pytest.approx([0.1] * ticks)
    assert launch.energy["energy_j"].tolist() == [5.0] * ticks


def test_power_is_read_by_the_monotonic_clock(tmp_path: Path) -> None:
    launch = load_run(SyntheticRun().write(tmp_path / "run")).launches[0]
    line = {"kind": "power", "wall": 9e9, "mono": 50.0, "device": "cpu:0", "ago_s": [0.5, 0.0], "power_w": [1.0, 2.0]}
    with launch.trial.device_samples.open("a") as stream:
        append_jsonl(stream, line)
        append_jsonl(stream, {"kind": "energy", "wall": 9e9, "mono": 51.0, "device": "cpu:0", "energy_j": 7.0})
    launch = load_run(tmp_path / "run").launches[0]
    assert launch.power.to_dict("list") == {"mono": [49.5, 50.0], "device": ["cpu:0"] * 2, "power_w": [1.0, 2.0]}
    assert launch.energy.to_dict("list") == {"mono": [51.0], "device": ["cpu:0"], "energy_j": [7.0]}


def test_a_launch_with_an_unknown_status_is_set_aside(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    (path / "trials" / "01-split" / "status").write_text("fine\n")
    _, split = load_run(path).launches
    assert (split.status, str(split.error).partition(", running")[0]) == (
        Status.DAMAGED,
        f"{path / 'trials/01-split/status'}: it says none of planned",
    )


def test_a_sound_run_has_no_caveats(tmp_path: Path) -> None:
    assert caveats(compare_run(SyntheticRun().write(tmp_path / "run"))) == ()


def test_caveats_name_launches_work_and_samples(tmp_path: Path) -> None:
    lone = Layout({"only": ("cpu:0",)}, dict.fromkeys(SPLIT.roles, "only"), STANDARD.times, STANDARD.step_s)
    run = SyntheticRun(
        layouts={"standard": STANDARD, "lone": lone},
        statuses={(2, "lone"): Status.OOM, (3, "lone"): Status.PLANNED},
        tokens={"standard": 1000, "lone": 1100},
        missed=30,
    )
    found = caveats(compare_run(run.write(tmp_path / "run")))
    assert found[:6] == (
        "round 2 lone: out of memory: worker on cpu:1 ended: oom",
        "not started: lone in round 3",
        "Only 1 launch of a placement, so no interval and no verdict: --resume runs what is missing.",
        "lone against standard: ratios, critical paths and the reason come from the 1 round that has both. All other"
        " values come from all launches of each.",
        "Unequal work: lone had 1,100 tokens a step, standard 1,000 (+10.0 %). Step time: 1.00 as measured, 0.91 per"
        " token; a verdict needs both to agree. --ignore-eos makes work equal.",
        "lone uses 1 device and standard 2: compare tokens/s/device, not the time of a step.",
    )
    assert any(line.startswith("round 1 standard: the sampler missed 30 of ") for line in found)


def test_a_job_that_counts_no_tokens_is_not_told_to_compare_them(tmp_path: Path) -> None:
    lone = Layout({"only": ("cpu:0",)}, dict.fromkeys(SPLIT.roles, "only"), STANDARD.times, STANDARD.step_s)
    path = SyntheticRun(layouts={"standard": STANDARD, "lone": lone}).write(tmp_path / "run")
    for steps in path.glob("trials/*/steps.jsonl"):
        steps.write_text(steps.read_text().replace("perf/total_num_tokens", "perf/other"))
    assert "lone uses 1 device and standard 2." in caveats(compare_run(path))
    assert "lone has 1 device and standard 2." in caveats(compare_sides(run_sides(path)))


def test_a_step_that_computed_no_numbers_is_told(tmp_path: Path) -> None:
    sound = {"critic/score/mean": 0.5, "actor/pg_loss": -0.1, "critic/vf_loss": 0.2, "actor/grad_norm": 1.0}
    path = SyntheticRun(rounds=2, metrics=sound | {"training/queue_mean": math.nan}).write(tmp_path / "run")
    assert caveats(compare_run(path)) == ()

    def spoil(launch: str, step: int, **metrics: float) -> None:
        file = path / "trials" / launch / "steps.jsonl"
        rows = list(read_jsonl(file))
        rows[step - 1]["metrics"] |= metrics
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    spoil("01-standard", 1, **{"critic/score/mean": math.nan})  # warm-up
    assert caveats(compare_run(path)) == ()
    spoil("01-split", 4, **{"actor/grad_norm": math.inf})
    spoil("02-split", 4, **{"critic/vf_loss": math.nan, "critic/score/mean": math.nan})
    spoil("02-split", 6, **{"actor/pg_loss": -math.inf})
    told = "although its times were measured. Check data.reward, the learning rates and precision."
    assert caveats(compare_run(path)) == (
        f"round 1 split: actor/grad_norm is inf in measured step 4: training failed there, {told}",
        f"round 2 split: critic/score/mean is nan in measured step 4 and 1 later step: training has failed, {told}",
    )


@pytest.mark.parametrize(("rounds", "advice"), [(1, "use --rounds 3 or more."), (3, "--resume runs what is missing.")])
def test_a_single_launch_is_told_what_gives_an_interval(tmp_path: Path, rounds: int, advice: str) -> None:
    lost = {(round_, name): Status.PLANNED for round_ in (2, 3) for name in ("standard", "split")}
    found = caveats(compare_run(SyntheticRun(rounds=rounds, statuses=lost).write(tmp_path / "run")))
    few = f"Only 1 launch of a placement, so no interval and no verdict: {advice}"
    not_started = "not started: standard in rounds 2–3, split in rounds 2–3"
    assert found == ((not_started, few) if rounds == 3 else (few,))


def test_lost_rounds_that_leave_one_order_are_told(tmp_path: Path) -> None:
    told = "In every round that has both, standard ran before split: if the machine changed"
    for rounds, lost, expected in ((3, 2, True), (3, 1, False), (4, 2, False)):
        run = SyntheticRun(rounds=rounds, statuses={(lost, "split"): Status.OOM}).write(tmp_path / f"{rounds}-{lost}")
        assert any(line.startswith(told) for line in caveats(compare_run(run))) == expected


def test_caveats_on_samples_that_are_missing(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=2, samples={"util": None}).write(tmp_path / "run")
    (path / "trials" / "01-standard" / "devices.jsonl").unlink()
    cut = path / "trials" / "02-standard" / "devices.jsonl"
    lines = cut.read_text().splitlines(keepends=True)[:-1]
    lines.append('{"kind": "device_error", "device": "cpu:0", "message": "GPU is lost", "code": 15}\n')
    cut.write_text("".join(lines))
    record = RunFile.read(path / "run.json")
    record.model_copy(update={"sample_hz": 5.0}).write(path / "run.json")
    assert caveats(compare_run(path)) == (
        "round 1 standard: no device samples",
        "round 2 standard: the sampler ended before the launch, so samples of its end are missing",
        "round 2 standard: cpu:0: GPU is lost",
        "standard: the samples have no device load",
        "split: the samples have no device load",
    )


def test_devices_on_which_nothing_of_a_launch_was_seen_are_named(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=2, device_samples={"cpu:1": {"util": None}}).write(tmp_path / "run")
    assert caveats(compare_run(path)) == (
        "standard: the samples have no device load of cpu:1",
        "split: the samples have no device load of cpu:1",
    )


def test_steps_that_are_missing_are_told(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=2).write(tmp_path / "run")
    damage_run_file(path, steps=9)
    assert caveats(compare_run(path))[0] == "round 1 standard: only 4 of 7 measured steps were recorded"


def test_steps_in_which_a_run_was_stopped_are_left_out_and_named(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=2, steps=8, warmup_steps=1).write(tmp_path / "run")
    trial = RunFolder(path).trial(1, "standard")
    launch = load_run(path).launches[0]
    ends = {step: float(time) for step, time in launch.spans.groupby("step")["end"].max().items()}
    with trial.pauses.open("w") as stream:
        append_jsonl(stream, {"start_mono": ends[4] - 0.2, "end_mono": ends[5] - 0.1})
        append_jsonl(stream, {"start_mono": 0.0, "end_mono": 12.0})
    comparison = compare_run(path)
    steps = comparison.first.steps
    assert steps.loc[steps["round"] == 1, "step"].tolist() == [2, 3, 6, 7, 8]
    stopped = format_seconds(12.1 + ends[5] - ends[4])
    assert caveats(comparison)[:2] == (
        f"round 1 standard: stopped for {stopped} by Ctrl-Z; steps left out for that: 4 and 5",
        "round 1 standard: only 5 of 7 measured steps were recorded",
    )


@pytest.mark.parametrize("paused", [1, 2, 4])
def test_a_stop_in_the_warm_up_leaves_it_as_long_as_it_is(tmp_path: Path, paused: int) -> None:
    # The first two steps are twice as slow as it is.
    pace = [1.5] * 2 + [3.0] * 3 + [1.0] * 19
    run = SyntheticRun(rounds=1, steps=24, step_pace=lambda round_, placement, step: pace[step - 1])
    path = run.write(tmp_path / "run")
    launch = load_run(path).launches[0]
    assert launch.last_warmup_step == 5
    step = launch.whole_steps.set_index("step").loc[paused]
    with launch.trial.pauses.open("w") as stream:
        append_jsonl(stream, {"start_mono": step["start"] + 0.1, "end_mono": step["end"] - 0.1})
    stopped = load_run(path).launches[0]
    assert stopped.paused_steps == (paused,)
    assert stopped.last_warmup_step == 5


def test_plain_nvml_load_comes_with_its_warning(tmp_path: Path) -> None:
    comparison = compare_run(SyntheticRun(source="nvml").write(tmp_path / "run"))
    assert "any kernel ran" in load_meaning(comparison.placements[0])
    assert caveats(comparison) == ("Device load comes from NVML: a GPU whose kernel only waits reads 100 %.",)


def test_the_load_of_gpus_is_never_that_of_cores(tmp_path: Path) -> None:
    unfinished = {(1, name): Status.RUNNING for name in ("standard", "split")}
    path = SyntheticRun(source="nvml", rounds=1, statuses=unfinished).write(tmp_path / "run")
    assert "any kernel ran" in load_meaning(compare_run(path).placements[0])


def test_steps_are_numbered_on_behind_a_checkpoint(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1, steps=6, warmup_steps=1).write(tmp_path / "run")
    damage_run_file(path, resumed_from={"checkpoint": "checkpoints/step-000002", "step": 2})
    for name in ("steps", "spans"):
        for file in path.glob(f"trials/*/{name}.jsonl"):
            rows = [row for row in file.read_text().splitlines() if json.loads(row)["step"] not in (1, 2)]
            file.write_text("".join(f"{row}\n" for row in rows))
    comparison = compare_run(path)
    assert comparison.first.steps["step"].tolist() == [4, 5, 6]
    assert not any("measured steps were recorded" in line for line in caveats(comparison))


def test_headlines_of_several_placements_and_phases_of_one_are_families(tmp_path: Path) -> None:
    noise = (0.0, 0.03, -0.02, 0.01)
    paces = {"standard": 0.0, "near": 0.055, "far": 0.4, "same": 0.0}
    run = SyntheticRun(
        layouts=dict.fromkeys(paces, STANDARD),
        rounds=4,
        pace=lambda round_, name: math.exp(paces[name] + (noise[round_ - 1] if name != "standard" else 0.0)),
    )
    results = compare_run(run.write(tmp_path / "run")).sides
    alone = {}
    for result in results[1:]:
        logs = paces[result.name] + np.array(noise)
        test = [ttest_1samp(logs, sign * math.log(1.02)).pvalue for sign in (-1, 1)]
        alone[result.name] = max(test)
    corrected = dict(zip(alone, false_discovery_control(list(alone.values())), strict=True))
    for result in results[1:]:
        step, gen = result.ratios["step_time"], result.ratios["phase/gen"]
        assert step is not None
        assert gen is not None
        assert step.p_value == pytest.approx(corrected[result.name], rel=1e-3)
        # All phases have the same ratio here; the load, which does not differ, makes their family larger.
        assert alone[result.name] * (1 - 1e-6) <= gen.p_value <= 1.5 * alone[result.name]


def test_a_headline_that_only_the_number_of_placements_leaves_undecided_says_so(tmp_path: Path) -> None:
    # By itself, `near` is slower, with a p value above 0.05 / 4. The others are too noisy to tell.
    noise = (-0.012, 0.0, 0.012)
    others = {"standard": 1.0, "c": 1.03, "d": 1.04, "e": 1.05}
    run = SyntheticRun(
        layouts=dict.fromkeys(("standard", "near", "c", "d", "e"), STANDARD),
        pace=lambda round_, name: math.exp(0.08 + noise[round_ - 1]) if name == "near" else others[name] ** round_,
    )
    path = run.write(tmp_path / "run")
    comparison = compare_run(path)
    near = comparison.sides[1]
    told = headline(comparison, near)
    assert told.startswith("Undecided whether near or standard is faster: a step takes 8 % more time")
    assert told.endswith("3 launches each; undecided when corrected for 4 comparisons).")
    pair = compare_sides([*run_sides(path, "standard"), *run_sides(path, "near")])
    assert headline(pair, pair.sides[1]).startswith("near is slower than standard")
    summary = summarize(comparison)
    ratio = summary.placements[1].quantities[0].ratio
    assert ratio is not None
    assert ratio.corrected_for == 4
    assert any("step and tokens/s are corrected for the 4 comparisons" in line for line in notes(summary, None))


def test_a_rate_and_a_time_fit_where_two_steps_differ(tmp_path: Path) -> None:
    pace = {3: 1.0, 4: 2.0}
    run = SyntheticRun(rounds=1, steps=4, pace=lambda *_: 1.0, step_pace=lambda *of: pace.get(of[2], 1.0))
    standard = compare_run(run.write(tmp_path / "run")).first
    assert standard.value("step_time") == pytest.approx(1.30 * math.sqrt(2))
    assert standard.value("step_time") * standard.value("tokens_per_s") == pytest.approx(1300)
    assert standard.value("path/gen") == pytest.approx(0.5 / 1.3 * standard.value("step_time"))


def test_what_ran_side_by_side_has_one_length_whatever_steps_take(tmp_path: Path) -> None:
    pace = {3: 1.0, 4: 2.0, 5: 1.3}
    # A gap of constant length makes the shares of the phases differ from step to step.
    run = SyntheticRun(rounds=1, steps=5, step_pace=lambda *of: pace.get(of[2], 1.0))
    path = run.write(tmp_path / "run")

    def lag(span: dict[str, Any]) -> None:
        if span["phase"] == "values" and span["step"] == 4:
            span["end_mono"] -= 0.1

    edit_spans(path, "split", lag)
    split = compare_run(path).sides[1]
    assert split.value("overlap/ref+values") == pytest.approx(split.value("beside/values+ref"), abs=1e-6)
    assert split.value("overlap/old_log_prob+values") == pytest.approx(split.value("beside/values+old_log_prob"))
