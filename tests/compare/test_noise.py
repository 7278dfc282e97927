import json
import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from launching import plan, run
from layouts import STANDARD
from rich.console import Console
from scipy.signal import lfilter
from showing import write_report
from synthetic_run import SyntheticRun

from placebench.compare.comparison import compare_run
from placebench.compare.measure.variation import SelfComparison, bootstrap_variance, compare_with_itself
from placebench.compare.read.noise import find_noise
from placebench.compare.read.run_reading import load_run
from placebench.compare.statistics.estimates import detectable_effect
from placebench.compare.statistics.verdicts import Verdict
from placebench.plan.request import RunRequest
from placebench.plan.resume import resume_plan
from placebench.report.show import show
from placebench.spec.text import percent

# Log ratios of the pairs, larger round over smaller: 0.02, -0.01, 0.03.
PAIRS = (0.02, -0.01, 0.03)
SD = math.sqrt((0.02**2 + 0.01**2 + 0.03**2) / 3)


def calibration(path: Path, **changes: object) -> Path:
    """A run of one placement whose launches differ by `PAIRS`, written and reported."""
    content = {
        "layouts": {"standard": STANDARD},
        "rounds": 6,
        "pace": lambda round_, _: math.exp(PAIRS[(round_ - 1) // 2]) if round_ % 2 == 0 else 1.0,
    }
    run_ = SyntheticRun(**(content | changes))  # type: ignore[arg-type]  # each field of its type
    run_.write(path)
    manifest = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(manifest | {"calibrates": True}))
    write_report(path)
    return path


def printed(path: Path) -> str:
    output = StringIO()
    show(path, Console(file=output, width=400), verbose=True)
    return output.getvalue()


def itself(path: Path) -> SelfComparison | None:
    comparison = compare_run(path)
    return compare_with_itself(comparison.placements[0], comparison.metrics, comparison.min_effect)


def test_pairs_of_launches_give_the_noise_floor(tmp_path: Path) -> None:
    path = calibration(tmp_path / "calibration")
    found = itself(path)
    assert found is not None
    assert found.step.value == pytest.approx(math.exp((0.02 + 0.01 + 0.03) / 3))  # the second pair has changed places
    noise = found.noise.variations["step_time"]
    assert (noise.pair, noise.within, noise.between) == pytest.approx((SD, 0.0, SD), abs=1e-9)
    memory = found.noise.variations["peak_memory"]
    assert (memory.pair, memory.within) == (0.0, None)
    content = json.loads((path / "calibration.json").read_text())
    assert (content["placement"], content["pairs"], content["run"]) == ("standard", 3, "calibration")
    text = printed(path)
    assert "standard against itself: a step takes 2 % more time" in text
    least = percent(detectable_effect(SD, 3))
    assert f"Two launches differ by {percent(SD)} here; 3 rounds can show differences from {least} on." in text
    assert "Noise of 3 pairs of launches" in text
    assert "10 rounds tell" in (path / "report.md").read_text()


def test_steps_that_vary_are_told_from_launches_that_do(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pace = np.exp(random.normal(0, 0.05, (7, 41)))

    def by_step(round_: int, _: str, step: int) -> float:
        return float(pace[round_, step])

    path = calibration(tmp_path / "run", steps=40, pace=lambda *_: 1.0, step_pace=by_step)
    found = itself(path)
    assert found is not None
    noise = found.noise.variations["step_time"]
    assert noise.within is not None
    assert noise.within == pytest.approx(math.sqrt(2 * math.pi / 2 * 0.05**2 / 38), rel=0.35)
    assert noise.between is not None
    assert noise.between < 2 * noise.within


@pytest.mark.parametrize("lag1", [0.0, 0.7])
def test_blocks_keep_the_autocorrelation_of_steps(lag1: float) -> None:
    random = np.random.default_rng(1)
    series = lfilter([1.0], [1.0, -lag1], random.normal(0, 1, (200, 160)), axis=1)[:, 60:]
    true = float(np.median(series, axis=1).var())
    found = float(np.mean([bootstrap_variance(values, random) for values in series]))
    assert 0.55 * true < found < 1.25 * true


def one_launch_each(path: Path, **changes: object) -> Path:
    content = {"rounds": 1, "layouts": {"standard": STANDARD, "copy": STANDARD}, "pace": lambda _, name: 1.0}
    return SyntheticRun(**(content | changes)).write(path)  # type: ignore[arg-type]  # each field of its type


def test_a_later_comparison_of_the_same_host_and_workload_uses_it(tmp_path: Path) -> None:
    calibration(tmp_path / "20260301T100000Z-calibrate-standard")
    path = one_launch_each(tmp_path / "20260302T100000Z-later", pace=lambda _, name: 1.1 if name == "copy" else 1.0)
    step = compare_run(path).sides[1].ratios["step_time"]
    assert step is not None
    # (t(0.975, n-1) + t(0.8, n-1)) * SD / sqrt(n) <= ln 1.1 - ln 1.02 holds from n = 3 on.
    assert (step.verdict, step.needed) == (Verdict.UNDECIDED, 3)
    write_report(path)
    assert "(1 launch each, so no interval; about 3 each would decide)." in printed(path)
    sentence = f"Noise by 20260301T100000Z-calibrate-standard: two launches of standard differ by {percent(SD)} in step"
    assert sentence in printed(path)
    assert sentence in (path / "report.html").read_text()


def launched_by(launcher: str, path: Path) -> None:
    """Let a run be one of a launcher."""
    manifest = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(manifest | {"launcher": launcher}))


def damage(path: Path) -> None:
    (path / "calibration.json").write_text('{"schema_version": 1}')


def nothing(path: Path) -> None:
    assert (path / "calibration.json").is_file()


@pytest.mark.parametrize(
    ("changes", "spoil", "used"),
    [
        ({}, nothing, True),
        ({"workload": {"model": "tiny", "seed": 7, "batch": {"size": 64}, "precision": "float32"}}, nothing, True),
        ({"workload": {"model": "tiny", "seed": 0, "batch": {"size": 32}, "precision": "float32"}}, nothing, False),
        ({"device_name": "Another device"}, nothing, False),
        ({}, damage, False),
        ({}, partial(launched_by, "ray"), True),
        ({}, partial(launched_by, "torchrun"), False),
    ],
)
def test_a_calibration_of_another_host_or_workload_is_not_used(
    tmp_path: Path, changes: dict[str, object], spoil: Callable[[Path], None], used: bool
) -> None:
    spoil(calibration(tmp_path / "1-calibrate"))
    path = one_launch_each(tmp_path / "2-later", **changes)
    assert (find_noise(load_run(path)) is not None) == used
    assert (compare_run(path).placements[0].noise is not None) == used


def test_too_few_launches_measure_no_noise(tmp_path: Path) -> None:
    path = calibration(tmp_path / "run", rounds=2)
    assert not (path / "calibration.json").exists()
    assert "Noise of" not in printed(path)


def test_a_calibration_is_run_and_resumed_as_one(tmp_path: Path) -> None:
    body = "if case == '3 standard': os.kill(os.getppid(), signal.SIGINT); time.sleep(60)\nsteps()"
    result, _ = run(plan(tmp_path, placements="standard", rounds=4, calibrates=True), body)
    assert (result.done, result.total) == (2, 4)
    resumed = resume_plan(result.folder, RunRequest(sample_hz=0.0))
    assert resumed.calibrates
    result, _ = run(resumed, "steps()")
    assert (result.done, json.loads((result.folder / "run.json").read_text())["calibrates"]) == (4, True)


def test_the_command_plans_pairs_of_one_placement() -> None:
    command = [sys.executable, "-m", "placebench", "calibrate", "--dry-run", "--devices", "cpu:2"]
    done = subprocess.run([*command, "--pairs", "3"], capture_output=True, text=True, check=True)
    assert "up to round 6\n" in done.stdout
    assert "-calibrate-standard\n" in done.stdout
    wrong = subprocess.run([*command, "--placement", "standard,split"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.strip() == (
        "placebench: --placement standard,split: name one placement, which is compared with itself"
    )
    empty = subprocess.run([*command, "--placement", ""], capture_output=True, text=True, check=False)
    assert empty.returncode == 2
    assert empty.stderr.startswith("placebench: --placement '': it is empty")
