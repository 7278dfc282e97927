"""The benchmark of the live page runs, and says what it measures."""

import re

import serving
from click.testing import CliRunner


def test_a_long_launch_is_followed() -> None:
    done = CliRunner().invoke(
        serving.main, ["long", "--hours", "0.02", "--gpus", "2", "--seconds", "0.2", "--readers", "1"]
    )
    assert done.exit_code == 0, done.output
    names = re.findall(r"^(.+?) {2,}", done.output, re.MULTILINE)
    assert names == [
        "files", "at rest", "the page", "first news", "/metrics", "with 1 pages", "answers meanwhile", "memory",
    ]  # fmt: skip
