"""The benchmark of long logs runs, and what it writes is a log of as many steps."""

import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner

from placebench.logs.run import read_run

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "comparing.py"))


def test_its_logs_have_as_many_steps(tmp_path: Path) -> None:
    BENCHMARK["write_log"](tmp_path / "a.log", 50)
    run = read_run([tmp_path / "a.log"], devices=BENCHMARK["DEVICES"])
    assert run.timings is not None
    assert len(run.timings.steps) == 50
    assert not run.throughput["contradicts"].any()


@pytest.mark.parametrize("option", [[], ["--plot"]])
def test_each_size_has_a_row(option: list[str]) -> None:
    done = CliRunner().invoke(BENCHMARK["main"], ["--steps", "20", *option], catch_exceptions=False)
    assert done.exit_code == 0
    assert "│    20 │" in done.stdout
