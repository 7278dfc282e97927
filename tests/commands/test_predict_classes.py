"""How `placebench predict` classes what it is asked: how far from what was measured, and what that says of it."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from layouts import SPLIT, STANDARD
from pages import ROOT
from predicting import REFERENCE, WORKLOAD, invoke, predicted
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.predict.known import shipped_calibrations
from placebench.record.folder import Status
from placebench.report.calibrations import load_calibration

pytestmark = pytest.mark.usefixtures("here")


def test_a_shipped_calibration_is_of_another_host_from_whatever_file_it_is_read() -> None:
    first = predicted("--from", "h200", "--placements", "standard", "--out", "c.json").placements
    assert predicted("--from", "c.json", "--placements", "standard").placements == first
    assert first[0].prediction_class == "other host"


def test_single_launches_of_two_placements_decide_nothing() -> None:
    content = predicted("--from", REFERENCE / "ppo-8b", "--placements", "standard,split")
    assert [one.is_tied for one in content.placements] == [False, True]
    result = invoke("--from", REFERENCE / "ppo-8b", "--placements", "standard,split")
    assert "took 11 % more time, by one launch of each" in " ".join(result.output.split())


def test_a_single_launch_decides_nothing_beside_several_of_another_placement() -> None:
    lost = {(2, "standard"): Status.INTERRUPTED}
    SyntheticRun(rounds=3, workload=WORKLOAD, statuses=lost).write(Path("two"))
    words = ("--placements", "standard,split")
    assert not any(one.is_tied for one in predicted("--from", "two", *words).placements)
    lost |= {(3, "standard"): Status.INTERRUPTED}
    SyntheticRun(rounds=3, workload=WORKLOAD, statuses=lost).write(Path("one"))
    assert sum(one.is_tied for one in predicted("--from", "one", *words).placements) == 1
    assert "by one launch of one of them" in " ".join(invoke("--from", "one", *words).output.split())


def test_a_job_of_the_users_on_other_devices_has_no_interval() -> None:
    verl = ROOT / "runs/reference/1x-h100/verl/verl"
    (one,) = predicted("--from", verl, "--placements", "standard", "--devices", "gpu:4").placements
    assert (one.prediction_class, one.low_s) == ("job of yours", None)
    (same,) = predicted("--from", verl, "--placements", "standard").placements
    assert same.prediction_class == "same run"


def test_what_launches_differ_by_counts_for_work_that_they_did_not_do() -> None:
    layouts = {"standard": STANDARD, "split": SPLIT}

    def width(name: str, spread: float) -> float:
        def pace(number: int, _: str) -> float:
            return 1 + spread * (1 if number % 2 == 0 else -1)

        SyntheticRun(layouts, rounds=2, workload=WORKLOAD, pace=pace).write(Path(f"runs/{name}"))
        words = ("--from", name, "--placements", "standard,split", "--devices", "cpu:4")
        other = max(predicted(*words).placements, key=lambda one: one.ratio)
        assert other.prediction_class != "same run"
        assert other.ratio_low is not None
        assert other.ratio_high is not None
        return other.ratio_high / other.ratio_low

    assert width("20260101T000000Z-loud", 0.3) > 2 * width("20260102T000000Z-quiet", 0.001)


def test_engines_of_several_devices_are_quicker_and_a_class_of_their_own() -> None:
    words = ["--from", "h200", "--model", "qwen2.5-7b", "--batch-size", "64", "--devices", "gpu:8"]
    words += ["--set", "batch.micro_batch_tokens=4096", "--placements", "standard"]
    seconds = []
    for shared_by in (1, 2, 4):
        (one,) = predicted(*words, "--set", f"rollout.tensor_parallel_size={shared_by}").placements
        assert (one.prediction_class == "other engines") == (shared_by > 1)
        assert (one.low_s is None) == (shared_by > 1)
        seconds += [phase.total_s for phase in one.phases if phase.name == "gen"]
    # Of a token step of a 7B model on H200s AIConfigurator's tables say 0.63 and 0.47 times as long.
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[1] / seconds[0] == pytest.approx(0.72, abs=0.12)


def test_launches_that_two_calibrations_have_count_once() -> None:
    """What is shipped for the H200 was made of this run, among others."""
    run = REFERENCE / "ppo-7b"
    words = ("--placements", "standard,split", "--json", "out.json")
    both = predicted("--from", f"{run},h200", *words)
    assert "3 of 51 measurements of h200 are also in 4x-h200/ppo-7b, and count once" in both.notes
    own = load_calibration(run)
    shipped = shipped_calibrations()["h200"]
    rest = tuple(case for case in shipped.cases if case not in own.cases)
    shipped.model_copy(update={"cases": rest}).write(Path("rest.json"))
    once = predicted("--from", f"{run},rest.json", *words)
    keys = ("step_s", "low_s", "high_s", "prediction_class")
    for one, other in zip(both.placements, once.placements, strict=True):
        assert [getattr(one, key) for key in keys] == [getattr(other, key) for key in keys]


def test_a_run_beside_what_is_shipped_is_neither_outvoted_by_it_nor_vouches_for_it() -> None:
    run = REFERENCE / "ppo-1.5b"
    words = ("--placements", "standard")
    (alone,) = predicted("--from", run, *words).placements
    (beside,) = predicted("--from", f"{run},h200", *words).placements
    assert (beside.prediction_class, beside.step_s) == ("same run", alone.step_s)
    (shipped,) = predicted("--from", "h200", *words).placements
    assert shipped.prediction_class == "other host"
    # A job of the user's on such GPUs, and a run of another model, say nothing of the host that was measured.
    for other in (REFERENCE / "verl", REFERENCE / "ppo-7b"):
        (one,) = predicted("--from", f"h200,{other}", *words).placements
        assert one.prediction_class == "other host"


def test_a_placement_that_was_not_run_errs_as_others_did() -> None:
    words = ("--placements", "standard,standard/staleness=1", "--from", REFERENCE / "ppo-1.5b")
    run, other = predicted(*words).placements
    assert (other.prediction_class, other.step_s) == ("same run", run.step_s)
    assert run.low_s is not None
    assert other.low_s is not None
    assert run.step_s / run.low_s < 1.02
    assert other.step_s / other.low_s > 1.05


def test_runs_of_the_same_placement_that_differ_widen_its_interval() -> None:
    runs = [REFERENCE / name for name in ("ppo-7b", "ppo-7b-traced")]
    first, other = (predicted("--from", one, "--placements", "standard").placements[0] for one in runs)
    (both,) = predicted("--from", ",".join(map(str, runs)), "--placements", "standard").placements
    assert first.low_s is not None
    assert both.low_s is not None
    assert both.high_s is not None
    assert first.step_s < both.step_s < other.step_s
    assert both.step_s / both.low_s > 1.02 > first.step_s / first.low_s


def test_many_times_more_devices_than_were_measured_have_no_interval() -> None:
    words = ("--from", REFERENCE / "ppo-1.5b", "--placements", "standard", "--devices")
    content = predicted(*words, "gpu:16")
    assert [one.prediction_class for one in content.placements] == ["other size"]
    said = "16 devices, at most 4 were measured: few held-out cases are of more than were measured"
    assert said in content.notes
    (beyond,) = predicted(*words, "gpu:32").placements
    assert (beyond.prediction_class, beyond.low_s, beyond.held_out_cases) == ("more devices", None, 0)


def test_the_same_run_by_another_path_is_refused() -> None:
    run = REFERENCE / "ppo-7b"
    result = invoke("--from", f"{run},{run}/../ppo-7b", "--placements", "standard")
    assert (result.exit_code, "has the measurements of" in result.output) == (2, True), result.output
    # A calibration that was written before the run went on.
    folder = SyntheticRun(rounds=2, workload=WORKLOAD, pace=lambda number, _: 1 + number / 10).write(Path("a/run"))
    first = load_calibration(folder)
    earlier = [
        case.model_copy(update={"launches": 1, "launch_sd": None, "round_steps": {1: case.round_steps[1]}})
        for case in first.cases
    ]
    shorter = [
        case.model_copy(
            update={"phases": tuple(one.model_copy(update={"seconds": one.seconds * 1.1}) for one in case.phases)}
        )
        for case in earlier
    ]
    first.model_copy(update={"cases": tuple(shorter)}).write(Path("earlier.json"))
    result = invoke("--from", f"earlier.json,{folder}", "--placements", "standard")
    assert (result.exit_code, "has the measurements of earlier.json" in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("words", "counted"),
    [
        (("--gpu", "H100", "--set", "rollout.log_probs=always", "--devices", "gpu:1"), "not counted"),
        (("--gpu", "H200", "--set", "rollout.log_probs=always"), "counted only in part"),
        (("--from", REFERENCE / "ppo-7b", "--placements", "standard/staleness=1"), "not counted"),
        (("--gpu", "H200", "--batch-size", "264", "--placements", "standard/staleness=1"), None),
        (("--from", REFERENCE / "ppo-7b", "--placements", "standard"), None),
    ],
)
def test_log_probabilities_of_engines_that_no_launch_told_are_said_not_to_count(
    words: tuple[object, ...], counted: str | None
) -> None:
    """What the shipped H200 calibration has of 264 sequences was run with a staleness, too."""
    said = [note for note in predicted(*words).notes if "the time that this adds to generation is" in note]
    assert [note.partition("generation is ")[2] for note in said] == ([counted] if counted else [])


def test_a_search_says_that_log_probabilities_of_engines_do_not_count() -> None:
    words = ["search", "--from", str(REFERENCE / "ppo-7b"), "--max-staleness", "1"]
    said = CliRunner().invoke(main, words).output
    assert "adds to generation is not counted" in " ".join(said.split())
    assert "adds to generation" not in " ".join(CliRunner().invoke(main, words[:3]).output.split())


def test_calibrations_of_cpu_devices_and_of_gpus_are_not_taken_together() -> None:
    SyntheticRun(rounds=1, workload=WORKLOAD).write(Path("runs/20260101T000000Z-a"))
    kinds = {"latest,h200": "latest is of cpu devices and h200 of gpu", "h200,latest": "h200 is of gpu devices"}
    for sources, said in kinds.items():
        result = invoke("--from", sources, "--placements", "standard")
        assert result.exit_code == 2
        assert result.stderr.startswith(f"placebench: --from '{sources}': {said}")
        assert result.stderr.endswith("which tell nothing of each other: name those of one kind\n")


def test_a_little_more_work_does_not_take_less_time_because_it_was_not_measured() -> None:
    run = REFERENCE / "ppo-7b-traced"
    sizes = (64, 72, 80, 88, 96)
    steps = [predicted("--from", run, "--placements", "standard", "--batch-size", size).placements[0] for size in sizes]
    gen = [next(phase.total_s for phase in one.phases if phase.name == "gen") for one in steps]
    assert gen == sorted(gen)
    assert [one.step_s for one in steps] == sorted(one.step_s for one in steps)
    assert gen[1] / gen[0] < 72 / 64
