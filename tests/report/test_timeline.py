from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import STANDARD
from matplotlib.patches import Rectangle
from synthetic_run import SyntheticRun, edit_spans

from placebench.compare.comparison import compare_run
from placebench.report.timeline import BAR, timeline


@pytest.mark.parametrize("last", ["cpu:0", "cpu:1"])
def test_the_path_begins_on_the_device_that_ended_its_first_phase_last(tmp_path: Path, last: str) -> None:
    def end_a_little_earlier(span: dict[str, Any]) -> None:
        if span["phase"] == "gen" and span["device"] not in (last, "controller"):
            span.update({key: span[key] - 0.001 for key in ("end_wall", "end_mono")})

    path = SyntheticRun({"standard": STANDARD}, rounds=1).write(tmp_path / "run")
    edit_spans(path, "standard", end_a_little_earlier)
    figure = timeline(compare_run(path))
    assert figure is not None
    (axes,) = figure.axes
    rows = [label.get_text().partition(" ")[0] for label in axes.get_yticklabels()]
    line = axes.lines[-1]
    assert rows[int(np.asarray(line.get_ydata())[0])] == last


def test_bars_of_processes_that_share_a_device_lie_below_each_other(tmp_path: Path) -> None:
    def begin_with_the_critic(span: dict[str, Any]) -> None:
        if span["phase"] == "update_actor" and span["device"] == "cpu:0":
            span.update({key: span[key] - 0.2 for key in ("start_wall", "start_mono", "end_wall", "end_mono")})

    path = SyntheticRun({"standard": STANDARD}, rounds=1).write(tmp_path / "run")
    edit_spans(path, "standard", begin_with_the_critic)
    figure = timeline(compare_run(path))
    assert figure is not None
    (axes,) = figure.axes
    row = [label.get_text().partition(" ")[0] for label in axes.get_yticklabels()].index("cpu:0")
    texts = ((text.get_text().split()[0], text.get_position()[1]) for text in axes.texts)
    written = {word: y for word, y in texts if y < row + 0.5}
    below = [row - BAR / 4, row + BAR / 4]
    assert sorted([written.pop("update_critic"), written.pop("update_actor")]) == pytest.approx(below)
    assert set(written.values()) == {row}
    heights = sorted(bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle))
    assert heights[:3] == pytest.approx([BAR / 2, BAR / 2, BAR])
