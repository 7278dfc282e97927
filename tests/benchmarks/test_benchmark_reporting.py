"""The benchmark of the commands at the screen runs, on a run of a made-up checkout."""

import re
import runpy
from pathlib import Path

from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
BENCHMARK = runpy.run_path(str(ROOT / "benchmarks" / "reporting.py"))


def test_a_command_is_timed_beside_that_of_another_checkout(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "placebench").mkdir(parents=True)
    (other / "placebench" / "__init__.py").write_text('open(f"{__path__[0]}/seen", "a").write("x")\n')
    (run := tmp_path / "run").mkdir()
    words = [str(run), "--before", str(other), "--pairs", "2", "--command", "import"]
    done = CliRunner().invoke(BENCHMARK["main"], words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = r"[\d.]+ → +[\d.]+ s, ratio [\d.]+ \([\d.]+ to [\d.]+\)"
    assert re.fullmatch(rf"import +cpu +{figures} +wall +{figures}\n", done.stdout)
    assert (other / "placebench" / "seen").read_text() == "xxx"


def test_a_command_that_fails_ends_it(tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    words = [str(run), "--before", str(ROOT), "--pairs", "2", "--command", "show"]
    done = CliRunner().invoke(BENCHMARK["main"], words)
    assert done.exit_code == 1
    assert "placebench show ended with 2" in done.output
