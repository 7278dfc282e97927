"""What a run prints fits one screen: verdict, numbers and what to mind, whatever there is to say."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from invoking import invoke
from layouts import SPLIT, STANDARD
from pages import ROOT
from rich.console import Console
from showing import printed
from synthetic_run import SyntheticRun

from placebench.record.folder import RunFolder, Status
from placebench.record.run_file import replace_status
from placebench.report.brief import print_brief, together
from placebench.report.kept import read_summary

REFERENCE = ROOT / "runs" / "reference"
RUNS = sorted(path.parent for path in REFERENCE.rglob("summary.json"))
LONG = "learners:1+engines:1/staleness=1/overlap=updates"


def is_one_screen(text: str) -> bool:
    """Whether a terminal of 24 lines of 80 columns shows all of it, the prompt below it included."""
    lines = text.splitlines()
    return len(lines) <= 23 and max(len(line.rstrip()) for line in lines if "/report." not in line) <= 80


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.relative_to(REFERENCE)))
def test_a_kept_run_is_one_screen_with_its_verdicts_and_heaviest_warning(path: Path) -> None:
    text, summary = invoke("show", path).stdout, read_summary(path)
    assert is_one_screen(text), text
    words = " ".join(text.split())
    told = [one.headline or "" for one in summary.verdicts]
    if summary.calibration:
        told = [summary.calibration.headline]
    assert any(headline in words for headline in told) if len(told) > 2 else all(one in words for one in told)
    assert ("warning: " in words) is bool(summary.warnings)
    assert all(name in words for name in (one.name for one in summary.placements))


def test_a_reason_without_room_keeps_what_led_to_the_verdict() -> None:
    for name, cause in (("ppo-7b-80", "phases take 5.17 s longer"), ("grpo", "phases take 3.16 s less")):
        words = " ".join(invoke("show", REFERENCE / "4x-h200" / name).stdout.split())
        assert re.search(rf"… but on \d devices instead of \d, {cause} \(", words), words


def test_of_a_run_without_a_report_no_file_is_named(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    assert invoke("report", path).exit_code == 0
    assert "or the report:" in invoke("show", path).stdout
    for name in ("report.html", "report.md"):
        (path / name).unlink()
    text = invoke("show", path).stdout
    assert (path / "trace.json.gz").exists()
    assert "show --verbose." in text
    assert "trace.json.gz" not in text


@pytest.mark.parametrize("slow_steps", [0, 4])
def test_more_warm_up_than_was_asked_for_is_told(tmp_path: Path, slow_steps: int) -> None:
    run = SyntheticRun(
        steps=12, rounds=2, step_pace=lambda round_, _, step: 1.5 if round_ == 2 and step <= slow_steps else 1.0
    )
    words = " ".join(invoke("show", run.write(tmp_path / "run")).stdout.split())
    left_out = ", 2 to 4 warm-up steps left out" if slow_steps else ""
    assert f"4 of 4 launches done{left_out}. More: show --verbose" in words


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize("names", [("standard", "split"), ("standard", "split", LONG)])
def test_two_and_three_placements_are_one_screen(tmp_path: Path, names: Sequence[str], is_damaged: bool) -> None:
    layouts = {name: STANDARD if name == "standard" else SPLIT for name in names}
    path = tmp_path / "run"
    failed = {(2, name): Status.FAILED for name in names[1:]} if is_damaged else {}
    SyntheticRun(layouts=layouts, rounds=3, steps=4, statuses=failed).write(path)
    text = printed(path, verbose=False)
    assert is_one_screen(text), text
    assert ("warning: " in text) is is_damaged
    words = " ".join(text.split())
    assert f"{names[1]} is slower than standard" in words
    assert re.search(r"95 %", text)
    assert f"{3 * len(names) - len(failed)} of {3 * len(names)} launches done" in words
    assert len(printed(path).splitlines()) > 40


def test_what_has_no_room_is_counted_and_cut_at_the_end_of_a_clause() -> None:
    summary = read_summary(REFERENCE / "4x-h200" / "ppo-1.5b-placements")
    many = tuple(f"launch: {'very ' * number} odd" for number in range(1, 12))
    console = Console(file=io.StringIO(), width=80)
    print_brief(summary.model_copy(update={"warnings": many, "facts": ()}), console, "5 launches.")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert is_one_screen(text)
    (more,) = re.findall(r"^(\d+) more warnings: see --verbose", text, re.MULTILINE)
    assert int(more) + text.count("warning: ") == len(many)
    for line in re.findall(r"(\S+) …", " ".join(text.split())):
        assert not line.endswith((",", ";", ":"))


@pytest.mark.parametrize("lines", range(9))
def test_a_reason_is_not_cut_before_its_first_figure(lines: int) -> None:
    summary = read_summary(REFERENCE / "4x-h200" / "ppo-1.5b-placements")
    reason = f"Measured, but as uncertain as the verdict: split overlaps 0.6 s of work ({'very ' * 40}long)."
    sides = tuple(one.model_copy(update={"reasons": (reason,)}) for one in summary.placements[:3])
    summary = summary.model_copy(update={"warnings": (), "facts": (), "placements": sides})
    console = Console(file=io.StringIO(), width=80)
    print_brief(summary, console, "5 launches.", ["report.html"] * lines)
    assert isinstance(console.file, io.StringIO)
    text = " ".join(console.file.getvalue().split())
    assert text.count("Measured") == text.count("Measured, but as uncertain as the verdict: split overlaps 0.6 s of")


def test_a_reason_that_is_cut_within_brackets_closes_them() -> None:
    summary = read_summary(REFERENCE / "4x-h200" / "ppo-1.5b-placements")
    reason = f"Measured: split overlaps 0.6 s of work (values 0.2 s and {'very ' * 40}long)."
    sides = tuple(one.model_copy(update={"reasons": (reason,)}) for one in summary.placements[:2])
    console = Console(file=io.StringIO(), width=80)
    summary = summary.model_copy(update={"warnings": ("odd",) * 11, "facts": (), "placements": sides})
    print_brief(summary, console, "5 launches.", ["report.html"] * 3)
    assert isinstance(console.file, io.StringIO)
    assert "(values 0.2 s …)" in " ".join(console.file.getvalue().split())


def test_nothing_measured_is_said_so(tmp_path: Path) -> None:
    statuses = {(1, "standard"): Status.RUNNING, (1, "split"): Status.PLANNED}
    text = printed(SyntheticRun(rounds=1, statuses=statuses).write(tmp_path / "run"), verbose=False)
    assert "Nothing has been measured yet." in text
    assert "0 of 2 launches done" in text


def test_an_interrupted_run_is_not_said_to_be_still_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kill -9 or a full disk leaves it, when all that has happened stands in its files."""
    run = SyntheticRun(layouts={"job": STANDARD}, rounds=1, statuses={(1, "job"): Status.INTERRUPTED})
    folder = RunFolder(run.write(tmp_path / "run"))
    replace_status(folder.run_file, Status.RUNNING, Status.INTERRUPTED)
    trial = folder.trial(1, "job")
    trial.error.unlink()
    trial.steps.write_text("".join(f'{{"step": {step}, "wall": 1.0, "metrics": {{}}}}\n' for step in (1, 2)))
    text = " ".join(printed(folder.path, verbose=False).split())
    assert "Nothing has been measured to its end." in text
    assert "warning: round 1 job: interrupted after 2 steps" in text
    told = "the run was interrupted before a launch had ended: go on with placebench run --resume"
    assert f"{told} run" in text
    monkeypatch.chdir(tmp_path.parent)
    path = folder.path.relative_to(tmp_path.parent)
    assert f"{told} {path}" in " ".join(printed(path, verbose=False).split())


def test_warnings_that_differ_in_who_and_how_much_are_one() -> None:
    told = "the power cap lowered the clocks in {} % of the samples"
    warnings = [f"standard: {told.format(64)}", "Compare by force: other model.", f"split: {told.format('7.5')}"]
    assert together(warnings) == [f"standard, split: {told.format('7.5 to 64')}", "Compare by force: other model."]
    assert together(["a: x 1", "b: y 1"]) == ["a: x 1", "b: y 1"]
    assert together(["a: step 1, 1,200 ms.", "b: step 3, 90 ms."]) == ["a, b: step 1 to 3, 90 to 1,200 ms."]
    # Launches of one of several runs are told apart by both.
    of_runs = [f"one: round {number} standard: missed {number}5 of 75" for number in (1, 3)]
    assert together(of_runs) == ["one: round 1 standard, one: round 3 standard: missed 15 to 35 of 75"]
    assert together(["a: 10.0.0.1", "b: 10.0.0.2"]) == ["a, b: 10.0.0.1 to 0.2"]


@given(st.lists(st.text("ab12 :.,%", max_size=12), max_size=5))
@example([" :", "1:  :"])
def test_warnings_put_together_lose_nobody(warnings: list[str]) -> None:
    found = together(warnings)
    assert len(found) <= len(warnings)
    for text in set(warnings):
        who = text.partition(": ")[0]
        assert any(who in one or "more" in one for one in found)
