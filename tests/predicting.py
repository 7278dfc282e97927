"""Calls `placebench predict` in this process, and reads what it says."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner, Result
from pages import ROOT

from placebench.cli import main
from placebench.report.predicted import PredictionFile

REFERENCE = ROOT / "runs" / "reference" / "4x-h200"
WORKLOAD = {"model": "tiny", "batch": {"size": 64, "mini_batch_size": 32}}


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["predict", *map(str, arguments)], prog_name="placebench")


def predicted(*arguments: object) -> PredictionFile:
    result = invoke(*arguments, "--json", "out.json")
    assert result.exit_code == 0, result.output
    return PredictionFile.model_validate_json(Path("out.json").read_text())


def deciding(output: str) -> list[str]:
    """The words behind `placebench` of the command that decides."""
    (command,) = re.findall(r":\n  placebench (.*?[^\\])$", output, re.DOTALL | re.MULTILINE)
    return shlex.split(command.replace("\\\n", ""))
