"""Tracing kernels: how a phase's time is divided, and the step that a launch runs for it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import patched_program, run_job

from placebench.errors import JobExit, LaunchError
from placebench.record.writing import read_jsonl
from placebench.run.failures import lacks_only
from placebench.telemetry.kernels import KernelTrace, shares
from placebench.telemetry.spans import TRACED_STEP

NAMES = ("nvjet_gemm", "ncclDevKernel_AllGather", "Memcpy HtoD")
PARTS = ("kernel_s", "collective_s", "copy_s", "no_kernel_s")
MILLISECOND = 1_000_000
# Nanoseconds since the epoch, as the profiler gives them.
EPOCH = 1_795_334_123_498_843_123


def test_a_collective_or_copy_beside_a_computing_kernel_costs_nothing() -> None:
    events = [
        ("nvjet_gemm", EPOCH, 30 * MILLISECOND),
        ("ncclDevKernel_ReduceScatter", EPOCH + 20 * MILLISECOND, 30 * MILLISECOND),
        ("Memcpy DtoD", EPOCH + 45 * MILLISECOND, 15 * MILLISECOND),
        ("cross_device_reduce_1stage", EPOCH + 90 * MILLISECOND, 5 * MILLISECOND),
    ]
    assert shares(events, 0.1) == pytest.approx(
        {"span_s": 0.1, "kernel_s": 0.03, "collective_s": 0.025, "copy_s": 0.01, "no_kernel_s": 0.035}
    )


def test_where_nothing_ran_the_host_was_waited_for() -> None:
    assert shares([], 0.1) == {"span_s": 0.1, "kernel_s": 0, "collective_s": 0, "copy_s": 0, "no_kernel_s": 0.1}


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 900), st.integers(1, 100)).map(
            lambda event: (event[0], EPOCH + event[1] * MILLISECOND, event[2] * MILLISECOND)
        )
    )
)
def test_the_parts_of_a_phase_add_up_to_it(events: list[tuple[str, int, int]]) -> None:
    found = shares(events, 1.0)
    busy = {(start - EPOCH) // MILLISECOND + ms for _, start, length in events for ms in range(length // MILLISECOND)}
    assert sum(found[part] for part in PARTS) == pytest.approx(1.0)
    assert found["no_kernel_s"] == pytest.approx(1.0 - len(busy) / 1000, abs=1e-9)


def test_what_the_profiler_saw_makes_no_objects_and_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it sees operators, and no kernels."""
    import torch
    from torch.autograd.profiler import profile as inner
    from torch.profiler import ProfilerActivity, profile

    def of_cpu(activities: object, **more: Any) -> profile:
        assert activities == [ProfilerActivity.CUDA]
        return profile(activities=[ProfilerActivity.CPU], **more)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("torch.profiler.profile", of_cpu)
    monkeypatch.setattr(inner, "_parse_kineto_results", lambda *_, **__: pytest.fail("one for every event"))
    trace = KernelTrace("gpu:0")
    for step in (1, 2):
        with trace.phase(step, "gen"):
            torch.ones(4).sum()
    with pytest.raises(LaunchError), trace.phase(3, "gen"):
        raise LaunchError("no memory")
    found = trace.drain()
    assert [(row["step"], row["phase"], row["device"]) for row in found] == [(1, "gen", "gpu:0"), (2, "gen", "gpu:0")]
    assert all(row["no_kernel_s"] == row["span_s"] > 0 for row in found)


# Nothing but a GPU has kernels; tests/test_gpu_run.py traces real ones.
TRACED = """
from contextlib import contextmanager
from placebench.ppo.engine import Engine
from placebench.ppo.worker import Worker
from placebench.telemetry.kernels import KernelTrace, shares

class Trace(KernelTrace):
    @contextmanager
    def phase(self, step, name):
        yield
        self._rows.append({"step": step, "phase": name, "device": self._device, **shares([], 0.1)})

class Traced:
    def start(self, host):
        self._kernels = Trace(self._device_record["id"])
        return super().start(host)

class TracedWorker(Traced, Worker):
    pass

class TracedEngine(Traced, Engine):
    pass
"""
PATCH = """
from placebench.ppo import engine, worker
from placebench.jobs import ppo as launch
worker.Worker, engine.Engine = patches.TracedWorker, patches.TracedEngine
launch.PPOJob._traces_kernels = lambda launch: True
"""


@pytest.mark.parametrize(
    ("placement", "devices", "settings", "untraced"),
    [
        pytest.param("standard", 1, (), set(), marks=pytest.mark.slow),
        pytest.param("split", 2, (), set(), marks=pytest.mark.slow),
        pytest.param("learners:1+engines:1/staleness=1", 2, (), set(), marks=pytest.mark.slow),
        pytest.param("standard", 1, ("batch.max_response_length=2049",), {"gen"}, marks=pytest.mark.slow),
    ],
)
def test_the_traced_step_comes_after_those_that_count(
    tmp_path: Path, placement: str, devices: int, settings: tuple[str, ...], untraced: set[str]
) -> None:
    program = patched_program(tmp_path, TRACED, PATCH)
    sizes = ("steps=2", "warmup_steps=0", "batch.size=8", "batch.mini_batch_size=4")
    job = run_job(tmp_path / "job", placement, devices, *sizes, *settings, program=program)
    assert job.exit_code == 0, job.output[-3000:]
    assert [row["step"] for row in read_jsonl(job.trial.steps)] == [1, 2]
    assert [line.split(" ")[0] for line in job.output.splitlines() if line.startswith("step:")] == ["step:1", "step:2"]
    (traced,) = (span for span in job.spans if span["phase"] == TRACED_STEP)
    steps = [span for span in job.spans if span["phase"] == "step"]
    assert [span["step"] for span in steps] == [1, 2]
    assert max(span["end_mono"] for span in steps) <= traced["start_mono"]
    rows = list(read_jsonl(job.trial.kernels))
    phases = {(span["phase"], span["device"]) for span in job.spans if span["step"] and span["role"]}
    on_devices = {(phase, device) for phase, device in phases if device != "controller" and phase not in untraced}
    assert {(row["phase"], row["device"]) for row in rows} == on_devices


@pytest.mark.slow
def test_a_trace_that_fails_leaves_the_stage_by_which_the_launch_is_kept(tmp_path: Path) -> None:
    failing = TRACED.replace("        yield\n", "        raise RuntimeError('no trace')\n        yield\n")
    program = patched_program(tmp_path, failing, PATCH)
    sizes = ("steps=2", "warmup_steps=0", "batch.size=8", "batch.mini_batch_size=4")
    job = run_job(tmp_path / "job", "standard", 1, *sizes, program=program)
    assert job.exit_code == JobExit.FAILED
    assert "no trace" in job.trial.error.read_text()
    assert lacks_only(job.trial) == "the trace of its kernels"
    assert len(job.steps) == 2
    assert not job.trial.kernels.exists()
