"""The summary that a report has left: printed while the run's files are as they were."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from invoking import invoke
from synthetic_run import SyntheticRun

from placebench.report import show
from placebench.report.kept import kept_summary


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its report."""
    path = SyntheticRun().write(tmp_path_factory.mktemp("runs") / "run")
    assert invoke("report", path).exit_code == 0
    return path


def test_a_reported_run_is_shown_without_being_compared_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = kept_summary(run)
    assert kept is not None
    assert kept == show.compare_anew(run, None)
    printed = invoke("show", run)
    monkeypatch.setattr(show, "kept_summary", lambda *_: None)
    assert printed.stdout == invoke("show", run).stdout
    code = (
        "import atexit, sys; from placebench.cli import main;"
        "atexit.register(lambda: print({'numpy', 'pandas', 'scipy', 'matplotlib'} & {*sys.modules})); main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "show", str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def _append(path: Path) -> None:
    with path.open("a") as stream:
        stream.write("\n")


CHANGES: dict[str, Callable[[Path], object]] = {
    "run.json": lambda run: _append(run / "run.json"),
    "a launch": lambda run: _append(next(run.glob("trials/*/spans.jsonl"))),
    "a launch less": lambda run: shutil.rmtree(next(run.glob("trials/*"))),
    "a calibration beside it": lambda run: (run.parent / "noise/calibration.json").write_text("{}"),
    "another version": lambda run: _edit(run / "summary.json", "placebench", "0"),
    "a damaged summary": lambda run: (run / "summary.json").write_text("{"),
    "no summary": lambda run: (run / "summary.json").unlink(),
}


def _edit(path: Path, key: str, value: str) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_is_compared_again(run: Path, tmp_path: Path, change: Callable[[Path], object]) -> None:
    (tmp_path / "noise").mkdir()
    copy = shutil.copytree(run, tmp_path / "run")
    summary = (copy / "summary.json").read_text()
    for _ in range(10_000):  # written last, as by a report, which takes longer than a tick of the file system's clock
        (copy / "summary.json").write_text(summary)
        if kept_summary(copy):
            break
    assert kept_summary(copy) is not None
    assert kept_summary(copy, 0.5) is None
    change(copy)
    assert kept_summary(copy) is None
