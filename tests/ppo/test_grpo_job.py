"""GRPO in the real job: the same under every placement, without a critic anywhere, and learning."""

from collections.abc import Callable
from pathlib import Path
from statistics import mean

import pytest
from jobs import GRPO, Job, assert_same_training, run_job

from placebench.plan.plan import make_plan
from placebench.plan.request import RunRequest
from placebench.record.writing import read_jsonl
from placebench.spec.stepgraph import step_graph

RESULTS = ("critic/score/mean", "critic/advantages/max", "actor/pg_loss", "actor/kl_loss", "actor/grad_norm")


@pytest.fixture
def one_device(shared_job: Callable[..., Job]) -> Job:
    return shared_job("standard", 1, *GRPO)


@pytest.mark.parametrize(
    ("placement", "devices", "settings"),
    [
        # Without a critic its second pool holds what judges.
        pytest.param("split", 2, ("sharding=shard",), marks=pytest.mark.slow),
        pytest.param("learners:1+engines:1", 2, (), marks=pytest.mark.slow),
        # What one device works on grows to the same batch.
        pytest.param("ddp:2/scaling=weak", 2, ("batch.size=8", "batch.mini_batch_size=4"), marks=pytest.mark.slow),
        pytest.param("ddp:4", 4, ("sharding=shard",), marks=pytest.mark.slow),
    ],
)
def test_a_placement_changes_where_not_what(
    tmp_path: Path, one_device: Job, placement: str, devices: int, settings: tuple[str, ...]
) -> None:
    assert_same_training(run_job(tmp_path / "job", placement, devices, *GRPO, *settings), one_device, RESULTS)


def test_replicas_train_as_one_device_alone(one_device: Job, replicas_job: Job) -> None:
    assert_same_training(replicas_job, one_device, RESULTS)


def test_replicas_compute_with_as_many_threads_as_one_device_alone(
    tmp_path: Path, one_device: Job, replicas_job: Job
) -> None:
    plan = make_plan(RunRequest("ddp:1,ddp:2", {"steps": 2, "warmup_steps": 0}, "cpu:2", out=tmp_path))
    one, two = (bound.members["replicas"] for bound in plan.placements)
    assert len({len(device.cores) for device in (*one, *two)}) == 1
    threads = {row["threads"] for job in (one_device, replicas_job) for row in read_jsonl(job.trial.processes)}
    assert threads == {None, 1}  # the controller, which computes nothing, and devices of one core each


def test_there_is_no_critic_anywhere(one_device: Job) -> None:
    graph = {phase.name for phase in step_graph(hands_over=False, has_critic=False)}
    assert not graph & {"values", "update_critic"}
    for step in one_device.steps:
        timings = {name.removeprefix("timing_s/") for name in step if name.startswith("timing_s/")}
        assert timings == graph | {"step", "unattributed"}
        assert step["actor/kl_loss"] >= 0
    assert one_device.steps[1]["actor/kl_loss"] > 0
    of_critic = {name for name in one_device.steps[0] if name.startswith("critic/")}
    assert {name.split("/")[1] for name in of_critic} == {"score", "rewards", "advantages"}
    assert {span["role"] for span in one_device.spans} == {None, "actor", "rollout", "ref", "reward"}


@pytest.mark.slow
def test_it_learns(tmp_path: Path) -> None:
    job = run_job(tmp_path / "job", "standard", 2, "algorithm.name=grpo", "steps=40")
    assert job.exit_code == 0, job.output[-3000:]
    scores = [step["critic/score/mean"] for step in job.steps]
    # Single steps lie between 0 and 0.3 by then, and which they are differs from one kind of CPU to another.
    assert mean(scores[-10:]) > 10 * mean(scores[:10]) > 0
