"""The benchmark of the hooks runs, and says what it measures."""

import re

import attach
from click.testing import CliRunner


def test_spans_and_starts_are_timed() -> None:
    done = CliRunner().invoke(attach.main, ["--repeats", "2", "--spans", "10"])
    assert done.exit_code == 0, done.output
    figures = re.findall(r"^(.+?) {2,}[-\d.e+]+ \([-\d.e+]+ to [-\d.e+]+\) (µ?s CPU)$", done.output, re.MULTILINE)
    assert figures == [("a span", "µs CPU"), ("start without hooks", "s CPU"), ("more with hooks", "s CPU")]
