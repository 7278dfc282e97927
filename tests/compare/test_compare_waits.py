"""What devices wait for inside their phases: worked by hand, and for any trace."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import STANDARD
from placed import run_placement
from synthetic_run import gpu_run

from placebench.compare.comparison import compare_run
from placebench.compare.explain.waiting import host_bound
from placebench.compare.measure.waits import traced_waits
from placebench.spec.bound import RunPlacement

DEVICES = ("gpu:0", "gpu:1", "gpu:2", "gpu:3")
PLACEMENT = run_placement("standard", {"pool": DEVICES}, {"rollout": "pool", "actor": "pool"}, "all")
PARTS = ("wait_slower_ranks_inside", "wait_collectives", "wait_host", "not_traced")


def row(phase: str, device: str, collective: float, host: float = 0.0, span: float = 1.0) -> dict[str, object]:
    """A phase of the traced step; what is neither waits for collectives nor for the host computes."""
    kernel = span - collective - host
    times = {"kernel_s": kernel, "collective_s": collective, "copy_s": 0.0, "no_kernel_s": host, "span_s": span}
    return {"phase": phase, "device": device, **times}


def waits(
    kernels: list[dict[str, object]],
    spans: Mapping[str, float],
    placement: RunPlacement = PLACEMENT,
    shared_by: int = 1,
    idle: float = 2.0,
) -> dict[str, float]:
    """Of a step of 10 s in which every device works on the phases for so many seconds over all measured steps."""
    found = [*spans.items(), ("idle", 99.0), ("step", 99.0)]
    rows = [{"phase": phase, "device": device, "span_s": seconds} for phase, seconds in found for device in DEVICES]
    numbers = {"step_time": 10.0, **{f"idle/{device}": idle for device in DEVICES}}
    columns = ["phase", "device", "kernel_s", "collective_s", "copy_s", "no_kernel_s", "span_s"]
    return traced_waits(pd.DataFrame(kernels, columns=columns), pd.DataFrame(rows), numbers, placement, shared_by)


def of(device: str, found: Mapping[str, float]) -> list[float]:
    return [found[f"{part}/{device}"] for part in PARTS]


def test_waiting_inside_phases_by_hand() -> None:
    collectives = {"gpu:0": 0.1, "gpu:1": 0.3, "gpu:2": 0.2, "gpu:3": 0.1}
    kernels = [row("update_actor", device, seconds, host=0.05) for device, seconds in collectives.items()]
    # Traced twice as long as it takes, and in two pieces.
    kernels += [row("ref", device, 0.0, host=0.25, span=0.5) for device in DEVICES for _ in range(2)]
    found = waits(kernels, {"update_actor": 30.0, "ref": 5.0, "reward": 5.0})
    # Of the 8 s that a device is busy, update_actor has 6 s, ref 1 s and reward, without a trace, 1 s.
    assert of("gpu:0", found) == pytest.approx([0.0, 0.6, 0.3 + 0.5, 1.0])
    assert of("gpu:1", found) == pytest.approx([1.2, 0.6, 0.3 + 0.5, 1.0])
    assert of("gpu:2", found) == pytest.approx([0.6, 0.6, 0.3 + 0.5, 1.0])


def test_kernels_take_as_long_untraced_and_what_waits_for_the_host_is_the_rest() -> None:
    kernels = [row("gen", device, 0.1, host=0.5) for device in DEVICES]  # traced, 1 s
    for busy, left in ((0.7, 0.3), (0.4, 0.0), (0.3, 0.0)):
        found = waits(kernels, {"gen": 1.0}, idle=10.0 - busy)
        assert of("gpu:0", found) == pytest.approx([0.0, left / 6, left * 5 / 6, 0.0])


def test_ranks_of_other_engines_are_no_slower_ranks_in_gen() -> None:
    kernels = [row("gen", device, seconds) for device, seconds in zip(DEVICES, (0.1, 0.2, 0.5, 0.4), strict=True)]
    found = waits(kernels, {"gen": 1.0}, shared_by=2)
    assert [of(device, found)[:2] for device in DEVICES] == [
        pytest.approx(parts) for parts in ([0.0, 0.8], [0.8, 0.8], [0.8, 3.2], [0.0, 3.2])
    ]
    assert of("gpu:2", waits(kernels, {"gen": 1.0}))[:2] == pytest.approx([3.2, 0.8])


def test_ranks_of_other_pools_are_no_slower_ranks() -> None:
    pools = {"actor_pool": DEVICES[:2], "critic_pool": DEVICES[2:]}
    placement = run_placement("split", pools, {"rollout": "actor_pool", "actor": "actor_pool"}, "all")
    kernels = [row("update", device, seconds) for device, seconds in zip(DEVICES, (0.1, 0.2, 0.5, 0.5), strict=True)]
    found = waits(kernels, {"update": 1.0}, placement)
    assert [of(device, found)[0] for device in DEVICES] == pytest.approx([0.0, 0.8, 0.0, 0.0])


def test_nothing_is_said_of_a_device_without_a_trace() -> None:
    assert waits([], {"gen": 1.0}) == {}
    found = waits([row("ref", "gpu:0", 0.5), row("gen", "gpu:1", 0.5, span=0.0)], {"gen": 1.0, "ref": 1.0})
    assert {key.partition("/")[2] for key in found} == {"gpu:0"}


def test_nothing_is_said_of_a_launch_without_measured_steps() -> None:
    kernels = pd.DataFrame([row("gen", "gpu:0", 0.5)])
    attributed = pd.DataFrame([{"phase": "gen", "device": "gpu:0", "span_s": 0.0}])
    assert traced_waits(kernels, attributed, {}, PLACEMENT, 1) == {}


@pytest.mark.parametrize("slowed", [1.0, 3.0])
def test_what_the_host_holds_up_is_said_with_its_seconds(tmp_path: Path, slowed: float) -> None:
    """However much longer the host takes while kernels are traced."""
    parts = {"gen": (0.3, 0.5), "ref": (0.005, 0.5)}
    kernels = [
        {"step": 7} | row(phase, "cpu:0", 0.0, slowed * host, span + (slowed - 1) * host)
        for phase, (host, span) in parts.items()
    ]
    run = gpu_run(rounds=1, layouts={"standard": STANDARD}, kernels=kernels)
    side = compare_run(run.write(tmp_path / "traced")).placements[0]
    assert side.value("phase/gen") == pytest.approx(0.5, rel=0.01)
    assert host_bound(side) == (
        "In standard, devices wait for the host (as seen in one traced step): 0.30 s in gen (60 % of it)."
    )
    without = gpu_run(rounds=1, layouts={"standard": STANDARD})
    assert host_bound(compare_run(without.write(tmp_path / "without")).placements[0]) is None


SHARES = st.floats(0.0, 0.5)
ROWS = st.builds(
    row,
    st.sampled_from(["gen", "ref", "update_actor"]),
    st.sampled_from(DEVICES),
    SHARES,
    SHARES,
    st.just(1.0),
)


@given(
    st.lists(ROWS, max_size=12),
    st.dictionaries(st.sampled_from(["gen", "ref", "update_actor", "reward"]), st.floats(0.1, 100.0), min_size=1),
    st.sampled_from([1, 2, 4]),
    st.floats(0.0, 10.0),
)
def test_a_device_waits_inside_its_phases_for_no_longer_than_they_take(
    kernels: list[dict[str, object]], spans: dict[str, float], shared_by: int, idle: float
) -> None:
    found = waits(kernels, spans, shared_by=shared_by, idle=idle)
    devices = {key.partition("/")[2] for key in found}
    assert devices == {str(one["device"]) for one in kernels if one["phase"] in spans}
    for device in devices:
        parts = of(device, found)
        assert min(parts) >= 0
        assert sum(parts) <= 10.0 - idle + 1e-9
