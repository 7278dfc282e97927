from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from placebench.memory import estimate_memory
from placebench.models import PRESETS, ModelShape
from placebench.placement import Role
from placebench.ppo import models
from placebench.workload import Workload, build_workload

ALL = tuple(Role)
# Wide enough that what does not grow with the block (position tables, masks) hardly counts.
SHAPES = (
    replace(PRESETS["tiny"], hidden_size=256, num_hidden_layers=6),
    replace(PRESETS["tiny"], hidden_size=256, num_hidden_layers=6, num_key_value_heads=1, intermediate_size=2048),
)


def workload(**batch: int) -> Workload:
    return build_workload({"batch": batch})


def saved_bytes(module: torch.nn.Module, *inputs: torch.Tensor) -> int:
    """Bytes that autograd keeps for the backward pass, weights aside, each storage once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("sharding", ["replicate", "shard"])
@pytest.mark.parametrize("shape", SHAPES)
def test_activations_are_what_autograd_keeps(
    shape: ModelShape, sharding: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "PRESETS", {"shape": shape})
    critic = models.build_critic("shape", 0)
    casts = precision == "bfloat16" and sharding == "replicate"
    if precision == "bfloat16" and sharding == "shard":
        critic.bfloat16()  # what a sharded model computes with
    batch = {"size": 8, "mini_batch_size": 8, "max_prompt_length": 24, "max_response_length": 8}
    job = build_workload({"batch": batch, "precision": precision, "sharding": sharding})
    tokens = torch.ones(8, 32, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16, enabled=casts):
        measured = saved_bytes(critic, tokens, torch.ones(8, 32, dtype=torch.bool))
    parts = estimate_memory(job, shape, shape, (Role.CRITIC,), 1, "cpu").parts
    assert parts["activations"] + parts.get("copies", 0) == pytest.approx(measured, rel=0.05)


def test_static_parts_follow_the_parameters() -> None:
    shape = PRESETS["tiny"]
    policy = models.build_policy("tiny", 0, 1.0)
    critic = models.build_critic("tiny", 0)
    actor_count = sum(parameter.numel() for parameter in policy.parameters())
    critic_count = sum(parameter.numel() for parameter in critic.parameters())
    parts = estimate_memory(workload(), shape, shape, ALL, 2, "cpu").parts
    assert parts["weights"] == 4 * (2 * actor_count + critic_count)
    assert parts["optimizer"] == 8 * (actor_count + critic_count)
    assert parts["gradients"] == 8 * actor_count


@given(ranks=st.sampled_from([1, 2, 4, 8]), roles=st.sets(st.sampled_from(ALL), min_size=1))
def test_sharding_over_more_ranks_never_needs_more(ranks: int, roles: set[Role]) -> None:
    shape = PRESETS["qwen2.5-1.5b"]
    job = build_workload({"model": "qwen2.5-1.5b"})
    fewer = estimate_memory(job, shape, shape, roles, ranks, "gpu").always
    more = estimate_memory(job, shape, shape, roles, 2 * ranks, "gpu").always
    assert all(more[part] <= fewer[part] for part in fewer)
    assert more["weights"] == pytest.approx(fewer["weights"] / 2, abs=1)


@given(roles=st.sets(st.sampled_from(ALL), min_size=1), left_out=st.sampled_from(ALL))
def test_a_role_less_never_needs_more(roles: set[Role], left_out: Role) -> None:
    shape = PRESETS["qwen2.5-0.5b"]
    job = build_workload({"model": "qwen2.5-0.5b"})
    with_it = estimate_memory(job, shape, shape, roles | {left_out}, 2, "gpu").peak
    assert estimate_memory(job, shape, shape, roles - {left_out}, 2, "gpu").peak <= with_it


def test_checkpointing_trades_activations() -> None:
    shape = PRESETS["qwen2.5-7b"]
    plain = build_workload({"model": "qwen2.5-7b"})
    checkpointed = build_workload({"model": "qwen2.5-7b", "activation_checkpointing": True})
    before, after = (estimate_memory(job, shape, shape, ALL, 4, "gpu").parts for job in (plain, checkpointed))
    assert after["activations"] < before["activations"] / 5


def test_parts_are_sorted_and_add_up_to_the_peak() -> None:
    shape = PRESETS["qwen2.5-0.5b"]
    estimate = estimate_memory(build_workload({"model": "qwen2.5-0.5b"}), shape, shape, ALL, 1, "gpu")
    sizes = list(estimate.parts.values())
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == estimate.peak


def test_an_engine_of_its_own_holds_weights_and_cache_all_the_time() -> None:
    shape = PRESETS["qwen2.5-0.5b"]
    job = build_workload({"model": "qwen2.5-0.5b", "rollout": {"backend": "vllm"}})
    engine = estimate_memory(job, shape, shape, ALL, 2, "gpu").always["engine"]
    tokens = 128 * 1024
    assert engine == 2 * shape.parameters + 2 * 2 * 24 * 2 * 64 * tokens
    assert estimate_memory(job, shape, shape, (Role.CRITIC,), 2, "gpu").always["engine"] == 0
