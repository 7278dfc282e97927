"""Running ahead of training, for real: never too far, with engines in a pool of their own and without."""

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from jobs import Job, engine_program, launched, meeting_program, run_job
from launching import wait_for

from placebench.record.writing import read_jsonl
from placebench.run.forking import RoundServer
from placebench.spec.intervals import covered, union
from placebench.spec.stepgraph import step_graph

SIZES = ("batch.size=16", "batch.mini_batch_size=8", "rollout.ignore_eos=true", "warmup_steps=1")
AHEAD = (*SIZES, "steps=6", "batch.max_response_length=16", "algorithm.epochs=1", "rollout.top_p=0.9")


def device_spans(job: Job, *phases: str) -> list[dict[str, Any]]:
    """Spans of devices in the steps, in order of their start."""
    chosen = [span for span in job.spans if span["phase"] in phases and span["device"] != "controller" and span["step"]]
    return sorted(chosen, key=lambda span: float(span["start_mono"]))


def shared_seconds(span: dict[str, Any], other: dict[str, Any]) -> float:
    return float(min(span["end_mono"], other["end_mono"]) - max(span["start_mono"], other["start_mono"]))


@pytest.fixture
def temp_of_ahead(shared_folder: Path) -> Path:
    """The folder that `ahead` has for temporary files."""
    folder = shared_folder / "temp-of-ahead"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def ahead(shared_job: Callable[..., Job], temp_of_ahead: Path) -> Job:
    """A job in which each step is generated beside the training of the one before: see `jobs.MEETING`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temp_of_ahead))
        patch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        word, meeting = "learners:1+engines:1/staleness=2", ["LearnerMeets", "EngineMeets"]
        job = shared_job(word, 2, *AHEAD, meeting=meeting)
    assert job.exit_code == 0, job.output[-3000:]
    return job


def test_later_steps_are_generated_while_earlier_ones_are_trained(ahead: Job) -> None:
    generated = {span["step"]: span for span in device_spans(ahead, "gen")}
    for step in range(1, 7):
        (first,), (last,) = (
            [span for span in device_spans(ahead, phase) if span["step"] == step]
            for phase in ("old_log_prob", "update_actor")
        )
        assert first["start_mono"] < generated[step + 1]["end_mono"]
        assert generated[step + 1]["start_mono"] < last["end_mono"]


def test_fixed_lengths_are_equal_work(ahead: Job) -> None:
    assert {step["response_length/min"] for step in ahead.steps} == {16}


@pytest.mark.usefixtures("ahead")
def test_the_folder_of_a_compiler_that_had_nothing_to_do_goes_again(temp_of_ahead: Path) -> None:
    assert list(temp_of_ahead.glob("torchinductor*")) == []


def test_nothing_older_than_the_staleness_is_trained_on(ahead: Job) -> None:
    lags = [step["training/lag_max"] for step in ahead.steps]
    assert lags[0] == 0
    assert 0 < max(lags) <= 2
    # In order and paused for weights, no part is overtaken.
    assert all(step["training/dropped_sequences"] == 0 for step in ahead.steps)


def test_engines_pause_for_weights_and_get_each_of_them(ahead: Job) -> None:
    on_engine = [span for span in device_spans(ahead, "gen", "update_weights") if span["pool"] == "engines"]
    assert all(before["end_mono"] <= after["start_mono"] for before, after in itertools.pairwise(on_engine))
    both = {
        pool: [span["step"] for span in device_spans(ahead, "update_weights") if span["pool"] == pool]
        for pool in ("learners", "engines")
    }
    assert both["learners"] == both["engines"]
    assert both["engines"][:5] == [1, 2, 3, 4, 5]
    assert all(step["perf/update_weights_bytes"] > 4e6 for step in ahead.steps[1:])


def test_the_step_lasts_from_update_to_update(ahead: Job) -> None:
    controller = [span for span in ahead.spans if span["device"] == "controller" and span["step"]]
    whole = [span for span in controller if span["phase"] == "step"]
    phases = np.array([[span["start_mono"], span["end_mono"]] for span in controller if span["phase"] != "step"])
    assert all(after["start_mono"] == before["end_mono"] for before, after in itertools.pairwise(whole))
    for span, step in zip(whole, ahead.steps, strict=True):
        assert step["timing_s/step"] == pytest.approx(span["end_mono"] - span["start_mono"])
        updates, weights = (
            [one for one in device_spans(ahead, *phases) if one["step"] == span["step"] and one["pool"] == "learners"]
            for phases in (("update_actor", "update_critic"), ("update_weights",))
        )
        assert max(update["end_mono"] for update in updates) <= span["end_mono"]
        assert all(span["end_mono"] <= sent["start_mono"] for sent in weights)
        assert step["timing_s/gen"] <= step["timing_s/step"]
        seconds = covered(np.array([[span["start_mono"], span["end_mono"]]]), union(phases)).item()
        assert step["timing_s/unattributed"] == pytest.approx(step["timing_s/step"] - seconds, abs=1e-6)


def test_waiting_and_queues_are_measured(ahead: Job) -> None:
    for step in ahead.steps:
        assert 0 <= step["training/trainer_wait_s"] < step["timing_s/step"]
        assert 0 <= step["training/engine_wait_s"] <= step["timing_s/step"]
        assert 0 <= step["training/queue_mean"] <= step["training/queue_max"] <= 16 * 3
        assert 0 <= step["training/generating_s"] <= step["timing_s/step"]
    # Engines generate what is trained on, and at most three steps' sequences more.
    generated, trained = (
        sum(step[name] for step in ahead.steps) for name in ("training/generated_tokens", "perf/total_num_tokens")
    )
    assert trained <= generated <= trained * (1 + 3 / 6)
    # The first step's sequences are waited for from the start.
    assert ahead.steps[0]["training/trainer_wait_s"] > 0


def test_losses_correct_for_the_lag(ahead: Job) -> None:
    fresh, stale = ahead.steps[0], [step for step in ahead.steps if step["training/lag_max"]]
    assert fresh["actor/importance_weight"] == pytest.approx(1, abs=1e-5)
    assert fresh["training/rollout_probs_diff_max"] < 1e-5
    assert all(step["training/rollout_probs_diff_max"] > 1e-4 for step in stale)
    assert all(np.isfinite(step["actor/pg_loss"]) and step["actor/importance_weight"] < 2 for step in stale)


@pytest.mark.slow
def test_a_part_that_new_weights_overtake_is_dropped_and_counted(tmp_path: Path) -> None:
    word = "learners:1+engines:2/staleness=1/inflight_updates=true"
    engines = engine_program(tmp_path, "SlowEngine")
    job = run_job(tmp_path / "job", word, 3, *SIZES, "steps=10", "batch.max_response_length=48", program=engines)
    assert job.exit_code == 0, job.output[-3000:]
    assert len(job.steps) == 10
    assert all(step["training/lag_max"] <= 1 for step in job.steps)
    assert sum(step["training/dropped_sequences"] for step in job.steps) > 0
    # Weights came in the middle of generating: the span is cut, and goes on behind them.
    slow = [span for span in device_spans(job, "gen", "update_weights") if span["device"] == "cpu:2"]
    words = [(span["phase"], span["step"]) for span in slow]
    assert any(
        before == after and between[0] == "update_weights"
        for before, between, after in zip(words, words[1:], words[2:], strict=False)
    )
    assert all(before["end_mono"] <= after["start_mono"] for before, after in itertools.pairwise(slow))


def processes_left(job_folder: Path) -> list[psutil.Process]:
    """Of the processes of a job that has ended, those that outlive it."""
    registered = {row["pid"] for row in read_jsonl(job_folder / "processes.jsonl")}
    alive = (process for process in psutil.process_iter() if process.pid in registered)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_an_engine_that_dies_while_it_is_sent_weights_ends_the_launch(tmp_path: Path) -> None:
    dying = engine_program(tmp_path, "DyingEngine")
    job = run_job(tmp_path / "job", "learners:1+engines:2/staleness=1", 3, *SIZES, "steps=50", program=dying)
    assert job.exit_code == 10, job.output[-3000:]
    assert "ActorDiedError" in job.trial.error.read_text()
    assert len(job.steps) == 2
    assert not processes_left(tmp_path / "job")


@pytest.mark.slow
def test_an_interrupt_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with launched(folder, "learners:1+engines:1/staleness=2", 2, *SIZES, "steps=5000") as process:
        wait_for(lambda: process.poll() is not None or len(list(read_jsonl(folder / "steps.jsonl"))) >= 3, 200)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert not processes_left(folder)


# Generation and training take turns in the devices' memory, as with an engine on GPUs.
HANDING_OVER = (
    "import sys; from placebench.jobs import ppo as launch\n"
    "launch.PPOJob._hands_over = lambda launch: True\n"
    "launch.run_and_exit(sys.argv[1])"
)


@pytest.mark.parametrize(
    ("word", "devices", "staleness"),
    [
        ("standard/staleness=1", 1, 1),
        pytest.param("split/staleness=2", 2, 2, marks=pytest.mark.slow),
    ],
)
def test_a_pool_that_generates_and_trains_can_train_on_older_weights(
    tmp_path: Path, fork_server: RoundServer, word: str, devices: int, staleness: int
) -> None:
    hands_over = devices == 1
    program = HANDING_OVER if hands_over else meeting_program(tmp_path, "GeneratesBesideValues")
    server = fork_server.of(1) if hands_over else None  # its workers would not find the other program's class
    job = run_job(tmp_path / "job", word, devices, *SIZES, "steps=5", program=program, fork_server=server)
    assert job.exit_code == 0, job.output[-3000:]
    # The first steps have nothing older than the weights that the job begins with.
    lags = [min(step, staleness) for step in range(5)]
    assert [step["training/lag_mean"] for step in job.steps] == lags
    assert [step["training/lag_max"] for step in job.steps] == lags
    generated = {span["step"]: span for span in device_spans(job, "gen") if span["device"] == "cpu:0"}
    updated = {span["step"]: span for span in device_spans(job, "update_actor") if span["device"] == "cpu:0"}
    assert sorted(generated) == list(range(1, 6 + staleness))
    for step, span in generated.items():
        version = step - 1 - lags[min(step, 5) - 1]
        assert version not in updated or updated[version]["end_mono"] <= span["start_mono"]
        assert span["end_mono"] <= updated[version + 1]["start_mono"]
    # Older weights give other probabilities, for which the loss is corrected.
    assert job.steps[0]["training/rollout_probs_diff_max"] < 1e-4 < job.steps[-1]["training/rollout_probs_diff_max"]
    assert all("actor/importance_weight" in step for step in job.steps)
    whole = {span["step"]: span for span in job.spans if span["phase"] == "step"}
    for number, step in enumerate(job.steps, 1):
        assert step["timing_s/step"] == pytest.approx(whole[number]["end_mono"] - whole[number]["start_mono"])
        assert whole[number]["start_mono"] <= generated[number + staleness]["start_mono"]
        assert generated[number + staleness]["end_mono"] <= whole[number]["end_mono"]
    if hands_over:
        turns = device_spans(job, *(phase.name for phase in step_graph(hands_over=True, has_critic=True)))
        pool = [
            span["phase"]
            for span in turns
            if span["device"] == "cpu:0" and whole[3]["start_mono"] <= span["start_mono"] < whole[3]["end_mono"]
        ]
        assert pool[:2] == ["gen", "sleep"]
        assert pool[-2:] == ["wake_up", "update_weights"]
    # As the controller sees it: in two pools both are under way before either has ended, in one never.
    under_way = {
        phase: {span["step"]: span for span in job.spans if span["phase"] == phase and span["device"] == "controller"}
        for phase in ("gen", "values")
    }
    beside = [shared_seconds(under_way["gen"][step + staleness], under_way["values"][step]) > 0 for step in range(1, 6)]
    assert beside == [word.startswith("split")] * 5
