"""Settings that vLLM gets, as far as no engine is needed for it."""

import json
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from disks import small_disk
from hypothesis import given
from hypothesis import strategies as st

from placebench.errors import LaunchError
from placebench.ppo.models import model_config
from placebench.ppo.rollout.base import Generated, SamplingSettings
from placebench.ppo.rollout.vllm_build import (
    config_folder,
    draws_by_seed,
    engine_seed,
    graph_sizes,
    kv_cache_bytes,
    warm_up_as_the_job,
)
from placebench.ppo.rollout.vllm_known import Known
from placebench.predict.memory.engine import EngineMemory
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.spec.placement import Role
from placebench.spec.shapes import PRESETS
from placebench.spec.workload_reading import build_workload


@given(st.integers(1, 2048))
def test_decoding_a_batch_has_a_graph_of_its_size_and_others_that_pad_little(sequences: int) -> None:
    sizes = graph_sizes(sequences)
    assert sizes[0] == 1
    assert sizes[-1] == sequences
    assert all(before < size <= max(2 * before, before + 16) for before, size in pairwise(sizes))


@given(
    st.sampled_from(sorted(PRESETS)),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 64),
    st.none() | st.floats(0.01, 1),
)
def test_the_cache_of_an_engine_is_the_one_that_was_planned_for(
    model: str, shared_by: int, sequences: int, share: float | None
) -> None:
    batch = {"size": sequences, "mini_batch_size": sequences}
    rollout = {"backend": "vllm", "tensor_parallel_size": shared_by, "memory_share": share}
    job = build_workload({"model": model, "batch": batch, "rollout": rollout})
    shape, device = PRESETS[model], 24 << 30
    planned = MemoryEstimate(job, shape, shape, (Role.ROLLOUT,), 1, "gpu", device_bytes=device)
    most = EngineMemory(job, shape, 1, "gpu", device).most_cache
    cache = kv_cache_bytes(model_config(model), job, sequences * shared_by, most)
    assert planned.moments["gen"]["kv cache"] == cache
    if share is not None:
        assert cache <= kv_cache_bytes(model_config(model), job, sequences * shared_by)
        return
    # A head at least on each device, and a block of the engine's own.
    length = job.batch.max_prompt_length + job.batch.max_response_length
    heads = max(1, shape.num_key_value_heads // shared_by)
    a_token = 2 * shape.num_hidden_layers * heads * shape.head_width * (2 if job.precision == "bfloat16" else 4)
    assert cache == (sequences * shared_by * -(-length // 128) + 1) * 128 * a_token


def test_the_config_of_a_model_is_written_as_a_whole_or_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = ModuleType("vllm.envs")
    vars(envs).update(VLLM_CACHE_ROOT=str(tmp_path / "disk"))
    package = ModuleType("vllm")
    vars(package).update(envs=envs)
    monkeypatch.setitem(sys.modules, "vllm", package)
    with small_disk(tmp_path / "disk", "8k") as disk:
        (disk / "full").write_bytes(bytes(8192))
        with pytest.raises(LaunchError, match="vLLM's cache cannot be written: No space left on device"):
            config_folder(model_config("tiny"))
        assert [path.name for path in disk.rglob("*") if path.is_file()] == ["full"]
        (disk / "full").unlink()
        folder = config_folder(model_config("tiny"))
        assert [path.name for path in folder.iterdir()] == ["config.json"]
        assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen2ForCausalLM"]


def test_engines_have_seeds_of_their_own_that_numpy_takes() -> None:
    for seed in (0, 2**32 - 1):
        build_workload({"seed": seed})
        seeds = [engine_seed(seed, rank, 2) for rank in range(4)]
        assert [seeds[0] == seeds[1], seeds[1] == seeds[2], seeds[2] == seeds[3]] == [True, False, True]
        for one in seeds:
            np.random.RandomState(one)


def test_only_the_first_model_runner_on_gpus_has_a_price_for_seeds() -> None:
    first, second = (SimpleNamespace(use_v2_model_runner=is_second) for is_second in (False, True))
    assert draws_by_seed(second, is_gpu=True)
    assert not draws_by_seed(first, is_gpu=True)
    assert draws_by_seed(first, is_gpu=False)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make test-slow` sets it up")
def test_an_engine_warms_up_by_what_the_job_samples_with_and_vllms_own_are_as_ever() -> None:
    """There is no GPU here: it is called as vLLM's worker and its warm-up on one do."""
    from vllm import SamplingParams
    from vllm.v1.worker.gpu_worker import Worker

    before = SamplingParams.for_sampler_warmup(), Worker.compile_or_warm_up_model
    assert before[0].repetition_penalty != 1
    told: list[str] = []
    with warm_up_as_the_job(lambda: told.append("now"), 0.9):
        of_job = SamplingParams.for_sampler_warmup()
        with pytest.raises(AttributeError):  # of what is no worker
            Worker.compile_or_warm_up_model(SimpleNamespace())
    assert told == ["now"]
    assert of_job == SamplingParams(temperature=1.0, top_p=0.9, logprobs=0, seed=0)
    assert (SamplingParams.for_sampler_warmup(), Worker.compile_or_warm_up_model) == before


@pytest.mark.slow
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; `make test-slow` sets it up")
@pytest.mark.parametrize("second_runner", [True, False])
def test_on_gpus_requests_have_their_seeds_where_that_costs_nothing(
    second_runner: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no GPU here: what an engine on one is asked for is looked at, not what it draws."""
    from vllm.config import VllmConfig

    from placebench.ppo.rollout.vllm import VllmRollout

    config = VllmConfig()
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(second_runner)))
    asked: list[int | None] = []

    class Engine:
        apply_model = staticmethod(lambda change: None)

    def look(engine: Any, prompts: Any, parameters: Any, *others: Any) -> list[Generated]:
        asked.extend(one.seed for one in parameters)
        return []

    monkeypatch.setattr("placebench.ppo.rollout.vllm.run_requests", look)
    rollout = object.__new__(VllmRollout)
    rollout._engine, rollout._group, rollout._known = Engine(), None, Known()
    rollout._seeded = draws_by_seed(config, is_gpu=True)
    rollout.generate([[5, 6, 7], [9]], [4, 4], [11, 12], SamplingSettings(1.0, 1.0, True, (0,)))
    assert asked == ([11, 12] if second_runner else [None, None])
