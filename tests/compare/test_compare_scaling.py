"""Speed-up and efficiency of replicas against numbers worked out by hand."""

import io
import math
from pathlib import Path

import pytest
from layouts import STANDARD, Layout
from rich.console import Console
from showing import write_report
from synthetic_run import SyntheticRun, read_json

from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.compare.explain.scaling import measure_scaling
from placebench.record.folder import Status
from placebench.report.show import show


def replicas(devices: int, pace: float, scaling: str = "strong") -> Layout:
    """All roles on every device, with the phases of `STANDARD` so many times as long."""
    return Layout(
        {"replicas": tuple(f"cpu:{index}" for index in range(devices))},
        dict.fromkeys(STANDARD.roles, "replicas"),
        {phase: (start * pace, end * pace) for phase, (start, end) in STANDARD.times.items()},
        STANDARD.step_s * pace,
        scaling,
    )


# The base's launches are 1 % apart, the others' not at all, so that intervals have a width.
RUN = SyntheticRun(
    layouts={
        "standard": STANDARD,
        "ddp:1": replicas(1, 1.0),
        "ddp:2": replicas(2, 0.55),
        "ddp:2/scaling=weak": replicas(2, 1.25, "weak"),
    },
    tokens={"ddp:2/scaling=weak": 2600},
    pace=lambda round_, placement: 1 + 0.01 * (round_ - 2) if placement == "ddp:1" else 1.0,
)


def test_speed_up_and_efficiency_by_hand(tmp_path: Path) -> None:
    comparison = compare_run(RUN.write(tmp_path / "run"))
    strong, weak = measure_scaling(comparison)
    assert [(found.side.name, found.base.name, found.kind) for found in (strong, weak)] == [
        ("ddp:2", "ddp:1", "strong"),
        ("ddp:2/scaling=weak", "ddp:1", "weak"),
    ]
    for found, speedup in ((strong, 1 / 0.55), (weak, 2 / 1.25)):
        assert found.speedup is not None
        assert found.efficiency is not None
        assert found.speedup.value == pytest.approx(speedup, rel=1e-3)
        assert found.efficiency.value == pytest.approx(speedup / 2, rel=1e-3)
        # t of 2 degrees of freedom times sd / √3 of three log ratios 0.01 apart.
        half_width = 4.3027 * 0.01 / 3**0.5
        assert found.speedup.high / found.speedup.low == pytest.approx(1 + 2 * half_width, rel=2e-3)
        assert found.efficiency.high / found.efficiency.low == pytest.approx(found.speedup.high / found.speedup.low)
    assert any(line.startswith("Weak scaling: a step of ddp:2/scaling=weak is 2,600") for line in caveats(comparison))


def test_the_speed_up_is_the_ratio_of_the_run(tmp_path: Path) -> None:
    # Steps differ by more than the launches of a round do, so that pairs of steps and of medians are not the same.
    def pace(round_: int, name: str, step: int) -> float:
        return math.exp(0.3 * math.sin(7.3 * step) + 0.03 * math.cos(11.7 * step * round_ * len(name)))

    layouts = {"ddp:1": replicas(1, 1.0), "ddp:2": replicas(2, 0.55), "ddp:2/scaling=weak": replicas(2, 1.25, "weak")}
    run = SyntheticRun(layouts, steps=11, step_pace=pace, tokens={"ddp:2/scaling=weak": 2600})
    comparison = compare_run(run.write(tmp_path / "run"))
    for result, found in zip(comparison.sides[1:], measure_scaling(comparison), strict=True):
        for key, ratio in (("tokens_per_s", found.speedup), ("tokens_per_s_per_device", found.efficiency)):
            own = result.ratios[key]
            assert own is not None
            assert ratio is not None
            assert (ratio.value, ratio.low, ratio.high) == (own.value, own.low, own.high)


def test_replicas_of_one_number_alone_have_nothing_to_scale_from(tmp_path: Path) -> None:
    two = {"standard": STANDARD, "ddp:2": replicas(2, 0.55), "ddp:2/scaling=weak": replicas(2, 1.25, "weak")}
    assert measure_scaling(compare_run(SyntheticRun(layouts=two).write(tmp_path / "run"))) == ()
    failed = {(round_, "ddp:1"): Status.FAILED for round_ in (1, 2, 3)}
    run = SyntheticRun(layouts=RUN.layouts, statuses=failed).write(tmp_path / "failed")
    assert [found.speedup for found in measure_scaling(compare_run(run))] == [None, None]


def test_every_report_has_the_scaling(tmp_path: Path) -> None:
    path = RUN.write(tmp_path / "run")
    write_report(path)
    console = Console(file=io.StringIO(), width=80)
    show(path, console, verbose=True)
    assert isinstance(console.file, io.StringIO)
    for text in (console.file.getvalue(), (path / "report.md").read_text(), (path / "report.html").read_text()):
        assert "Scaling of replicas" in text
        assert "1.82" in text
        assert "0.91" in text
    rows = {row["placement"]: row for row in read_json(path / "summary.json")["scaling"]}
    assert rows["ddp:2/scaling=weak"]["efficiency"]["value"] == pytest.approx(0.8, rel=1e-3)
    assert (rows["ddp:2"]["devices"], rows["ddp:2"]["base_devices"]) == (2, 1)
