"""docs/report.md, numbers.md and critical-path.md define what a report shows."""

from dataclasses import replace
from pathlib import Path

import pytest
from layouts import SPLIT, STANDARD
from pages import ROOT
from synthetic_run import SyntheticRun, gpu_run

from placebench.compare.explain.suggestion import NOTHING_LEFT
from placebench.compare.metrics import placement_metrics
from placebench.report.build import build_report

PAGES = ("report", "numbers", "critical-path")
PAGE = " ".join(" ".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").split()) for name in PAGES)


def test_every_number_is_defined() -> None:
    labels = {
        metric.label.split()[0] if metric.label.startswith("MFU") else metric.label for metric in placement_metrics(())
    }
    assert [label for label in sorted(labels) if label not in PAGE] == []


@pytest.mark.parametrize("gpus", [False, True])
def test_every_heading_of_a_report_is_explained(tmp_path: Path, gpus: bool) -> None:
    times = {"span_s": 0.5, "kernel_s": 0.3, "collective_s": 0.1, "copy_s": 0.05, "no_kernel_s": 0.05}
    kernels = [{"step": 2, "phase": "update_actor", "device": "cpu:0", **times}]
    layouts = {"standard": STANDARD, "split": SPLIT, "split/overlap=none": replace(SPLIT, overlap="none")}
    queue = {"training/queue_mean": 2.0, "training/queue_max": 4.0}
    run = gpu_run(rounds=2, kernels=kernels) if gpus else SyntheticRun(layouts, rounds=2, metrics=queue)
    markdown = build_report(run.write(tmp_path / "run")).markdown.read_text()
    headings = [line.removeprefix("## ").partition(":")[0] for line in markdown.splitlines() if line.startswith("## ")]
    known = {"split against standard", "split/overlap=none against standard", "Warnings", "How this was measured"}
    assert gpus or {"Gain of the split and of the overlap", "Sequences that wait for the trainer"} <= set(headings)
    assert [heading for heading in headings if heading not in known and heading not in PAGE] == []
    assert NOTHING_LEFT in markdown


def test_the_example_is_what_a_report_says(tmp_path: Path) -> None:
    run = SyntheticRun(rounds=2, pace=lambda *_: 1.0)
    markdown = build_report(run.write(tmp_path / "run")).markdown.read_text()
    (told,) = (line for line in markdown.splitlines() if line.startswith("split overlaps"))
    assert told in PAGE.replace("> ", "")
