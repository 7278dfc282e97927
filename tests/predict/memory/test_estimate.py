from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from placebench.ppo import models
from placebench.ppo.batch import SequenceBatch
from placebench.ppo.packing import pack
from placebench.ppo.training import place
from placebench.predict.memory.engine import EngineMemory
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.predict.memory.model import Parts
from placebench.spec.placement import Role
from placebench.spec.shapes import PRESETS, ModelShape
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload

ALL = tuple(Role)
# Wide enough that what does not grow with the block (position tables, masks) hardly counts.
SHAPES = (
    replace(PRESETS["tiny"], hidden_size=256, num_hidden_layers=3),
    replace(PRESETS["tiny"], hidden_size=256, num_hidden_layers=3, num_key_value_heads=1, intermediate_size=2048),
    replace(
        PRESETS["tiny"], model_type="qwen3", hidden_size=256, num_hidden_layers=3, num_key_value_heads=2, head_dim=128
    ),
)


def workload(**batch: int) -> Workload:
    return build_workload({"batch": batch})


def critic(name: str, precision: torch.dtype) -> models.ValueModel:
    model = models.ValueModel(models.load_language_model(name))
    for part in (*model.layers, model):
        model.materialize(part, torch.device("cpu"), precision)
    return model


def saved_bytes(module: torch.nn.Module, *inputs: Any) -> int:
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


# Compiling looks at the gradient of every input, which those of blocks do not keep.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("sharding", ["replicate", "shard"])
@pytest.mark.parametrize(
    ("shape", "compiled"),
    [
        *((shape, False) for shape in SHAPES),
        (SHAPES[0], True),
        *(pytest.param(shape, True, marks=pytest.mark.slow) for shape in SHAPES[1:]),
    ],
)
def test_activations_are_what_autograd_keeps(
    shape: ModelShape, compiled: bool, sharding: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "PRESETS", {"shape": shape})
    model = critic("shape", torch.bfloat16 if precision == "bfloat16" and sharding == "shard" else torch.float32)
    if compiled:
        torch.compiler.reset()  # else the limit of recompilations is reached after some cases
        for layer in model.layers:
            layer.forward = torch.compile(layer.forward, backend="aot_eager_decomp_partition")
    casts = precision == "bfloat16" and sharding == "replicate"
    batch = {"size": 8, "mini_batch_size": 8, "max_prompt_length": 24, "max_response_length": 8}
    job = build_workload({"batch": batch, "precision": precision, "sharding": sharding, "torch_compile": compiled})
    packed = pack(
        SequenceBatch.build([[1] * 24] * 8, [[2] * 8] * 8), 32, torch.device("cpu"), getattr(torch, precision)
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=casts):
        measured = saved_bytes(model, packed.inputs, packed.predict_positions)
    parts = MemoryEstimate(job, shape, shape, (Role.CRITIC,), 1, "cpu").moments["update_critic"]
    copies = parts["copies"] if casts else 0
    assert parts["activations"] + copies == pytest.approx(measured, rel=0.1)


# As above.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_blocks_of_a_replica_keep_what_they_keep_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch would cut blocks as large as these where the buckets of their gradients end.
    shape = replace(PRESETS["tiny"], hidden_size=1024, num_hidden_layers=2, intermediate_size=8192)
    monkeypatch.setattr(models, "PRESETS", {"shape": shape})
    batch = {"size": 8, "mini_batch_size": 8, "max_prompt_length": 96, "max_response_length": 32}
    settings = {"batch": batch, "precision": "bfloat16", "sharding": "replicate", "torch_compile": True}
    job = build_workload(settings)
    packed = pack(SequenceBatch.build([[1] * 96] * 8, [[2] * 32] * 8), 128, torch.device("cpu"), torch.bfloat16)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
    torch.compiler.reset()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = place(models.ValueModel(models.load_language_model("shape")), job, torch.device("cpu"), 0, trained=True)
        with torch.autocast("cpu", torch.bfloat16):
            measured = saved_bytes(model, packed.inputs, packed.predict_positions)
    finally:
        dist.destroy_process_group()
    parts = MemoryEstimate(job, shape, shape, (Role.CRITIC,), 1, "cpu").moments["update_critic"]
    assert parts["activations"] + parts["copies"] == pytest.approx(measured, rel=0.02)


def test_static_parts_follow_the_parameters() -> None:
    shape = PRESETS["tiny"]
    policy = models.PolicyModel(models.load_language_model("tiny"), 1.0, torch.float32, compiled=False)
    actor_count = sum(parameter.numel() for parameter in policy.parameters())
    critic_count = sum(parameter.numel() for parameter in critic("tiny", torch.float32).parameters())
    parts = MemoryEstimate(workload(), shape, shape, ALL, 2, "cpu").moments["update_actor"]
    assert parts["weights"] == 4 * (2 * actor_count + critic_count)
    assert parts["optimizer"] == 8 * (actor_count + critic_count)
    assert parts["gradients"] == 4 * (actor_count + critic_count)
    # The buckets of those that are added up, beside the gradients of a micro-batch.
    several = workload(size=64, mini_batch_size=64, micro_batch_tokens=512)
    parts = MemoryEstimate(several, shape, shape, ALL, 2, "cpu").moments["update_actor"]
    assert parts["gradients"] == 4 * (2 * actor_count + critic_count)


def test_logits_of_an_update_are_those_of_one_chunk() -> None:
    shape = PRESETS["qwen2.5-1.5b"]
    compiled, plain = (
        MemoryEstimate(build_workload({"model": "qwen2.5-1.5b", "torch_compile": on}), shape, shape, ALL, 4, "gpu")
        for on in (True, False)
    )
    table = (1 << 28) // shape.vocab_size * shape.vocab_size
    head = shape.vocab_size * shape.hidden_size
    assert compiled.moments["update_actor"]["logits"] == 4 * table + 6 * head
    assert plain.moments["update_actor"]["logits"] == 27 * table + 6 * head


def test_the_reference_has_no_master_weights() -> None:
    shape = PRESETS["qwen2.5-1.5b"]
    job = build_workload({"model": "qwen2.5-1.5b"})
    assert MemoryEstimate(job, shape, shape, (Role.REF,), 2, "gpu").moments["ref"]["weights"] == shape.parameters


def test_grpo_has_no_critic_to_keep() -> None:
    shape = PRESETS["tiny"]
    grpo = build_workload({"algorithm": {"name": "grpo"}})
    others = tuple(role for role in ALL if role is not Role.CRITIC)
    with_it, without = (MemoryEstimate(grpo, shape, shape, roles, 2, "cpu") for roles in (ALL, others))
    assert with_it.moments == without.moments
    assert "update_critic" in MemoryEstimate(build_workload({}), shape, shape, ALL, 2, "cpu").moments


@given(ranks=st.sampled_from([1, 2, 4, 8]), roles=st.sets(st.sampled_from(ALL), min_size=1))
def test_sharding_over_more_ranks_never_needs_more(ranks: int, roles: set[Role]) -> None:
    shape = PRESETS["qwen2.5-1.5b"]
    job = build_workload({"model": "qwen2.5-1.5b"})
    fewer = MemoryEstimate(job, shape, shape, roles, ranks, "gpu").moments["idle"]
    more = MemoryEstimate(job, shape, shape, roles, 2 * ranks, "gpu").moments["idle"]
    # The allocator's share is larger where several ranks reduce gradients.
    assert all(more[part] <= fewer[part] for part in fewer if part != "allocator")
    assert more["weights"] == pytest.approx(fewer["weights"] / 2, abs=1)


@given(roles=st.sets(st.sampled_from(ALL), min_size=1), left_out=st.sampled_from(ALL))
def test_a_role_less_never_needs_more(roles: set[Role], left_out: Role) -> None:
    shape = PRESETS["qwen2.5-0.5b"]
    job = build_workload({"model": "qwen2.5-0.5b"})
    with_it = MemoryEstimate(job, shape, shape, roles | {left_out}, 2, "gpu").peak
    assert MemoryEstimate(job, shape, shape, roles - {left_out}, 2, "gpu").peak <= with_it


def test_checkpointing_trades_activations() -> None:
    shape = PRESETS["qwen2.5-7b"]
    plain = build_workload({"model": "qwen2.5-7b"})
    checkpointed = build_workload({"model": "qwen2.5-7b", "activation_checkpointing": True})
    before, after = (
        MemoryEstimate(job, shape, shape, ALL, 4, "gpu").moments["update_actor"] for job in (plain, checkpointed)
    )
    assert after["activations"] < before["activations"] / 5


def test_parts_are_sorted_and_add_up_to_the_peak() -> None:
    shape = PRESETS["qwen2.5-0.5b"]
    estimate = MemoryEstimate(build_workload({"model": "qwen2.5-0.5b"}), shape, shape, ALL, 1, "gpu")
    sizes = list(estimate.parts.values())
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == estimate.peak


@pytest.mark.parametrize("shared_by", [1, 2])
def test_an_engine_that_sleeps_is_there_for_generation_and_its_weights_alone(shared_by: int) -> None:
    shape = PRESETS["qwen2.5-0.5b"]

    def moments(sleep: bool) -> Mapping[str, Parts]:
        rollout = {"backend": "vllm", "sleep": sleep, "tensor_parallel_size": shared_by}
        job = build_workload({"model": "qwen2.5-0.5b", "rollout": rollout})
        return MemoryEstimate(job, shape, shape, ALL, 2, "gpu").moments

    asleep, awake = moments(True), moments(False)
    tokens = (128 * shared_by * 8 + 1) * 128 // shared_by
    for name in asleep:
        if name == "build_models":
            assert "engine" not in awake[name]
            continue
        assert awake[name]["engine"] == 2 * shape.parameters // shared_by
        assert awake[name]["kv cache"] == 2 * 2 * 24 * 2 * 64 * tokens
        assert ("engine" in asleep[name]) == (name in ("gen", "update_weights"))


def test_devices_that_are_more_than_the_heads_hold_copies_of_keys_and_values() -> None:
    shape = PRESETS["qwen2.5-0.5b"]  # two heads of 64

    def cache(shared_by: int) -> int:
        job = build_workload({"model": "qwen2.5-0.5b", "rollout": {"tensor_parallel_size": shared_by}})
        return MemoryEstimate(job, shape, shape, (Role.ROLLOUT,), 4, "gpu").moments["gen"]["kv cache"]

    # Sequences of eight blocks; 64 for each of the 4 devices, and a block of the engine's own.
    assert cache(2) == 2 * 2 * 24 * 64 * (64 * 2 * 8 + 1) * 128
    assert cache(4) == 2 * 2 * 24 * 64 * (64 * 4 * 8 + 1) * 128


@given(
    shares=st.tuples(*(st.floats(0.001, 1) for _ in range(2))).map(sorted),
    model=st.sampled_from(["qwen2.5-0.5b", "qwen2.5-7b"]),
    settings=st.fixed_dictionaries({"sleep": st.booleans(), "tensor_parallel_size": st.sampled_from([1, 2])}),
    roles=st.sampled_from([ALL, (Role.ROLLOUT,), (Role.ACTOR, Role.ROLLOUT, Role.REF)]),
    size=st.sampled_from([64, 1024, 16_384]),
)
def test_a_larger_share_for_engines_never_needs_less_and_none_needs_most(
    shares: list[float], model: str, settings: dict[str, Any], roles: tuple[Role, ...], size: int
) -> None:
    shape, device = PRESETS[model], 80 << 30
    estimates = []
    for share in (*shares, None):
        rollout = {**settings, "memory_share": share}
        job = build_workload({"model": model, "batch": {"size": size, "mini_batch_size": 64}, "rollout": rollout})
        estimates.append(MemoryEstimate(job, shape, shape, roles, 2, "gpu", device_bytes=device))
        parts = estimates[-1].moments["gen"]
        engine = EngineMemory(job, shape, 2, "gpu", device)
        taken = sum(parts[part] for part in ("engine", "graphs", "prefill", "kv cache"))
        assert taken == engine.whole
        assert share is None or taken <= max(engine.least, share * device)
    for less, more in pairwise(estimates):
        assert less.peak <= more.peak
        assert less.moments["gen"]["kv cache"] <= more.moments["gen"]["kv cache"]


def test_a_share_leaves_as_many_blocks_as_go_into_it() -> None:
    shape, device = PRESETS["qwen2.5-1.5b"], 80 << 30

    def parts(share: float | None) -> Parts:
        job = build_workload({"model": "qwen2.5-1.5b", "batch": {"size": 8192}, "rollout": {"memory_share": share}})
        return MemoryEstimate(job, shape, shape, (Role.ROLLOUT,), 1, "gpu", device_bytes=device).moments["gen"]

    block, whole = 128 * 2 * 2 * 28 * 2 * 128, parts(None)
    beside = whole["engine"] + whole["graphs"] + whole["prefill"]
    assert parts(0.5)["kv cache"] == ((device // 2) - beside) // block * block
    assert {**parts(0.5), "kv cache": whole["kv cache"]} == whole
    # Of a share that leaves nothing it is what one sequence of eight blocks needs, and the engine's own block.
    assert parts(0.01)["kv cache"] == 9 * block


def test_a_pool_without_rollout_has_no_engine() -> None:
    shape = PRESETS["qwen2.5-0.5b"]
    job = build_workload({"model": "qwen2.5-0.5b"})
    for parts in MemoryEstimate(job, shape, shape, (Role.CRITIC,), 2, "gpu").moments.values():
        assert not {"engine", "kv cache", "graphs"} & set(parts)


def test_a_small_model_on_a_single_rank_keeps_the_weights_that_it_computes_with() -> None:
    def copies(model: str, ranks: int) -> int:
        shape = PRESETS[model]
        job = build_workload({"model": model})
        return MemoryEstimate(job, shape, shape, ALL, ranks, "gpu").moments["update_actor"]["copies"]

    assert copies("qwen2.5-1.5b", 1) == 2 * PRESETS["qwen2.5-1.5b"].parameters
    assert copies("qwen2.5-1.5b", 2) < copies("qwen2.5-1.5b", 1) / 4
    assert copies("qwen2.5-7b", 1) == copies("qwen2.5-7b", 2)


def test_sequences_of_equal_length_fill_micro_batches_evenly() -> None:
    shape = PRESETS["qwen2.5-0.5b"]

    def activations(tokens: int, **rollout: bool) -> int:
        job = build_workload({"model": "qwen2.5-0.5b", "batch": {"micro_batch_tokens": tokens}, "rollout": rollout})
        return MemoryEstimate(job, shape, shape, ALL, 4, "gpu").moments["update_actor"]["activations"]

    # 32 sequences of 1,024 tokens a rank: three micro-batches of at most 11.
    assert activations(15_000) == activations(11 * 1024)
    assert activations(15_000, ignore_eos=False) > activations(11 * 1024)


TRAINS_ACTOR, TRAINS_CRITIC = (Role.ACTOR, Role.ROLLOUT, Role.REF), (Role.CRITIC, Role.REWARD)
LEARNS = (Role.ACTOR, Role.REF, *TRAINS_CRITIC)
GRPO = {"algorithm": {"name": "grpo"}, "sharding": "replicate", "batch": {"group_size": 4}}
LONG = {"mini_batch_size": 16, "max_prompt_length": 512, "max_response_length": 3584}


# Peaks that NVML showed on H200s with torch 2.11 and vLLM 0.26: 512 + 512 tokens, two mini-batches, GiB. The last two
# are an H100's, longer sequences in one mini-batch.
@pytest.mark.parametrize(
    ("model", "roles", "ranks", "size", "settings", "gib"),
    [
        ("qwen2.5-1.5b", ALL, 1, 64, {}, 87.9),
        ("qwen2.5-1.5b", ALL, 2, 128, {}, 69.8),
        ("qwen2.5-1.5b", TRAINS_CRITIC, 1, 128, {}, 59.3),
        ("qwen2.5-0.5b", ALL, 2, 64, {"rollout": {"tensor_parallel_size": 2}}, 29.8),
        ("qwen2.5-7b", ALL, 4, 64, {"batch": {"micro_batch_tokens": 8192}}, 114),
        ("qwen2.5-7b", TRAINS_ACTOR, 2, 64, {"batch": {"micro_batch_tokens": 8192}}, 120),
        ("qwen2.5-7b", TRAINS_CRITIC, 2, 64, {"batch": {"micro_batch_tokens": 8192}}, 97.8),
        ("qwen2.5-1.5b", ALL, 4, 256, {}, 52.6),
        ("qwen2.5-1.5b", TRAINS_ACTOR, 2, 256, {}, 56.7),
        ("qwen2.5-1.5b", TRAINS_CRITIC, 2, 256, {}, 52.3),
        ("qwen2.5-1.5b", TRAINS_CRITIC, 1, 240, {}, 57.5),
        ("qwen2.5-1.5b", LEARNS, 2, 240, {}, 68.2),
        ("qwen2.5-1.5b", (Role.ROLLOUT,), 2, 240, {}, 9.3),
        ("qwen2.5-1.5b", LEARNS, 1, 128, {}, 88.4),
        ("qwen2.5-1.5b", (Role.ROLLOUT,), 1, 128, {}, 9.83),
        ("qwen2.5-1.5b", TRAINS_ACTOR, 1, 128, GRPO, 79.1),
        ("qwen2.5-1.5b", TRAINS_ACTOR, 2, 128, GRPO, 76.0),
        ("qwen2.5-1.5b", TRAINS_ACTOR, 4, 128, GRPO, 69.9),
        ("qwen2.5-1.5b", TRAINS_CRITIC, 1, 264, {}, 64.9),
        ("qwen2.5-1.5b", ALL, 1, 64, {"batch": {"mini_batch_size": 64, "micro_batch_tokens": 8192}}, 80.3),
        ("qwen2.5-1.5b", (Role.ACTOR, Role.REF), 1, 16, {"batch": LONG}, 70.7),
        ("qwen2.5-0.5b", (Role.ACTOR, Role.REF, Role.CRITIC), 1, 16, {"batch": LONG}, 37.7),
    ],
)
def test_estimates_are_within_a_tenth_of_measured_peaks(
    model: str, roles: tuple[Role, ...], ranks: int, size: int, settings: Mapping[str, Any], gib: float
) -> None:
    shape = PRESETS[model]
    batch = {"size": size, "mini_batch_size": size // 2, **settings.get("batch", {})}
    job = build_workload({"model": model, **settings, "batch": batch})
    assert MemoryEstimate(job, shape, shape, roles, ranks, "gpu").peak / 2**30 == pytest.approx(gib, rel=0.1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_learners_hold_the_bucket_that_they_send_and_what_they_gather_for_it(ranks: int) -> None:
    shape = PRESETS["qwen2.5-1.5b"]
    job = build_workload({"model": "qwen2.5-1.5b", "sharding": "shard"})
    embedding = 2 * shape.vocab_size * shape.hidden_size
    moments = MemoryEstimate(job, shape, shape, LEARNS, ranks, "gpu").moments
    # One device has every weight whole already; of two, the largest unit is the root, which is the embedding.
    assert moments["update_weights"]["copies"] == ranks * embedding
    together = MemoryEstimate(job, shape, shape, (Role.ROLLOUT, *LEARNS), ranks, "gpu").moments["update_weights"]
    assert together["copies"] == (ranks - 1) * embedding


@pytest.mark.parametrize("backend", ["torch", "vllm"])
def test_engines_apart_hold_whole_weights_and_a_bucket_more(backend: str) -> None:
    shape = PRESETS["qwen2.5-1.5b"]
    job = build_workload({"model": "qwen2.5-1.5b", "rollout": {"backend": backend}})
    moments = MemoryEstimate(job, shape, shape, (Role.ROLLOUT,), 2, "gpu").moments
    assert moments["gen"]["engine"] == moments["idle"]["engine"] == 2 * shape.parameters
    assert moments["gen"].get("copies", 0) == moments["gen"]["weights"] == moments["gen"]["optimizer"] == 0
    assert moments["update_weights"]["copies"] == 2 * shape.vocab_size * shape.hidden_size
