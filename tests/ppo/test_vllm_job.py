"""Whole launches that generate with vLLM, for real on CPU: every engine has the weights of the step."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from jobs import Job, engine_program, patched_program, run_job

from placebench.run.forking import RoundServer
from placebench.spec.config import parse_settings
from placebench.spec.workload_reading import build_workload

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make test-slow` sets it up"),
]


RANKS = 2


SMALL = (
    *("rollout.backend=vllm", "rollout.log_probs=always"),
    *("steps=3", "batch.size=16", "batch.mini_batch_size=8", "optimizer.actor_lr=0.01"),
)


STALE_WORKER = """
from placebench.ppo import worker

class StaleWorker(worker.Worker):
    def _run_update_weights(self, version):
        return 0
"""


def differences(job: Job) -> list[float]:
    assert job.exit_code == 0, job.output[-3000:]
    return [step["training/rollout_probs_diff_max"] for step in job.steps]


def test_what_is_trained_does_not_hang_on_whether_the_engine_tells_log_probs(tmp_path: Path) -> None:
    told, left_out = (
        run_job(tmp_path / asked, "standard", 1, *SMALL, "warmup_steps=1", f"rollout.log_probs={asked}")
        for asked in ("always", "needed")
    )
    assert max(differences(told)) < 1e-4
    assert left_out.exit_code == 0, left_out.output[-3000:]
    compared = [{name for name in step if "rollout_probs_diff" in name} for step in left_out.steps]
    assert [len(names) for names in compared] == [2, 0, 0]
    losses = ("actor/pg_loss", "critic/vf_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean")
    for one, same in zip(told.steps, left_out.steps, strict=True):
        assert [one[name] for name in losses] == [same[name] for name in losses]


def test_ranks_that_share_an_engine_generate_with_current_weights(tmp_path: Path) -> None:
    shared = run_job(tmp_path / "job", "standard", RANKS, *SMALL, f"rollout.tensor_parallel_size={RANKS}")
    assert max(differences(shared)) < 1e-4
    assert all(step["perf/update_weights_bytes"] > 0 for step in shared.steps)


def test_prompts_of_more_tokens_than_an_engine_takes_at_a_time_wait(tmp_path: Path) -> None:
    # On CPU vLLM works through 4,096 tokens a step and engine.
    long = ("batch.max_prompt_length=400", "batch.max_response_length=4", "data.fill_prompts=true")
    job = run_job(tmp_path / "job", "standard", 1, *SMALL, *long)
    assert max(differences(job)) < 1e-4
    assert job.steps[0]["prompt_length/mean"] * 16 > 4096


def test_engines_apart_generate_with_the_weights_they_are_sent(tmp_path: Path) -> None:
    job = run_job(tmp_path / "job", "learners:1+engines:1", 2, *SMALL)
    assert max(differences(job)) < 1e-4
    assert all(step["perf/update_weights_bytes"] > 0 for step in job.steps)


def test_ranks_that_share_an_engine_take_weights_between_the_same_tokens(tmp_path: Path) -> None:
    word = "learners:1+engines:1xtp2/staleness=1/inflight_updates=true"
    long = ("batch.max_response_length=96", "rollout.ignore_eos=true", "algorithm.epochs=1", "steps=6")
    slow = engine_program(tmp_path, "SlowEngine")
    job = run_job(tmp_path / "job", word, 3, *SMALL, *long, program=slow)
    first, *_ = differences(job)
    assert first < 1e-4
    assert {step["training/lag_max"] for step in job.steps} <= {0, 1}
    taken = [
        [span["step"] for span in job.spans if (span["phase"], span["device"]) == ("update_weights", device)]
        for device in ("cpu:1", "cpu:2")
    ]
    assert taken[0] == taken[1]
    # Where they came while it generated, the span of generating goes on behind them.
    spans = [span for span in job.spans if span["device"] == "cpu:1" and span["phase"] in ("gen", "update_weights")]
    phases = [(span["phase"], span["step"]) for span in sorted(spans, key=lambda span: float(span["start_mono"]))]
    cut = [
        before for before, one, after in zip(phases, phases[1:], phases[2:], strict=False)
        if one[0] == "update_weights" and before == after
    ]  # fmt: skip
    assert cut


def test_the_metric_of_a_run_shows_an_engine_that_misses_its_update(tmp_path: Path) -> None:
    patch = "from placebench.ppo import worker\nworker.Worker = patches.StaleWorker"
    stale = patched_program(tmp_path, STALE_WORKER, patch)
    first, *others = differences(run_job(tmp_path / "job", "standard", 1, *SMALL, program=stale))
    assert first < 1e-4
    assert min(others) > 1e-2


def test_forked_workers_generate_bit_for_bit_as_new_interpreters_do(tmp_path: Path) -> None:
    server = RoundServer(tmp_path / "fork_server.log", build_workload(parse_settings(SMALL)), ())
    try:
        new = run_job(tmp_path / "new", "standard", 1, *SMALL)
        forked = run_job(tmp_path / "forked", "standard", 1, *SMALL, fork_server=server.of(1))
        assert server.notes == ()
    finally:
        server.close()
    assert "was not forked" not in forked.output
    assert max(differences(forked)) < 1e-4
    names = {name for name in new.steps[0] if not name.startswith(("timing_", "perf/"))}
    for one, same in zip(new.steps, forked.steps, strict=True):
        assert {name: one[name] for name in names} == {name: same[name] for name in names}
