"""Streams that are closed, full, or of a narrow encoding, and what becomes of the exit code."""

import os
import shlex
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
from synthetic_run import SyntheticRun

from placebench.commands.console import let_everything_be_printed

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_encoding_without_a_sign_shows_one_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [PYTHON, "-m", "placebench", "run", "--dry-run", "--devices", "cpu:2"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 x cpu" in done.stdout
    written = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(written, encoding="latin-1"))
    let_everything_be_printed()
    print("\N{MINUS SIGN}4.6 to 5 µs, a\N{EN DASH}b, 語", flush=True)
    assert written.getvalue().decode("latin-1") == "-4.6 to 5 µs, a-b, ?\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_change_no_exit_code(closed: str) -> None:
    shell = f"{PYTHON} -m placebench run --dry-run --devices cpu:2 {closed}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_is_no_traceback() -> None:
    shell = f"set -o pipefail; {PYTHON} -m placebench run --dry-run --devices cpu:2 | head -n 1"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("run ")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "made"),
    [
        ("--help", None),
        ("run --print-config --devices cpu:2", None),
        ("export run --to csv --to parquet", "run/export/parquet"),
        ("predict --gpu H200 --model qwen2.5-0.5b --devices gpu:2 --json found.json", "found.json"),
        ("search --gpu H200 --model qwen2.5-0.5b --devices gpu:1 --json found.json", "found.json"),
    ],
)
def test_a_reader_that_is_gone_changes_no_exit_code_and_keeps_no_file_from_being_written(
    tmp_path: Path, arguments: str, made: str | None
) -> None:
    if "run/" in (made or ""):
        SyntheticRun(rounds=1).write(tmp_path / "run")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as stdout:
        done = subprocess.run(
            [PYTHON, "-m", "placebench", *arguments.split()],
            cwd=tmp_path, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert made is None or (tmp_path / made).exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["--help", "run --dry-run --devices cpu:2"])
def test_a_full_disk_under_stdout_is_one_line(arguments: str, unbuffered: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{PYTHON} -m placebench {arguments} > /dev/full"],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        check=False,
    )
    message = "placebench: cannot write to standard output or a file: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, message)


@pytest.mark.parametrize(
    "command",
    [
        "predict --gpu H200 --model qwen2.5-0.5b --devices gpu:2 --json made",
        "search --gpu H200 --model qwen2.5-0.5b --devices gpu:1 --json made",
        "placements --devices cpu:2",
        "export run --to csv --out made",
        "check run:split --baseline before:split --min-launches 2 --json made",
    ],
)
def test_what_goes_on_when_its_output_cannot_be_written_does_not_end_with_0(tmp_path: Path, command: str) -> None:
    SyntheticRun(rounds=2).write(tmp_path / "run")
    SyntheticRun(rounds=2, started="2025-12-31T10:00:00Z").write(tmp_path / "before")
    shell = f"{PYTHON} -m placebench {command} > /dev/full"
    done = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=False)
    lines = {line for line in done.stderr.splitlines() if "standard output" in line}
    assert (done.returncode, lines) == (2, {"placebench: cannot write to standard output: No space left on device"})
    assert (tmp_path / "made").exists() == ("made" in command)


def test_a_finished_run_keeps_its_exit_code_when_its_report_cannot_be_printed(tmp_path: Path) -> None:
    run = SyntheticRun(rounds=2).write(tmp_path / "run")
    program = (
        "from pathlib import Path; from placebench.cli import main;"
        " from placebench.commands.start import _report;"
        f" main.command('finish')(lambda: _report(Path({str(run)!r}), verbose=False)); main(['finish'])"
    )
    done = subprocess.run(
        ["bash", "-c", f"{PYTHON} -c {shlex.quote(program)} > /dev/full"], capture_output=True, text=True, check=False
    )
    message = f"placebench: cannot write to standard output: No space left on device; the report is in {run}\n"
    assert (done.returncode, done.stderr) == (0, message)
    assert (run / "report.md").is_file()
