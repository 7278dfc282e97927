"""Placements of several GPUs are predicted by the benchmark, and compared with what a run of them kept."""

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner
from predicted_placements import main

KEPT = Path(__file__).parents[2] / "runs" / "reference" / "4x-h200" / "ppo-7b"


def test_what_was_predicted_is_compared_with_what_was_measured(tmp_path: Path) -> None:
    predictions, errors = tmp_path / "predictions.json", tmp_path / "errors.csv"
    asked = ("--from", str(KEPT), "--work", "7b", "--work", "8b", "--into", str(predictions))
    done = CliRunner().invoke(main, ["predict", *asked], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, ["errors", str(predictions), str(KEPT), "--into", str(errors)])
    assert done.exit_code == 0, done.output
    with errors.open(encoding="utf-8") as stream:
        rows = {(row["work"], row["placement"], row["what"]): row for row in csv.DictReader(stream)}
    # What was measured itself is predicted as it was.
    split = rows["7b", "split", "step"]
    assert float(split["predicted"]) == pytest.approx(float(split["measured"]), rel=0.02)
    assert split["launches"] == "3"
    assert float(split["low"]) < float(split["measured"]) < float(split["high"])
    ratio = rows["7b", "split", "ratio"]
    assert float(ratio["measured"]) == pytest.approx(1.08, abs=0.01)
    # What was not run is there, too.
    assert rows["8b", "split", "step"]["measured"] == ""
