"""The figure of the queue between engines and learners: what is drawn, and of which placements."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import SPLIT, STANDARD
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from synthetic_run import SyntheticRun

from placebench.compare.comparison import compare_run, compare_sides
from placebench.compare.measure.sides import read_sides
from placebench.compare.read.sources import ReadingOptions, Source
from placebench.report.build import build_report, write_comparison
from placebench.report.queue_plot import MEAN, MOST, TITLE, queue_over_steps
from placebench.report.summary import summarize

APART = "learners:1+engines:1"
AHEAD = "learners:1+engines:1/staleness=2"


def write(folder: Path, rounds: int = 2, steps: int = 4, warmup_steps: int = 1) -> Path:
    """A run with two placements that have engines apart: the queue holds their round and step, and twice that."""
    layouts = {"standard": STANDARD, APART: SPLIT, AHEAD: replace(SPLIT, staleness=2)}
    path = SyntheticRun(layouts, rounds=rounds, steps=steps, warmup_steps=warmup_steps).write(folder / "run")
    for round_ in range(1, rounds + 1):
        for name in (APART, AHEAD):
            (file,) = path.glob(f"trials/{round_:02}-{name.replace(':', '-').replace('/', '-')}/steps.jsonl")
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            for row in rows:
                row["metrics"] |= {MEAN: round_ + row["step"], MOST: 2 * (round_ + row["step"])}
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def drawn(path: Path) -> Figure:
    figure = queue_over_steps(compare_run(path))
    assert figure is not None
    return figure


def stairs(axes: Axes) -> tuple[list[Any], list[Any]]:
    """Values, edges and baseline of the band and of the line."""
    band, line = (
        [None if part is None else np.asarray(part).tolist() for part in patch.get_data()]
        for patch in axes.patches
        if isinstance(patch, StepPatch)
    )
    return band, line


def test_mean_and_most_of_every_step_are_means_of_the_launches(tmp_path: Path) -> None:
    apart, ahead = (axes for axes in drawn(write(tmp_path)).axes if axes.get_visible())
    assert [axes.get_title(loc="left") for axes in (apart, ahead)] == [APART, AHEAD]
    for axes in (apart, ahead):
        band, line = stairs(axes)
        assert line == [[2.5, 3.5, 4.5, 5.5], [0.5, 1.5, 2.5, 3.5, 4.5], None]
        assert band == [[5, 7, 9, 11], [0.5, 1.5, 2.5, 3.5, 4.5], [2.5, 3.5, 4.5, 5.5]]


def test_the_line_of_the_staleness_is_where_there_is_any(tmp_path: Path) -> None:
    figure = drawn(write(tmp_path))
    apart, ahead = (axes for axes in figure.axes if axes.get_visible())
    assert len(apart.lines) == 0
    assert [np.asarray(line.get_ydata()).tolist() for line in ahead.lines] == [[128, 128]]
    assert apart.get_ylim() == ahead.get_ylim()
    assert apart.get_ylim()[0] == 0
    assert "as far ahead as the staleness allows" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_steps_without_a_queue_are_gaps(tmp_path: Path) -> None:
    path = write(tmp_path, rounds=1)
    (file,) = path.glob("trials/01-learners-1+engines-1/steps.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    del rows[2]["metrics"][MEAN], rows[2]["metrics"][MOST]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, line = stairs(drawn(path).axes[0])
    assert np.isnan(line[0]).tolist() == [False, False, True, False]


def test_a_single_step_is_drawn(tmp_path: Path) -> None:
    _, line = stairs(drawn(write(tmp_path, rounds=1, steps=1, warmup_steps=0)).axes[0])
    assert line[0] == [2]


def test_without_engines_apart_there_is_no_figure(tmp_path: Path) -> None:
    assert queue_over_steps(compare_run(SyntheticRun().write(tmp_path / "run"))) is None


@pytest.mark.parametrize("workload", [{"model": "tiny"}, {"model": "tiny", "batch": {}}])
def test_an_unknown_batch_leaves_the_line_out(tmp_path: Path, workload: dict[str, object]) -> None:
    layouts = {AHEAD: replace(SPLIT, staleness=2)}
    run = SyntheticRun(layouts, rounds=1, steps=3, workload=workload, metrics={MEAN: 1.0, MOST: 2.0})
    figure = drawn(run.write(tmp_path / "run"))
    assert len(figure.axes[0].lines) == 0
    assert len(figure.legends[0].get_texts()) == 2


def test_the_report_has_the_figure(tmp_path: Path) -> None:
    paths = build_report(write(tmp_path, rounds=1))
    assert "queue.svg" in {file.name for file in paths.plots}
    assert f"<h2>{TITLE}</h2>" in paths.html.read_text()
    assert "](plots/queue.svg)" in paths.markdown.read_text()


def test_the_report_of_arms_has_the_figure(tmp_path: Path) -> None:
    run = write(tmp_path, rounds=1)
    for name, has_figure in ((AHEAD, True), ("standard", False)):
        comparison = compare_sides(read_sides([Source(None, run, name)], ReadingOptions()))
        paths = write_comparison(comparison, summarize(comparison, 1), tmp_path / name.replace("/", "-"))
        assert ("queue.svg" in {file.name for file in paths.plots}) is has_figure
        assert (f"<h2>{TITLE}</h2>" in paths.html.read_text()) is has_figure
