"""What is wrong with the host, and not with what was asked of a command, is one line."""

import errno
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from invoking import invoke
from synthetic_run import SyntheticRun


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No temporary file can be written, as where the disk is full or cannot be written at all."""

    def refuse() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", refuse)


@pytest.mark.usefixtures("nowhere")
def test_runs_are_read_where_no_temporary_file_can_be_written(tmp_path: Path) -> None:
    run = SyntheticRun(rounds=1).write(tmp_path / "run")
    shown = invoke("show", run)
    assert (shown.exit_code, shown.stderr) == (0, "")


@pytest.mark.usefixtures("nowhere")
def test_a_run_where_no_temporary_file_can_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    result = invoke("run", "--devices", "cpu:2", "--out", tmp_path / "runs")
    message = "placebench: no folder for temporary files can be written: free some space in /tmp, or set TMPDIR\n"
    assert (result.exit_code, result.stderr) == (2, message)
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("nowhere")
def test_what_nobody_expected_is_one_line_also_where_its_traceback_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def surprise(text: str) -> Path:
        raise ZeroDivisionError("what")

    monkeypatch.setattr("placebench.record.named_runs.find_run", surprise)
    result = invoke("show", "x")
    where = "its traceback could not be written to a file, PLACEBENCH_DEBUG=1 prints it"
    assert (result.exit_code, result.stderr) == (
        70,
        f"placebench: unexpected ZeroDivisionError: what; {where}: please report it\n",
    )


def test_a_report_larger_than_files_may_be_is_one_line(tmp_path: Path) -> None:
    run = SyntheticRun(rounds=2).write(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "placebench", "report", str(run)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("placebench: ")
    assert "File too large" in line
