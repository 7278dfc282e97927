"""docs/live.md: its commands run, and it has every metric, panel and option."""

import re
import signal
import subprocess
from pathlib import Path

import pytest
from pages import ROOT, checkout, commands, shell
from serve_requests import BEARER, client
from synthetic_run import gpu_run

from placebench.cli import main

PAGE = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")


def test_the_commands_run(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    found = commands(PAGE)
    assert len(found) >= 6
    for command in found:
        if not command.startswith("placebench serve"):
            shell(command + (" --dry-run" if command.startswith("placebench run") else ""), tmp_path, environment)
            continue
        command = command.replace("--port 8765", "--port 0")
        with subprocess.Popen(
            command.split(), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        ) as served:
            assert served.stdout is not None
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", served.stdout.readline().strip())
            served.send_signal(signal.SIGINT)
            assert served.wait(60) == 0


def test_every_metric_is_listed(tmp_path: Path) -> None:
    gpu_run(rounds=1).write(tmp_path / "run")
    text = client(tmp_path).get("/metrics", headers=BEARER).text
    names = re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
    assert len(names) == 10
    assert [name for name in names if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("command", ["serve", "watch"])
def test_every_option_is_explained(command: str) -> None:
    options = [option for param in main.commands[command].params for option in param.opts if option.startswith("--")]
    assert [option for option in options if option not in PAGE and option != "--help"] == []


def test_every_panel_is_explained() -> None:
    code = (ROOT / "placebench" / "serve" / "static" / "page.js").read_text(encoding="utf-8")
    panels = re.findall(r'this\.section\("([^"]+)"', code) + re.findall(r'"h2", \{\}, "([^"]+)"', code)
    assert len(panels) >= 9
    assert [panel for panel in panels if panel not in PAGE] == []
