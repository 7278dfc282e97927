from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pynvml
import pytest
from layouts import STANDARD
from synthetic_run import GIB, GPU_SAMPLES, SyntheticRun, gpu_run

from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.compare.read.run_reading import load_run
from placebench.record.writing import append_jsonl, read_jsonl


def warnings(path: Path, **changes: Any) -> list[str]:
    return list(caveats(compare_run(gpu_run(**changes).write(path / "run"))))


def test_a_clean_run_has_no_warnings(tmp_path: Path) -> None:
    assert warnings(tmp_path) == []


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (pynvml.nvmlClocksEventReasonSwPowerCap, ["the power cap"]),
        (pynvml.nvmlClocksEventReasonSwThermalSlowdown, ["a thermal slowdown by the driver"]),
        (
            pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
            ["a hardware slowdown", "a thermal slowdown by the hardware"],
        ),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown, ["the power brake"]),
        (pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonApplicationsClocksSetting, []),
    ],
)
def test_limits_are_named_with_their_share(tmp_path: Path, bits: int, words: list[str]) -> None:
    found = warnings(tmp_path, samples=GPU_SAMPLES | {"event_reasons": bits})
    assert found == [
        f"{name}: {word} lowered the clocks in 100 % of the samples" for name in ("standard", "split") for word in words
    ]


@pytest.mark.parametrize(("share", "is_told"), [(0.015, False), (0.125, True), (None, False)])
def test_cpu_time_that_other_guests_got_is_told(tmp_path: Path, share: float | None, is_told: bool) -> None:
    found = warnings(tmp_path, samples=GPU_SAMPLES | {"stolen": share})
    assert found == [
        f"{name}: the hypervisor gave other guests 12 % of the CPU time that this host wanted, so the time"
        " that devices wait for the host varies"
        for name in ("standard", "split")
        if is_told
    ]


@pytest.mark.parametrize(
    ("loops", "words"),
    [
        (("standard", (40e-6, 44e-6)), None),
        # Once is no tenth of the samples.
        (("standard", (40e-6, 40e-6, 40e-6, 40e-6, 40e-6, 40e-6, 40e-6, 40e-6, 40e-6, 40e-6, 400e-6)), None),
        (("standard", (40e-6, 40e-6, 40e-6, 72e-6)), "1.2 times as slow as at their best"),
        (("split", (40e-6, 72e-6, 72e-6, 72e-6)), "1.6 times as slow as at their best"),
    ],
)
def test_cores_that_are_slower_than_at_their_best_are_told(
    tmp_path: Path, loops: tuple[str, tuple[float, ...]], words: str | None
) -> None:
    path = gpu_run().write(tmp_path / "run")
    name, takes = loops
    for file in path.glob(f"trials/*-{name}/devices.jsonl"):
        lines, times = list(read_jsonl(file)), cycle(takes)
        with file.open("w") as stream:
            for line in lines:
                append_jsonl(stream, line | {"core_loop_s": next(times)} if line["kind"] == "sample" else line)
    found = list(caveats(compare_run(path)))
    expected = (
        f"{name}: the job's cores were {words}, and at least 1.8 times in a tenth of the samples; others share them or"
        " their clocks change, so the time that devices wait for the host varies"
    )
    assert found == ([expected] if words else [])


def test_cores_that_are_slower_in_one_launch_are_told_with_it(tmp_path: Path) -> None:
    path = rewrite_samples(gpu_run(rounds=2).write(tmp_path / "run"), "01-standard", core_loop_s=40e-6)
    rewrite_samples(path, "02-standard", core_loop_s=64e-6)
    (told,) = caveats(compare_run(path))
    assert "1.3 times as slow as at their best (1.0 to 1.6 by launch), and at least 1.6 times in a tenth" in told


def rewrite_samples(path: Path, trials: str, **values: Any) -> Path:
    """Change every sample of some launches."""
    for file in path.glob(f"trials/{trials}/devices.jsonl"):
        lines = [line | values if line["kind"] == "sample" else line for line in read_jsonl(file)]
        with file.open("w") as stream:
            for line in lines:
                append_jsonl(stream, line)
    return path


@pytest.mark.parametrize(("clock", "warned"), [(1870, False), (1800, True), (1950, True)])
def test_clocks_that_differ_between_placements(tmp_path: Path, clock: int, warned: bool) -> None:
    path = rewrite_samples(gpu_run().write(tmp_path / "run"), "*-split", clock_sm_mhz=clock)
    more = 100 * (clock / 1900 - 1)
    line = (
        f"GPUs ran at {clock:,} MHz under split and at 1,900 MHz under standard in the same phases ({more:+.1f} %):"
        " some of the difference may be the clocks'."
    )
    assert list(caveats(compare_run(path))) == [line] * warned


def test_a_phase_of_two_pools_has_no_clock_to_compare(tmp_path: Path) -> None:
    """Pools that send and that take weights do other work under one name; the other phases still tell."""
    path = rewrite_samples(gpu_run().write(tmp_path / "run"), "*-split", clock_sm_mhz=1800)
    for file in path.glob("trials/*-split/spans.jsonl"):
        spans = list(read_jsonl(file))
        critic = next(span for span in spans if span["pool"] == "critic_pool" and span["device"] != "controller")
        moved = {"pool": "critic_pool", "device": critic["device"]}
        with file.open("w") as stream:
            for span in spans + [span | moved for span in spans if span["phase"] == "gen"]:
                append_jsonl(stream, span)
    assert any("GPUs ran at 1,800 MHz under split" in line for line in caveats(compare_run(path)))


def test_clocks_while_waiting_do_not_count(tmp_path: Path) -> None:
    """In `split` cpu:1 waits while responses are generated: its clock then says nothing of the work."""
    path = gpu_run(rounds=1, pace=lambda *_: 1.0).write(tmp_path / "run")
    (file,) = path.glob("trials/01-split/devices.jsonl")
    lines = list(read_jsonl(file))
    first_step = 1000 + 3.0 + 2 * 2 * 1.83
    with file.open("w") as stream:
        for line in lines:
            if line["kind"] == "sample" and line["device"] == "cpu:1":
                since_start = (line["mono"] - first_step) % 1.83
                if 0.2 < since_start < 0.9:
                    line["clock_sm_mhz"] = 345
            append_jsonl(stream, line)
    assert not any("clocks differ" in line for line in caveats(compare_run(path)))


def test_a_device_whose_clock_is_below_its_peers(tmp_path: Path) -> None:
    found = warnings(tmp_path, device_samples={"cpu:1": {"clock_sm_mhz": 1700}}, layouts={"standard": STANDARD})
    assert found == ["standard: gpu:1 ran at 1,700 MHz, the other devices of its pool at 1,900"]


def slow_device(path: Path, run: SyntheticRun, factor: float, rounds: range) -> list[str]:
    run = replace(run, layouts={"standard": STANDARD})
    run.write(path / "run")
    for round_ in rounds:
        file = path / "run" / "trials" / f"{round_:02d}-standard" / "spans.jsonl"
        lines = list(read_jsonl(file))
        with file.open("w") as stream:
            for line in lines:
                if (line["device"], line["phase"]) == ("cpu:1", "update_actor"):
                    line["start_mono"] = line["end_mono"] - factor * (line["end_mono"] - line["start_mono"])
                append_jsonl(stream, line)
    return list(caveats(compare_run(path / "run")))


def test_a_device_that_takes_longer_for_the_same_work_in_every_launch(tmp_path: Path) -> None:
    found = slow_device(tmp_path, gpu_run(), 1.1, range(1, 4))
    assert found == [
        "standard: gpu:1 takes 10 % longer for update_actor than the other devices of its pool, in every launch"
    ]


def test_one_slow_launch_or_unequal_work_is_no_slow_device(tmp_path: Path) -> None:
    assert slow_device(tmp_path / "one", gpu_run(), 1.1, range(1, 3)) == []
    assert slow_device(tmp_path / "little", gpu_run(), 1.03, range(1, 4)) == []
    drawn = gpu_run(workload={"model": "qwen2.5-1.5b", "rollout": {"ignore_eos": False}})
    assert slow_device(tmp_path / "drawn", drawn, 1.1, range(1, 4)) == []


def test_processes_of_others_are_told_by_memory_and_by_count(tmp_path: Path) -> None:
    layouts = {"standard": STANDARD}
    used = {"cpu:0": {"memory_bytes": 5 * GIB}}
    assert warnings(tmp_path / "memory", layouts=layouts, rounds=1, device_samples=used) == [
        "round 1 standard: gpu:0 had 5.00 GiB in use before the launch: another process"
    ]
    shared = {"cpu:1": {"earlier_processes": 2, "compute_processes": 3}}
    assert warnings(tmp_path / "shared", layouts=layouts, rounds=1, device_samples=shared) == [
        "round 1 standard: gpu:1 was shared with 2 processes from before the launch"
    ]


@pytest.mark.parametrize("comes", [0.0, 1010.5], ids=["while the job starts", "during the measured steps"])
def test_a_process_that_comes_after_the_sampler_and_stays(tmp_path: Path, comes: float) -> None:
    path = gpu_run(layouts={"standard": STANDARD}, rounds=1).write(tmp_path / "run")
    (file,) = path.glob("trials/*/devices.jsonl")
    lines = list(read_jsonl(file))
    with file.open("w") as stream:
        for line in lines:
            if line["kind"] == "sample" and line["device"] == "cpu:0":
                line["compute_processes"] = 2 if line["mono"] > comes else None if line["mono"] > 1010 else 1
            append_jsonl(stream, line)
    assert list(caveats(compare_run(path))) == [
        "round 1 standard: gpu:0 had 1 process beside the job's own in the measured steps: another job"
    ]


def test_devices_without_gpm_are_named_once_with_the_reason(tmp_path: Path) -> None:
    samples = {key: value for key, value in GPU_SAMPLES.items() if not key.endswith("_activity")}
    absent = {"gpm": False, "gpm_absent": {"cpu:1": "the device does not support it"}}
    assert warnings(tmp_path, samples=samples, header=absent) == [
        "Device load comes from NVML: a GPU whose kernel only waits reads 100 %.",
        "No GPM on gpu:1 (the device does not support it): how busy its SMs, tensor cores and memory are is not known.",
    ]


def test_samplers_of_several_nodes_are_read_together(tmp_path: Path) -> None:
    path = gpu_run(layouts={"standard": STANDARD}, rounds=1, missed=40).write(tmp_path / "run")
    (file,) = path.glob("trials/*/devices.jsonl")
    lines = list(read_jsonl(file))
    second = {**lines[0], "node": "other", "gpm": False, "gpm_absent": {"cpu:1": "it has none"}}
    footer = lines[-1]
    for last, found in (({**footer, "missed": 0}, (2 * footer["ticks"], 40)), (None, (None, None))):
        with file.open("w") as stream:
            for line in (second, *lines, *([last] if last else [])):
                append_jsonl(stream, line)
        sampling = load_run(path).launches[0].sampling
        assert (sampling.source, sampling.gpm_absent) == ("nvml", {"cpu:1": "it has none"})
        assert (sampling.ticks, sampling.missed) == found


def test_phases_of_a_pool_sum_joules_and_take_the_highest_peak(tmp_path: Path) -> None:
    run = gpu_run(rounds=2, pace=lambda *_: 1.0, device_samples={"cpu:1": {"tensor_activity": 0.75}})
    standard, split = compare_run(run.write(tmp_path / "run")).placements
    pools = standard.phase_pools.set_index("phase")
    update = pools.loc["update_actor"]
    assert (update["pool"], update["devices"]) == ("global_pool", 2)
    assert update["tensor_activity"] == pytest.approx(0.5, abs=0.02)
    assert update["energy_j"] == pytest.approx(2 * 400 * 0.24)
    assert update["allocated_bytes"] == 3 * GIB
    assert update["peak_memory_bytes"] == pytest.approx(0.75 * GIB)
    assert set(split.phase_pools["pool"]) == {"actor_pool", "critic_pool"}
