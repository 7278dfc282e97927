"""docs/prediction.md: its commands and errors; prediction-tests.md: its table of what was predicted beforehand."""

import csv
import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import ROOT, commands
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.predict.interval import PredictionClass, class_error
from placebench.spec.text import quantity

TEXT = (ROOT / "docs" / "prediction.md").read_text(encoding="utf-8")
TESTED = (ROOT / "docs" / "prediction-tests.md").read_text(encoding="utf-8")
KEPT = ROOT / "runs" / "reference" / "calibration"


@pytest.fixture(autouse=True)
def _runs(here: None) -> None:
    SyntheticRun(rounds=1).write(Path("runs/20260101T000000Z-a"))
    Path("runs/reference").symlink_to(ROOT / "runs" / "reference")


@pytest.mark.parametrize("command", commands(TEXT))
def test_a_command_of_the_page_runs(command: str) -> None:
    program, *words = shlex.split(command)
    assert program == "placebench"
    result = CliRunner().invoke(main, words, prog_name="placebench")
    assert result.exit_code == 0, result.output


def test_the_second_command_says_what_the_page_shows() -> None:
    result = CliRunner().invoke(main, shlex.split(commands(TEXT)[1])[1:], prog_name="placebench")
    (shown,) = re.findall(r"^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert " ".join(shown.split()) in " ".join(result.output.split())


@pytest.mark.parametrize("kind", [PredictionClass.OTHER_SIZE, PredictionClass.OTHER_HOST])
def test_it_begins_with_the_errors_of_the_held_out_cases(kind: PredictionClass) -> None:
    error = class_error(kind, is_host_bound=None)
    said = rf"{100 * error.mean:.1f} % (off )?on average\S*\s+and\s+{100 * error.worst:.0f} % at most"
    assert re.search(said, TEXT.split("##")[0])


def test_the_table_has_what_was_predicted_and_measured() -> None:
    predictions = json.loads((KEPT / "predictions.json").read_text())["predictions"]
    with (KEPT / "errors.csv").open(newline="") as stream:
        steps = [row for row in csv.DictReader(stream) if row["phase"] == "step"]
    assert {row["configuration"] for row in steps} == predictions.keys()
    measured = [row for row in steps if row["measured_s"]]
    for row in measured:
        assert float(row["predicted_s"]) == pytest.approx(predictions[row["configuration"]]["step_s"], abs=1e-3)
        predicted, seen = (quantity(float(row[f"{kind}_s"]), "s") for kind in ("predicted", "measured"))
        assert f"| {predicted} | {seen} |" in TESTED
    errors = [abs(float(row["predicted_s"]) / float(row["measured_s"]) - 1) for row in measured]
    assert f"The mean error is {100 * sum(errors) / len(errors):.1f} %, the largest {100 * max(errors):.0f} %" in TESTED
