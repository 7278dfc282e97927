from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import STANDARD
from synthetic_run import SyntheticRun, edit_spans

from placebench.compare.comparison import compare_run
from placebench.report.timeline import timeline


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
