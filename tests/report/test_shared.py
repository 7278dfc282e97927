"""Runs that were shared without their raw files: what `summary.json` still shows."""

import json
import shutil
from pathlib import Path

import pytest
from invoking import invoke
from pages import ROOT
from synthetic_run import SyntheticRun, read_json

REFERENCE = ROOT / "runs" / "reference"
RUNS = sorted(path.parent for path in REFERENCE.rglob("summary.json"))
NOTE = "The run was shared without its raw files: these are the numbers of its summary.json."


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with its report, and a copy that has nothing else."""
    folder = tmp_path_factory.mktemp("runs")
    whole = SyntheticRun().write(folder / "whole")
    assert invoke("report", whole).exit_code == 0
    shared = shutil.copytree(whole, folder / "shared")
    shutil.rmtree(shared / "trials")
    (shared / "run.json").unlink()
    (shared / "report.html").unlink()
    return whole, shared


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(REFERENCE)))
def test_every_reference_is_shown_and_reported(path: Path, tmp_path: Path) -> None:
    shown = invoke("show", "--verbose", path)
    assert shown.exit_code == 0, shown.output
    assert NOTE in " ".join(shown.stdout.split())
    copy = shutil.copytree(path, tmp_path / "run")
    reported = invoke("report", copy)
    assert reported.exit_code == 0, reported.output
    page = (copy / "report.html").read_text(encoding="utf-8")
    assert page.count("<figure") == len(list(path.glob("plots/*.svg")))


def test_a_shared_run_shows_the_tables_of_the_whole_one(runs: tuple[Path, Path]) -> None:
    whole, shared = (invoke("show", "--verbose", path).stdout for path in runs)
    tables = whole.partition("6 of 6 launches done")[0]
    assert tables in shared
    kept = read_json(runs[1] / "summary.json")
    assert invoke("report", runs[1]).exit_code == 0
    assert read_json(runs[1] / "summary.json") == kept
    assert (runs[1] / "report.md").read_text() == (runs[0] / "report.md").read_text()


def test_a_run_that_was_killed_before_its_first_launch_is_no_shared_one(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    record = read_json(path / "run.json") | {"launches": [], "status": "running", "ended": None}
    (path / "run.json").write_text(json.dumps(record))
    shutil.rmtree(path / "trials")
    for _ in ("first", "again"):
        assert invoke("report", path, "--png").exit_code == 0
        text = " ".join(invoke("show", path).stdout.split())
        assert "no launch was started, so nothing was measured" in text
        assert "go on with placebench run --resume run" in text
        assert "0 of 2 launches done. More" in text
    # Where launches have ended, their files were taken away.
    (path / "run.json").write_text(json.dumps(record | {"launches": [{}]}))
    assert "0 of 2 launches done (raw files left out)" in " ".join(invoke("show", path).stdout.split())


def test_shared_runs_are_compared_by_their_launches(runs: tuple[Path, Path]) -> None:
    whole, shared = (invoke("compare", path) for path in runs)
    assert shared.exit_code == 0, shared.output
    row = next(line.split() for line in whole.stdout.splitlines() if line.startswith("step "))
    assert next(line.split() for line in shared.stdout.splitlines() if line.startswith("step "))[:5] == row[:5]
    text = " ".join(shared.stdout.split())
    unknown = "of standard and split the tokens of single steps are not known"
    assert f"A step may be more work for one than for the other: {unknown}." in text
    old = invoke("compare", REFERENCE / "4x-h200/qwen2.5-0.5b")
    assert (old.exit_code, old.stderr.count("\n")) == (2, 1)
    assert "its summary.json has no numbers of single launches of standard: compare needs them" in old.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("show", "--min-effect", "5%"), "--min-effect 0.05: {} was shared without its raw files"),
        (("report", "--png"), "--png: {} was shared without its raw files"),
        (("run", "--dry-run", "--resume"), "{}: there is no run.json in it: it was shared without its raw files"),
        (("check", "--baseline", "{}"), "there is no run.json in it: it was shared without its raw files"),
    ],
)
def test_what_needs_raw_files_says_so(runs: tuple[Path, Path], words: tuple[str, ...], reason: str) -> None:
    done = invoke(*(word.format(runs[1]) for word in words), runs[1])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert reason.format(runs[1]) in done.stderr
