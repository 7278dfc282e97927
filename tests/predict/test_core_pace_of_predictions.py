"""What the host takes goes by how fast its cores are, and kernels do not."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import gpu_run

from placebench.compare.measure.calibrating import calibrate_by
from placebench.compare.measure.placements import measure_run
from placebench.compare.read.run_reading import load_run
from placebench.predict.phases import Basis, PhaseModel
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, MeasuredPhase
from placebench.record.folder import RunFolder
from placebench.report.calibrations import load_calibration
from placebench.spec.devices import Device
from placebench.spec.phases import GEN
from placebench.spec.shapes import PRESETS, JobShapes
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload

GPU = Device("0", "gpu", 0, "node", "NVIDIA H200", 141 << 30)
SHAPES = JobShapes(PRESETS["qwen2.5-0.5b"], PRESETS["qwen2.5-0.5b"])
LOOP_S = 4e-5


def _workload(size: int = 8) -> Workload:
    batch = {"size": size, "mini_batch_size": size, "max_prompt_length": 256, "max_response_length": 256}
    return build_workload({"model": "qwen2.5-0.5b", "batch": batch})


def _file(gen_s: float, loop_s: float | None, *, size: int = 8, python: str = "3.12.3") -> CalibrationFile:
    phase = MeasuredPhase(name=GEN, devices=1, seconds=gen_s, kernel_s=0.3, collective_s=0.0)
    case = MeasuredCase(
        name="standard",
        workload=_workload(size).model_dump(mode="json"),
        models=SHAPES,
        step_s=2 * gen_s,
        core_loop_s=loop_s,
        phases=(phase,),
    )
    return CalibrationFile(
        source="test",
        kind="gpu",
        device=GPU.name,
        device_count=1,
        device_bytes=1,
        versions={"python": python},
        cases=(case,),
    )


def _model(*files: CalibrationFile, loop_s: float | None = None, size: int = 8) -> PhaseModel:
    return PhaseModel(_workload(size), SHAPES, files, GPU, core_loop_s=loop_s)


def test_what_was_measured_is_told_as_it_was_on_cores_as_fast() -> None:
    for loop_s in (None, LOOP_S):
        found = _model(_file(0.6, LOOP_S), loop_s=loop_s).seconds(GEN, 1)
        assert (found.total, found.kernels, found.basis) == (0.6, 0.3, Basis.MEASURED)


def test_what_was_measured_is_told_as_it_was_beside_what_slower_cores_measured() -> None:
    files = _file(0.6, LOOP_S), _file(0.9, 2 * LOOP_S, size=16)
    assert [_model(*files, size=size).seconds(GEN, 1).total for size in (8, 16)] == [0.6, 0.9]


def test_on_cpu_devices_cores_are_what_works() -> None:
    file = _file(0.6, LOOP_S).model_copy(update={"kind": "cpu", "device": "CPU", "device_cores": 2})
    device = Device("cpu:0", "cpu", 0, "node", "CPU", 8 << 30, (0, 1))
    for loop_s in (LOOP_S, 2 * LOOP_S):
        found = PhaseModel(_workload(), SHAPES, (file,), device, core_loop_s=loop_s).seconds(GEN, 1)
        assert found.total == pytest.approx(0.6)


def test_generation_that_the_host_holds_up_takes_as_many_times_as_long_as_its_cores() -> None:
    for times in (0.8, 1.5):
        found = _model(_file(0.6, LOOP_S), loop_s=times * LOOP_S).seconds(GEN, 1)
        assert found.total == pytest.approx(times * 0.6, rel=0.1)
        assert (found.kernels, found.basis) == (0.3, Basis.MEASURED)


@given(st.lists(st.floats(0.5, 3.0), min_size=2, max_size=4, unique=True).map(sorted), st.sampled_from((8, 64)))
def test_slower_cores_make_no_phase_shorter(times: list[float], size: int) -> None:
    found = [_model(_file(0.6, LOOP_S), loop_s=one * LOOP_S, size=size).seconds(GEN, 1).total for one in times]
    assert all(later >= earlier * (1 - 1e-9) for earlier, later in pairwise(found))


def test_sizes_measured_on_slow_and_on_fast_cores_tell_the_same_of_another() -> None:
    """A size that was measured while cores were 1.5 times as slow says what it would have said without that."""
    even = _model(_file(0.6, LOOP_S), _file(0.7, LOOP_S, size=16), loop_s=LOOP_S, size=12)
    uneven = _model(_file(0.9, 1.5 * LOOP_S), _file(0.7, LOOP_S, size=16), loop_s=LOOP_S, size=12)
    blind = _model(_file(0.9, None), _file(0.7, None, size=16), size=12)
    wanted = even.seconds(GEN, 1).total
    assert uneven.seconds(GEN, 1).total == pytest.approx(wanted, rel=0.03)
    assert blind.seconds(GEN, 1).total > 1.08 * wanted


def test_of_loops_of_two_pythons_none_tells() -> None:
    files = _file(0.6, LOOP_S), _file(0.6, 2 * LOOP_S, python="3.11.7")
    assert _model(*files, loop_s=LOOP_S).seconds(GEN, 1).total == pytest.approx(0.6)


def test_a_run_tells_how_fast_its_cores_were(tmp_path: Path) -> None:
    for name, samples in (("without", {}), ("with", {"core_loop_s": LOOP_S})):
        path = gpu_run(samples=samples).write(tmp_path / name)
        run = load_run(path)
        # As its report writes it.
        calibrate_by(run, measure_run(run)).write(RunFolder(path).phases_file)
        loops = [case.core_loop_s for case in load_calibration(path).cases]
        assert loops == ([pytest.approx(LOOP_S)] * 2 if samples else [None, None])
