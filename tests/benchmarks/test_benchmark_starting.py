"""The benchmark of starts and stops runs, on made-up checkouts."""

import re
import runpy
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
BENCHMARK = runpy.run_path(str(ROOT / "benchmarks" / "starting.py"))


def checkout(folder: Path, before_steps: float, end: str = "") -> Path:
    """A checkout whose command writes a run of two launches, and its name into a list beside the checkout."""
    (folder / "placebench").mkdir(parents=True)
    (folder / "placebench" / "__main__.py").write_text(
        dedent(f"""
        import json, pathlib, sys
        {end}
        run = pathlib.Path(sys.argv[sys.argv.index("--out") + 1]) / "run"
        run.mkdir()
        with open({str(folder.parent / "turns")!r}, "a") as stream:
            stream.write("{folder.name} ")
        wall = {{"after_steps_s": 0.5, "cleanup_s": 0.1}}
        starts = [{{**wall, "before_steps_s": start * {before_steps}}} for start in (3, 1)]
        (run / "run.json").write_text(json.dumps({{"launches": [{{"wall": wall}} for wall in starts]}}))
        """)
    )
    return folder


def test_starts_are_timed_beside_those_of_another_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, here = checkout(tmp_path / "other", 4.0), checkout(tmp_path / "here", 2.0)
    monkeypatch.setitem(BENCHMARK["main"].callback.__globals__, "HERE", here)
    done = CliRunner().invoke(BENCHMARK["main"], ["--other", str(other), "--pairs", "2"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "turns").read_text().split() == ["other", "here", "here", "other"]
    *launches, command = done.stdout.splitlines()
    assert launches == [
        "first start     12.00 →    6.00 s, ratio 0.50 (0.50 to 0.50)",
        "later starts     4.00 →    2.00 s, ratio 0.50 (0.50 to 0.50)",
        "after steps      0.50 →    0.50 s, ratio 1.00 (1.00 to 1.00)",
        "cleaning up      0.10 →    0.10 s, ratio 1.00 (1.00 to 1.00)",
    ]
    assert re.fullmatch(r"command +[\d.]+ → +[\d.]+ s, ratio [\d.]+ \([\d.]+ to [\d.]+\)", command)


def test_a_run_that_fails_ends_it(tmp_path: Path) -> None:
    other = checkout(tmp_path / "other", 4.0, end='sys.exit("no devices")')
    done = CliRunner().invoke(BENCHMARK["main"], ["--other", str(other), "--pairs", "2"])
    assert done.exit_code == 1
    assert "placebench run ended with 1: no devices" in done.output
