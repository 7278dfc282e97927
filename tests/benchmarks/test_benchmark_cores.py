"""Each core of the host has its line."""

import re

import pytest
from click.testing import CliRunner
from cores import main

from placebench.host.machine import usable_cores


def test_it_tells_of_every_core_how_fast_it_is() -> None:
    done = CliRunner().invoke(main, ["--seconds", "1"])
    assert done.exit_code == 0, done.output
    found = re.findall(r"^core +(\d+)  best (\S+)  mean (\S+)  slowest tenth (\S+)$", done.output, re.MULTILINE)
    assert [int(core) for core, *_ in found] == list(usable_cores())
    assert all(1 <= float(best) <= float(mean) and float(best) <= float(slow) for _, best, mean, slow in found)
    assert min(float(best) for _, best, _, _ in found) == 1
    assert "all cores, second by second: " in done.output


def test_a_host_whose_cores_refuse_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cores.loop_on", lambda core: None)
    done = CliRunner().invoke(main, ["--seconds", "1"])
    assert done.exit_code == 1
    assert "no core of this host lets the loop run on it" in done.output
