"""The real job: equal under every placement, overlapping where it may, learning, and failing in order."""

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from jobs import PPO, Job, assert_same_training, run_job, save_model
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from placebench.host.compile_cache import remove_empty_cache
from placebench.record.writing import read_jsonl
from placebench.run.forking import RoundServer
from placebench.spec.stepgraph import step_graph
from placebench.spec.workload import Workload

RESULTS = ("critic/score/mean", "actor/pg_loss", "actor/entropy", "critic/vf_loss", "actor/grad_norm", "actor/kl_loss")


@pytest.fixture
def standard(shared_job: Callable[..., Job]) -> Job:
    return shared_job("standard", 2, *PPO, forked=False)


@pytest.mark.parametrize(
    ("placement", "devices", "settings"),
    [
        pytest.param("split/overlap=none", 2, (), marks=pytest.mark.slow),
        pytest.param("standard", 1, (), marks=pytest.mark.slow),
        pytest.param("standard", 4, (), marks=pytest.mark.slow),
        pytest.param("split:3+1", 4, ("batch.size=24", "batch.mini_batch_size=12"), marks=pytest.mark.slow),
        ("standard", 2, ("sharding=shard", "activation_checkpointing=true")),
        pytest.param(
            "split",
            2,
            ("sharding=shard", "torch_compile=true", "activation_checkpointing=true"),
            marks=pytest.mark.slow,
        ),
        ("learners:1+engines:2", 3, ()),
        pytest.param("learners:2+engines:2", 4, (), marks=pytest.mark.slow),
        # Engines share whole steps, so that their number need not divide a mini-batch.
        pytest.param("learners:1+engines:3", 4, ("batch.size=24", "batch.mini_batch_size=8"), marks=pytest.mark.slow),
    ],
)
def test_a_placement_changes_where_not_what(
    shared_job: Callable[..., Job], standard: Job, placement: str, devices: int, settings: tuple[str, ...]
) -> None:
    reference = shared_job("standard", 1, *PPO, *settings) if "batch.size=24" in settings else standard
    assert_same_training(shared_job(placement, devices, *PPO, *settings), reference, RESULTS)


def test_two_pools_train_as_one(split_job: Job, standard: Job) -> None:
    assert_same_training(split_job, standard, RESULTS)


@pytest.mark.slow
def test_forked_workers_train_bit_for_bit_as_new_interpreters_do(tmp_path: Path, standard: Job) -> None:
    server = RoundServer(tmp_path / "fork_server.log", Workload(), ())
    try:
        job = run_job(tmp_path / "job", "standard", 2, *PPO, fork_server=server.of(1))
        assert server.notes == ()
    finally:
        server.close()
    assert job.exit_code == 0, job.output[-3000:]
    assert "was not forked" not in job.output
    assert not (tmp_path / "fork_server.log").exists()
    for name in (*RESULTS, "response_length/mean"):
        assert [step[name] for step in job.steps] == [step[name] for step in standard.steps], name


def overlapping_steps(job: Job, phase: str, other: str) -> list[int]:
    """The steps in which both phases ran at one time, on devices of different pools."""

    def spans(name: str) -> list[tuple[int, float, float]]:
        return [
            (span["step"], span["start_mono"], span["end_mono"])
            for span in job.spans
            if span["phase"] == name and span["device"] != "controller"
        ]

    return [
        step
        for step, start, end in spans(phase)
        for other_step, other_start, other_end in spans(other)
        if step == other_step and min(end, other_end) > max(start, other_start)
    ]


def test_phases_of_different_pools_overlap(split_job: Job, resumed_job: Job) -> None:
    # Each waits for the other to begin, so that the job would have failed if it did not.
    assert overlapping_steps(split_job, "update_actor", "update_critic") == [1, 2, 3, 4]
    assert overlapping_steps(split_job, "values", "old_log_prob") == [1, 2, 3, 4]
    assert [len(resumed_job.steps), overlapping_steps(resumed_job, "update_actor", "update_critic")] == [1, []]


@pytest.mark.slow
def test_updates_alone_overlap(shared_job: Callable[..., Job]) -> None:
    updates = shared_job("split/overlap=updates", 2, *PPO, meeting=["UpdatesMeet"])
    assert overlapping_steps(updates, "update_actor", "update_critic") == [1, 2, 3, 4]
    assert overlapping_steps(updates, "values", "old_log_prob") == []


def test_the_step_is_its_phases_and_the_rest(standard: Job) -> None:
    for step in standard.steps:
        timings = {name.removeprefix("timing_s/"): value for name, value in step.items() if "timing_s/" in name}
        whole = timings.pop("step")
        assert set(timings) == {
            *(phase.name for phase in step_graph(hands_over=False, has_critic=True)),
            "unattributed",
        }
        assert sum(timings.values()) == pytest.approx(whole)
        assert step["perf/throughput"] == pytest.approx(step["perf/total_num_tokens"] / whole / 2)


def test_phases_of_one_pool_never_overlap(standard: Job) -> None:
    device = sorted(
        (span["start_mono"], span["end_mono"])
        for span in standard.spans
        if span["device"] == "cpu:0" and span["step"] > 0
    )
    assert len(device) == 4 * sum(phase.role is not None for phase in step_graph(hands_over=False, has_critic=True))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(device))


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["replicate", "shard"])
def test_bfloat16_stays_near_float32(tmp_path: Path, standard: Job, sharding: str) -> None:
    job = run_job(tmp_path / "job", "standard", 2, *PPO, "precision=bfloat16", f"sharding={sharding}", "steps=2")
    assert job.exit_code == 0, job.output[-3000:]
    np.testing.assert_allclose(job.steps[0]["actor/entropy"], standard.steps[0]["actor/entropy"], rtol=0.02)
    assert all(step["training/rollout_probs_diff_max"] < 0.05 for step in job.steps)
    assert job.steps[0]["actor/entropy"] != standard.steps[0]["actor/entropy"]


@pytest.mark.slow
def test_a_saved_model_and_prompts_of_a_file(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "1+2=", "answer": "3"}\n{"prompt": "2+2=", "answer": "4"}\n')
    model = (f"model={tmp_path / 'model'}", "rollout.backend=torch")
    data = (f"data.source={tmp_path / 'prompts.jsonl'}", "data.reward=exact_match")
    job = run_job(tmp_path / "job", "split", 2, *PPO, *model, *data, "steps=2", "batch.max_response_length=8")
    assert job.exit_code == 0, job.output[-3000:]
    assert job.steps[0]["prompt_length/mean"] == 4
    assert job.steps[1]["training/rollout_probs_diff_max"] < 0.01


# Every process of the job tells, twenty times a second, how many objects a full pass of the collector would visit and
# how many are frozen.
COLLECTOR_PROBE = """
import gc, json, os, threading, time

def tell():
    while True:
        time.sleep(0.05)
        if frozen := gc.get_freeze_count():
            line = {"mono": time.monotonic(), "frozen": frozen, "visited": len(gc.get_objects())}
            with open(os.path.join(os.environ["COLLECTOR_PROBE"], str(os.getpid())), "a") as stream:
                stream.write(json.dumps(line) + "\\n")

threading.Thread(target=tell, daemon=True).start()
"""


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["split", "learners:1+engines:1"])
def test_passes_of_the_garbage_collector_are_short_in_measured_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(COLLECTOR_PROBE)
    (tmp_path / "probe").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("COLLECTOR_PROBE", str(tmp_path / "probe"))
    job = run_job(tmp_path / "job", placement, 2, *PPO, "steps=6", "warmup_steps=2")
    assert job.exit_code == 0, job.output[-3000:]
    ends = {row["step"]: row["mono"] for row in read_jsonl(job.trial.steps)}
    for process in read_jsonl(job.trial.processes):
        told = read_jsonl(tmp_path / "probe" / str(process["pid"]))
        measured = [line for line in told if ends[2] < line["mono"] < ends[6]]
        frozen = [line["frozen"] for line in measured]
        assert frozen == sorted(frozen, reverse=True), "frozen in a measured step"
        assert max(line["visited"] / line["frozen"] for line in measured) < 0.1


def test_a_folder_that_keeps_compiled_code_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "some/one")
    folder = Path(default_cache_dir())
    assert folder.parent == tmp_path
    (folder / "fxgraph").mkdir(parents=True)
    remove_empty_cache()
    assert folder.exists()
    (folder / "fxgraph").rmdir()
    remove_empty_cache()
    assert not folder.exists()
    remove_empty_cache()


ZERO_ADVANTAGE = """
import sys
import numpy as np
from placebench.ppo import advantages
from placebench.jobs import ppo as launch
advantages.whiten = lambda table, mask, shift_mean=True: np.zeros_like(table)
launch.run_and_exit(sys.argv[1])
"""


def gain(job: Job) -> float:
    """Mean reward of the last 10 steps over that of the first 10."""
    assert job.exit_code == 0, job.output[-3000:]
    scores = [step["critic/score/mean"] for step in job.steps]
    assert len(scores) == 60
    return mean(scores[-10:]) - mean(scores[:10])


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    assert gain(run_job(tmp_path / "job", "standard", 2, "steps=60", "seed=0")) > 0.2


@pytest.mark.slow
def test_it_does_not_learn_without_advantages(tmp_path: Path) -> None:
    job = run_job(tmp_path / "job", "standard", 2, "steps=60", "seed=0", program=ZERO_ADVANTAGE)
    assert abs(gain(job)) < 0.05


REWARDS = """
import os

def die(prompt, response, answer):
    os._exit(1)

def exhaust(prompt, response, answer):
    raise MemoryError("no more memory")

def starve(prompt, response, answer):
    raise RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:126")  # the words of vLLM's own allocator

def fail(prompt, response, answer):
    raise ValueError("this reward is broken")
"""


@pytest.mark.parametrize(
    ("function", "exit_code", "words"),
    [
        pytest.param("fail", 10, "this reward is broken", marks=pytest.mark.slow),
        pytest.param("die", 10, "ActorDiedError", marks=pytest.mark.slow),
        pytest.param("exhaust", 11, "no more memory\nheld by cpu:1 in reward", marks=pytest.mark.slow),
        pytest.param(
            "starve", 11, "out of memory at cumem_allocator.cpp:126\nheld by cpu:1 in reward", marks=pytest.mark.slow
        ),
    ],
)
def test_a_launch_that_fails_says_why(tmp_path: Path, function: str, exit_code: int, words: str) -> None:
    (tmp_path / "broken_rewards.py").write_text(REWARDS)
    program = (
        f"import os, sys; sys.path.insert(0, {str(tmp_path)!r}); os.environ['PYTHONPATH'] = {str(tmp_path)!r}\n"
        "from placebench.jobs import ppo as launch; launch.run_and_exit(sys.argv[1])"
    )
    job = run_job(tmp_path / "job", "split", 2, *PPO, f"data.reward=broken_rewards:{function}", program=program)
    assert job.exit_code == exit_code, job.output[-3000:]
    assert words in job.trial.error.read_text()
