"""The display of a run that another process has started."""

import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from growing_run import GrowingRun
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.compare.measure.precision import compared_so_far
from placebench.errors import LaunchError, UsageError
from placebench.record.folder import Status, Trial
from placebench.record.progress import LaunchState
from placebench.run.display import PlainDisplay
from placebench.run.standing import stated
from placebench.run.watch import TrialWatch
from placebench.run.watching import follow_run


def watched(run: GrowingRun, monkeypatch: pytest.MonkeyPatch, *then: Callable[[], object]) -> str:
    """What is shown of a run to which something happens whenever it is waited for; it is done when nothing is left."""
    shown = io.StringIO()
    happens = iter(then)

    def sleep(seconds: float) -> None:
        next(happens)()

    monkeypatch.setattr("placebench.run.watching.time.sleep", sleep)
    display = PlainDisplay(shown, pause_s=0.0, silence_s=0.0)
    with display:
        status = follow_run(run.folder, display, compared_so_far)
    return f"{shown.getvalue()}{status}"


def test_launches_are_shown_until_the_run_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = GrowingRun(tmp_path / "run")

    def end() -> None:
        for _ in range(5):
            run.add_step(1.8)
        (run.trial.path / "devices.jsonl").touch()
        run.end(Status.FAILED)
        run.trial.error.write_text("failed: worker on cpu:1 ended\n")

    def finish() -> None:
        text = run.folder.run_file.read_text().replace('"status": "running"', '"status": "failed"')
        run.folder.run_file.write_text(text)

    text = watched(run, monkeypatch, lambda: run.be_at(1, ("gen", 1.0, None)), lambda: run.add_step(1.5), end, finish)
    lines = text.splitlines()
    assert lines[0] == "[3/6] round 2 split: start"
    assert [line for line in lines if re.fullmatch(r"\[3/6\] round 2 split: step 1/6: gen, \S+ \w+ so far", line)]
    assert "[3/6] round 2 split: step 1/6 1.5 s" in text
    assert lines[-2].startswith("[3/6] round 2 split: failed after ")
    assert lines[-2].endswith(": worker on cpu:1 ended")
    assert lines[-1] == "failed"


def test_a_run_whose_process_was_killed_is_not_watched_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = GrowingRun(tmp_path / "run")
    with pytest.raises(
        LaunchError, match="the process that worked on it was killed; go on with placebench run --resume"
    ):
        watched(run, monkeypatch, lambda: run.hold(2**22 + 1))


def test_a_run_that_goes_away_while_it_is_looked_at_ends_the_watching_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = GrowingRun(tmp_path / "run")

    def look(watch: TrialWatch, trial: Trial) -> LaunchState:
        shutil.rmtree(run.folder.path)
        return stated(watch, trial)

    monkeypatch.setattr("placebench.run.watching.stated", look)
    with pytest.raises(UsageError, match="there is no such folder"):
        watched(run, monkeypatch)


def test_a_run_that_is_done_shows_its_numbers_at_once(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=2).write(tmp_path / "run")
    result = CliRunner().invoke(main, ["watch", str(path)], prog_name="placebench")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "split is slower" in result.stdout


def test_a_run_that_is_not_done_is_told_so(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=2).write(tmp_path / "run")
    (path / "run.json").write_text((path / "run.json").read_text().replace('"done"', '"interrupted"'))
    result = CliRunner().invoke(main, ["watch", str(path)], prog_name="placebench")
    assert result.exit_code == 3
    assert "the run is interrupted; go on with placebench run --resume" in result.stderr
