from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import STANDARD
from synthetic_run import edit_spans, gpu_run

from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.compare.explain.peers import slower_in_steps

# Samples without GPM tell nothing of what held a device up.
BARE = {"power_w": 400.0, "clock_sm_mhz": 1900}


def one_launch(path: Path, slow: Callable[[int], float], **changes: Any) -> list[str]:
    """Warnings of one launch in which one device is slower for a phase in each step."""
    run = gpu_run(**{"rounds": 1, "layouts": {"standard": STANDARD}, "samples": BARE} | changes)
    path = run.write(path / "run")

    def slow_down(span: dict[str, Any]) -> None:
        if (span["device"], span["phase"]) == ("cpu:1", "gen"):
            span["start_mono"] = span["end_mono"] - slow(span["step"]) * (span["end_mono"] - span["start_mono"])

    edit_spans(path, "standard", slow_down)
    return [line for line in caveats(compare_run(path)) if "of its pool" in line]


def test_a_device_that_is_slower_in_the_steps_of_one_launch(tmp_path: Path) -> None:
    found = one_launch(tmp_path, lambda step: 1.12 + 0.01 * (step % 3))
    assert found == [
        "standard: gpu:1 takes 13 % longer for gen than the other devices of its pool, in 4 of 4 measured steps"
    ]


def test_few_steps_or_one_that_is_slow_do_not_tell_a_device(tmp_path: Path) -> None:
    assert one_launch(tmp_path / "few", lambda step: 1.12, steps=4) == []
    assert one_launch(tmp_path / "one", lambda step: 1.6 if step == 4 else 1.001) == []
    assert one_launch(tmp_path / "little", lambda step: 1.03) == []
    assert one_launch(tmp_path / "warm-up", lambda step: 1.5 if step < 3 else 1.0) == []


def kernels(**seconds: tuple[float, float, float]) -> list[dict[str, Any]]:
    """Lines of one phase: computing, collectives and no kernel of each device."""
    return [
        {"step": 7, "phase": "gen", "device": name.replace("_", ":"), "span_s": sum(parts), "kernel_s": parts[0]}
        | {"collective_s": parts[1], "copy_s": 0.0, "no_kernel_s": parts[2]}
        for name, parts in seconds.items()
    ]


def test_a_host_that_is_slow_is_no_slow_device(tmp_path: Path) -> None:
    """By the traced step, or by the activity of the SMs, which is less where the host lets the device wait."""
    traced = kernels(cpu_0=(0.3, 0.0, 0.2), cpu_1=(0.3, 0.0, 0.26))
    assert one_launch(tmp_path / "traced", lambda step: 1.12, kernels=traced) == []
    busy = {"sm_activity": 0.5}
    less = {"cpu:1": {"sm_activity": 0.5 / 1.12}}
    assert one_launch(tmp_path / "waits", lambda step: 1.12, samples=BARE | busy, device_samples=less) == []
    assert len(one_launch(tmp_path / "works", lambda step: 1.12, samples=BARE | busy)) == 1


@pytest.mark.parametrize(
    ("first", "second", "more"),
    [
        pytest.param((0.4, 0.1, 0.01), (0.448, 0.052, 0.01), "12 %", id="it computes longer, the other waits"),
        pytest.param((0.4, 0.1, 0.11), (0.448, 0.152, 0.01), None, id="the trace lost kernels of the other"),
        pytest.param((0.4, 0.1, 0.01), (0.4, 0.05, 0.06), None, id="its host is slow"),
        pytest.param((0.4, 0.1, 0.01), (0.412, 0.088, 0.01), None, id="little"),
        pytest.param((0.0, 0.0, 0.5), (2e-6, 0.0, 0.55), None, id="nothing to compute"),
    ],
)
def test_a_device_that_computes_longer_in_the_traced_step(
    tmp_path: Path, first: tuple[float, float, float], second: tuple[float, float, float], more: str | None
) -> None:
    found = one_launch(tmp_path, lambda step: 1.0, kernels=kernels(cpu_0=first, cpu_1=second))
    line = f"standard: gpu:1 computes {more} longer for gen than the other devices of its pool (traced step)"
    assert found == [line] * (more is not None)


def test_what_differs_by_its_work_tells_no_slow_device(tmp_path: Path) -> None:
    traced = kernels(cpu_0=(0.4, 0.1, 0.01), cpu_1=(0.448, 0.052, 0.01))
    drawn = {"model": "qwen2.5-1.5b", "rollout": {"ignore_eos": False}}
    assert one_launch(tmp_path, lambda step: 1.12, kernels=traced, workload=drawn) == []


def test_a_device_without_spans_tells_nothing_of_its_peers(tmp_path: Path) -> None:
    path = gpu_run(rounds=1, layouts={"standard": STANDARD}, samples=BARE).write(tmp_path / "run")
    (file,) = path.glob("trials/*/spans.jsonl")
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if '"cpu:1"' not in line))
    assert [line for line in caveats(compare_run(path)) if "of its pool" in line] == []


@pytest.mark.parametrize("steps", [3, 5, 10, 30])
def test_healthy_devices_are_rarely_told_and_slow_ones_mostly(steps: int) -> None:
    """2 % noise of every step: of 1000 launches on 8 devices hardly one has a warning; 15 % slower is found."""
    noise = np.random.default_rng(steps).lognormal(0.0, 0.02, (1000, steps, 8))

    def told(seconds: np.ndarray, device: int) -> bool:
        return slower_in_steps(seconds[:, device], np.delete(seconds, device, axis=1)) is not None

    assert sum(any(told(launch, device) for device in range(8)) for launch in noise) <= 5
    noise[:, :, 0] *= 1.15
    assert sum(told(launch, 0) for launch in noise) > 900
