"""Placements that cannot fit into their devices' memory, and what is proposed instead."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placebench.config import parse_settings
from placebench.devices import Device
from placebench.placement_words import parse_placement
from placebench.plan import Plan, bind, too_large
from placebench.runfolder import RunFolder
from placebench.workload import build_workload


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
        ("qwen2.5-1.5b", "standard", 2, 38, {"batch"}),
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
    if set(proposed) == {"batch"}:
        proposed["batch"]["micro_batch_tokens"] += 1024
        more = {**proposed, "rollout": {"ignore_eos": True}}
        tokens = proposed["batch"]["micro_batch_tokens"]
        assert tokens >= 16_384 or list(refused_for_memory(gpu_plan([word], count, gibibytes, model=model, **more)))


def test_more_devices_are_named_when_no_setting_fits() -> None:
    (line,) = refused_for_memory(gpu_plan(["standard"], 1, 80, model="qwen2.5-7b"))
    assert "; no setting alone fits, the same placement on " in line
    assert " such GPUs with --set activation_checkpointing=true does, about " in line
