"""Placements that cannot fit into their devices' memory, and what is proposed instead."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placebench.plan.headroom import too_large
from placebench.plan.plan import Plan
from placebench.predict.memory.fitting import MEMORY_KEYS
from placebench.record.folder import RunFolder
from placebench.spec.bound import bind
from placebench.spec.config import parse_settings
from placebench.spec.devices import Device
from placebench.spec.nested import merge, nest
from placebench.spec.placement_checks import impossible_placements
from placebench.spec.words import parse_placement
from placebench.spec.workload import workload_keys
from placebench.spec.workload_reading import build_workload


def device(node: int, index: int, memory: int = 1 << 34) -> Device:
    return Device(f"cpu:{index}", "cpu", index, f"node{node}", "a processor", memory, (index,))


def gpu_plan(words: Sequence[str], count: int, gibibytes: int, **workload: Any) -> Plan:
    gpus = tuple(replace(device(0, index, gibibytes << 30), id=f"GPU-{index}", kind="gpu") for index in range(count))
    bound = tuple(bind(parse_placement(word, [count]), gpus) for word in words)
    return Plan("x", RunFolder(Path("x")), bound, build_workload(workload), gpus, 1, 1.0)


def refused_for_memory(plan: Plan) -> Iterator[str]:
    return too_large(plan.workload, plan.placements, plan.devices)


def settings_of(line: str) -> dict[str, Any]:
    """What a refusal proposes."""
    return parse_settings(re.findall(r"--set (\S+)", line.split("; ")[-1]))


def fullest(plan: Plan) -> float:
    """The largest share of a device's memory that a plan is said to need."""
    return max(estimate.peak for estimate in plan.memory.values()) / plan.devices[0].memory_bytes


def test_what_cannot_fit_on_a_gpu_is_refused_for_its_pool() -> None:
    job = {"model": "qwen2.5-7b", "batch": {"micro_batch_tokens": 8192}}
    found = list(refused_for_memory(gpu_plan(["standard", "split:3+1"], 4, 141, **job)))
    assert len(found) == 1
    assert "placement 'split:3+1': each device of critic_pool needs about" in found[0]
    assert "in update_critic (" in found[0]
    assert "GPU-3 has 141.0 GiB; --set batch.micro_batch_tokens=" in found[0]


@pytest.mark.parametrize(
    ("model", "word", "count", "gibibytes", "keys"),
    [
        ("qwen2.5-7b", "standard", 4, 120, {"batch"}),
        ("qwen2.5-0.5b", "split:2+2", 4, 12, {"batch"}),
        ("qwen2.5-1.5b", "standard", 2, 40, {"batch"}),
        ("qwen2.5-1.5b", "standard", 4, 22, {"batch", "rollout", "activation_checkpointing"}),
    ],
)
def test_the_settings_proposed_fit_and_a_little_more_does_not(
    model: str, word: str, count: int, gibibytes: int, keys: set[str]
) -> None:
    (line,) = refused_for_memory(gpu_plan([word], count, gibibytes, model=model))
    proposed = settings_of(line)
    assert set(proposed) <= keys, line
    assert list(refused_for_memory(gpu_plan([word], count, gibibytes, model=model, **proposed))) == []
    assert fullest(gpu_plan([word], count, gibibytes, model=model, **proposed)) <= 0.95
    if set(proposed) == {"batch"}:
        proposed["batch"]["micro_batch_tokens"] += 1024
        tokens = proposed["batch"]["micro_batch_tokens"]
        assert tokens >= 16_384 or fullest(gpu_plan([word], count, gibibytes, model=model, **proposed)) > 0.95


# `step` is what divides every batch that can be: the mini-batch, pairs of groups of 8, whole groups for 3 engines.
# The last is so large that its sampler alone fills the devices, whatever share of them holds keys and values.
@pytest.mark.parametrize(
    ("words", "count", "batch", "algorithm", "step", "backend"),
    [
        (["standard"], 2, {"size": 16_384, "mini_batch_size": 128}, "ppo", 128, "torch"),
        (["standard", "split:3+1"], 4, {"size": 24_576, "mini_batch_size": 96}, "ppo", 96, "torch"),
        (["standard"], 2, {"size": 16_384, "mini_batch_size": 16_384}, "grpo", 8, "torch"),
        (["learners:1+engines:3"], 4, {"size": 49_152, "mini_batch_size": 1024}, "grpo", 3072, "torch"),
        (["standard"], 2, {"size": 65_536, "mini_batch_size": 128}, "ppo", 128, "vllm"),
    ],
)
def test_a_smaller_batch_is_proposed_where_generating_needs_too_much(
    words: list[str], count: int, batch: dict[str, int], algorithm: str, step: int, backend: str
) -> None:
    job = {"model": "qwen2.5-1.5b", "algorithm": {"name": algorithm}, "rollout": {"backend": backend}}
    lines = list(refused_for_memory(gpu_plan(words, count, 80, batch=batch, **job)))
    assert len(lines) == len(words)
    for line, word in zip(lines, words, strict=True):
        assert " GiB in gen (" in line
        assert line.endswith(" a device")
        proposed = settings_of(line)
        assert set(proposed) == {"batch"}
        assert set(proposed["batch"]) == {"size", "mini_batch_size"} if step == 8 else {"size"}
        fits = gpu_plan([word], count, 80, **merge(job, {"batch": {**batch, **proposed["batch"]}}))
        assert fullest(fits) <= 0.95
        assert not list(impossible_placements([one.placement for one in fits.placements], fits.workload))
        larger = {key: size + step for key, size in proposed["batch"].items()}
        assert fullest(gpu_plan([word], count, 80, **merge(job, {"batch": {**batch, **larger}}))) > 0.95


def test_the_largest_batch_is_proposed_beside_a_smaller_token_budget() -> None:
    job = {"model": "qwen2.5-1.5b", "rollout": {"backend": "torch"}}
    batch = {"size": 16_384, "mini_batch_size": 128, "micro_batch_tokens": 65_536}
    (line,) = refused_for_memory(gpu_plan(["standard"], 2, 80, batch=batch, **job))
    proposed = settings_of(line)["batch"]
    assert set(proposed) == {"size", "micro_batch_tokens"}
    assert fullest(gpu_plan(["standard"], 2, 80, batch={**batch, **proposed}, **job)) <= 0.95
    larger = {**batch, **proposed, "size": proposed["size"] + 128}
    assert fullest(gpu_plan(["standard"], 2, 80, batch=larger, **job)) > 0.95


# The third needs a smaller token budget, too; the last has a share already, which is too much.
@pytest.mark.parametrize(
    ("words", "count", "settings", "keys"),
    [
        (["standard"], 2, {"batch": {"size": 16_384}}, {"rollout"}),
        (["standard", "split:3+1"], 4, {"batch": {"size": 24_576, "mini_batch_size": 96}}, {"rollout"}),
        (["standard"], 2, {"batch": {"size": 16_384, "micro_batch_tokens": 65_536}}, {"rollout", "batch"}),
        (["learners:1+engines:3"], 4, {"algorithm": {"name": "grpo"}, "batch": {"size": 49_152}}, {"rollout"}),
        (["standard"], 2, {"batch": {"size": 16_384}, "rollout": {"memory_share": 0.9}}, {"rollout"}),
    ],
)
def test_engines_that_hold_fewer_sequences_are_proposed_before_a_smaller_batch(
    words: list[str], count: int, settings: dict[str, Any], keys: set[str]
) -> None:
    job = {"model": "qwen2.5-1.5b", **settings}
    lines = list(refused_for_memory(gpu_plan(words, count, 80, **job)))
    assert len(lines) == len(words)
    for line, word in zip(lines, words, strict=True):
        proposed = settings_of(line)
        assert set(proposed) == keys
        assert set(proposed["rollout"]) == {"memory_share"}
        assert fullest(gpu_plan([word], count, 80, **merge(job, proposed))) <= 0.95
        assert list(refused_for_memory(gpu_plan(words, count, 141, **merge(job, proposed)))) == []
        more = {"rollout": {"memory_share": proposed["rollout"]["memory_share"] + 0.01}}
        assert fullest(gpu_plan([word], count, 80, **merge(merge(job, proposed), more))) > 0.95


@pytest.mark.parametrize(
    ("words", "model", "settings"),
    [
        ("standard", "qwen2.5-1.5b", {}),
        ("learners:2+engines:1xtp2", "qwen2.5-1.5b", {"rollout": {"sleep": False}}),
        ("ddp:4/scaling=weak", "qwen2.5-0.5b", {"batch": {"max_response_length": 8192, "micro_batch_tokens": 16_384}}),
    ],
)
def test_a_share_that_holds_no_sequence_is_refused_with_the_least_that_does(
    words: str, model: str, settings: dict[str, Any]
) -> None:
    def refusals(share: float) -> list[str]:
        job = merge({"model": model, **settings}, {"rollout": {"memory_share": share}})
        return list(refused_for_memory(gpu_plan([words], 4, 80, **job)))

    (line,) = refusals(0.01)
    assert line.startswith(f"placement '{words}': rollout.memory_share 0.01 is too little: an engine with room for ")
    assert " of a device's 80.0 GiB; use at least 0." in line
    least = float(line.split()[-1])
    assert refusals(least) == []
    assert "is too little" in refusals(least - 0.01)[0]


def test_a_share_cannot_be_enough_where_the_engine_alone_is_larger_than_its_device() -> None:
    devices = tuple(device(0, index, 40 << 20) for index in range(2))
    bound = bind(parse_placement("standard", [2]), devices)
    job = build_workload({"rollout": {"backend": "vllm", "memory_share": 1.0}, "batch": {"max_prompt_length": 4096}})
    starved, without = too_large(job, [bound], devices)
    assert starved.endswith(" of a device's 40 MiB")
    assert without.startswith("placement 'standard' without rollout.memory_share: each device of global_pool needs ")


def test_a_share_that_is_too_little_does_not_hide_what_else_needs_too_much() -> None:
    job = {"model": "qwen2.5-7b", "rollout": {"memory_share": 0.05}}
    starved, learners = refused_for_memory(gpu_plan(["learners:2+engines:2"], 4, 80, **job))
    assert starved.endswith("; use at least 0.22")
    assert learners.startswith(
        "placement 'learners:2+engines:2' with rollout.memory_share=0.22: each device of learners needs about "
    )


def test_no_other_split_is_proposed_in_which_engines_have_too_little() -> None:
    job = {"model": "qwen2.5-7b", "batch": {"size": 6144, "mini_batch_size": 96}}

    def refusal(word: str, share: float) -> str:
        return next(
            refused_for_memory(gpu_plan([word], 4, 100, **merge(job, {"rollout": {"memory_share": share}}))), ""
        )

    # Two devices have more sequences to generate than three, and so need more beside the keys and values.
    least = {word: float(refusal(word, 0.01).split()[-1]) for word in ("split:3+1", "split:2+2")}
    assert least["split:3+1"] < least["split:2+2"]
    assert "--placements split:2+2 " in refusal("split:3+1", least["split:2+2"])
    assert "; no setting" in refusal("split:3+1", least["split:3+1"])
    assert "split:2+2" not in refusal("split:3+1", least["split:3+1"])


def test_the_batch_is_left_alone_where_other_settings_fit() -> None:
    job = {"model": "qwen2.5-1.5b", "batch": {"size": 4096}, "sharding": "replicate"}
    need = round(fullest(gpu_plan(["standard"], 2, 1, **job)))
    (line,) = refused_for_memory(gpu_plan(["standard"], 2, need - 4, **job))
    assert " GiB in gen (" in line
    assert settings_of(line) == {"sharding": "shard"}, line


def test_a_plan_that_hardly_fits_says_so() -> None:
    job = {"model": "qwen2.5-1.5b", "rollout": {"ignore_eos": True}}
    need = fullest(gpu_plan(["standard"], 2, 1, **job))
    roomy, tight = (gpu_plan(["standard"], 2, round(need / share), **job) for share in (0.9, 0.97))
    assert fullest(tight) > 0.95
    assert list(refused_for_memory(tight)) == []
    assert roomy.notes == ()
    (note,) = tight.notes
    assert note.startswith("placement 'standard' may run out of memory: each device of global_pool needs about ")
    assert f", GPU-0 has {round(need / 0.97)}.0 GiB, and " in note
    assert "; --set batch.micro_batch_tokens=" in note
    eased = settings_of(note)
    assert gpu_plan(["standard"], 2, round(need / 0.97), **merge(job, eased)).notes == ()


def test_devices_of_a_node_that_hardly_fit_together_say_so() -> None:
    def plan(memory: int) -> Plan:
        devices = tuple(device(0, index, memory) for index in range(2))
        bound = bind(parse_placement("split", [2]), devices)
        return Plan("x", RunFolder(Path("x")), (bound,), build_workload({}), devices, 1, 1.0)

    needs = sum(estimate.peak for estimate in plan(1 << 34).memory.values())
    notes = plan(round(needs / 2 / 0.97)).notes
    assert len(notes) == 1
    assert re.match(
        r"placement 'split' may run out of memory: its devices together need about \S+ \S+, node0 ", notes[0]
    )
    assert plan(round(needs / 2 / 0.9)).notes == ()


def test_a_launch_that_ran_out_while_generating_is_told_of_smaller_batches() -> None:
    batch = {"size": 8192, "mini_batch_size": 128}
    plan = gpu_plan(["standard"], 2, 141, model="qwen2.5-1.5b", batch=batch)
    assert plan.memory["standard", "global_pool"].moment == "gen"
    lines = plan.relief(plan.placements[0])
    assert lines[0].startswith("--set rollout.memory_share=0.5: about ")
    assert lines[1].startswith("--set batch.size=4096: about ")
    assert len(lines) <= 4
    whole, half = (plan.memory["standard", "global_pool"].parts["kv cache"] for plan in (plan, halved(plan)))
    assert half == pytest.approx(whole / 2, rel=0.05)


def halved(plan: Plan) -> Plan:
    rollout = plan.workload.rollout.model_copy(update={"memory_share": 0.5})
    return replace(plan, work=plan.workload.model_copy(update={"rollout": rollout}))


def test_a_pool_that_ran_out_is_told_of_another_split() -> None:
    plan = gpu_plan(
        ["split:3+1/overlap=updates"], 4, 141, model="qwen2.5-1.5b", batch={"mini_batch_size": 96, "size": 96}
    )
    lines = plan.relief(plan.placements[0])
    (split,) = (line for line in lines if line.startswith("--placements "))
    word = re.match(r"--placements (split:\S+/overlap=updates): about \S+ \S+ instead of ", split)
    assert word, split
    other = gpu_plan([word[1]], 4, 141, model="qwen2.5-1.5b", batch={"mini_batch_size": 96, "size": 96})
    assert fullest(other) < fullest(plan)
    best = gpu_plan(["split:2+2"], 4, 141, model="qwen2.5-1.5b", batch={"mini_batch_size": 96, "size": 96})
    assert plan.relief(best.placements[0])[0].startswith("--set batch.micro_batch_tokens=")


def test_another_split_is_named_by_its_word_when_no_setting_fits() -> None:
    job = {"model": "qwen2.5-7b", "batch": {"size": 96, "mini_batch_size": 96}}
    (line,) = refused_for_memory(gpu_plan(["split:3+1"], 4, 100, **job))
    assert "; no setting alone is enough; --placements split:2+2 " in line


@pytest.mark.parametrize("name", ["mine", "split/fast", "learners:3+engines:1"])
def test_another_split_of_a_file_is_told_by_its_pools(name: str) -> None:
    plan = gpu_plan(["split:3+1"], 4, 141, model="qwen2.5-1.5b", batch={"mini_batch_size": 96, "size": 96})
    (bound,) = plan.placements
    lines = plan.relief(replace(bound, placement=replace(bound.placement, name=name)))
    assert any(line.startswith("another split of the devices (2 in actor_pool, 2 in critic_pool): ") for line in lines)


def test_another_split_leaves_engines_whole() -> None:
    job = {"model": "qwen2.5-1.5b", "batch": {"mini_batch_size": 120, "size": 120}}
    plan = gpu_plan(["learners:2+engines:1xtp4"], 6, 141, **job)
    assert all("xtp4" in line for line in plan.relief(plan.placements[0]) if "--placements" in line)
    shared = gpu_plan(["split:2+4"], 6, 141, **job, rollout={"tensor_parallel_size": 2})
    (split,) = (line for line in shared.relief(shared.placements[0]) if line.startswith("--placements "))
    assert split.startswith("--placements split:4+2: about ")


def test_more_devices_are_named_when_no_setting_fits() -> None:
    (line,) = refused_for_memory(gpu_plan(["standard"], 1, 80, model="qwen2.5-7b"))
    assert "; no setting alone is enough; the same placement on " in line
    assert " such GPUs with --set activation_checkpointing=true fits with about " in line


# Another value of every key that is not among those on which the memory depends.
OF_NO_SIZE = {
    "seed": 1,
    "steps": 500,
    "warmup_steps": 1,
    "trace_kernels": False,
    "data.prompt_key": "question",
    "data.answer_key": "solution",
    "data.reward": "exact_match",
    "data.operand_max": 9,
    "rollout.temperature": 0.5,
    "rollout.top_p": 0.9,
    "rollout.response_length_median": 8,
    "rollout.response_length_sigma": 0.1,
    "rollout.cuda_graphs": False,
    "rollout.log_probs": "always",
    "algorithm.gamma": 0.5,
    "algorithm.lam": 0.5,
    "algorithm.clip_ratio": 0.1,
    "algorithm.clip_value": 0.1,
    "algorithm.importance_cap": 1.0,
    "algorithm.entropy_coeff": 0.5,
    "algorithm.epochs": 3,
    "algorithm.kl_in_reward": False,
    "algorithm.kl_loss": True,
    "algorithm.kl_estimator": "k3",
    "algorithm.kl_coef": 0.5,
    "algorithm.kl_control": "adaptive",
    "algorithm.kl_target": 0.5,
    "algorithm.kl_horizon": 5,
    "algorithm.whiten_advantages": False,
    "algorithm.whiten_rewards": True,
    "algorithm.norm_adv_by_std_in_grpo": False,
    "optimizer.actor_lr": 0.5,
    "optimizer.critic_lr": 0.5,
    "optimizer.betas": [0.5, 0.5],
    "optimizer.eps": 0.5,
    "optimizer.weight_decay": 0.5,
    "optimizer.grad_clip": 0.5,
}


def test_memory_depends_on_no_other_key() -> None:
    assert {*OF_NO_SIZE} == {*workload_keys()} - MEMORY_KEYS
    drawn = {"response_lengths": "lognormal"}
    base = {"model": "qwen2.5-1.5b", "batch": {"size": 16_384}, "rollout": drawn}
    words = ("standard", "split", "learners:1+engines:1")
    (*before,) = refused_for_memory(gpu_plan(words, 2, 80, **base))
    assert len(before) == 3
    for key, value in OF_NO_SIZE.items():
        (*after,) = refused_for_memory(gpu_plan(words, 2, 80, **merge(base, nest(key.split("."), value))))
        assert after == before, key
