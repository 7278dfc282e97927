"""Commands take runs by their names, and the list has all of them."""

import json
import os
import re
from pathlib import Path

import pytest
from invoking import invoke
from layouts import SPLIT, STANDARD
from synthetic_run import SyntheticRun, record

from placebench.commands.compare import named_run
from placebench.compare.comparison import compare_run
from placebench.record.folder import Status
from placebench.record.named_runs import find_run
from placebench.report.listing import list_runs
from placebench.report.summary import summarize


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def summarized(path: Path) -> None:
    """Write the summary of a run, without the figures and pages of its report."""
    (path / "summary.json").write_text(summarize(compare_run(path)).model_dump_json())


def test_words_of_arms_name_runs_too() -> None:
    run = f"runs/{record('runs/20260303T100000Z-split-overlap=none').name}"
    assert named_run("split-overlap=none:split") == f"{run}:split"
    assert named_run("a=split-overlap=none:split/overlap=none") == f"a={run}:split/overlap=none"
    assert named_run("a=latest") == f"a={run}"
    assert named_run("a=b.log,c.log") == "a=b.log,c.log"


def test_every_command_takes_a_name() -> None:
    for number, name in enumerate(("before", "after"), start=1):
        path = SyntheticRun(rounds=2).write(Path(f"runs/2026030{number}T100000Z-{name}"))
        (path / "run.json").write_text((path / "run.json").read_text().replace('"demo"', f'"{name}"'))
    shown = invoke("show", "before")
    assert shown.stdout == invoke("show", "runs/20260301T100000Z-before").stdout
    assert "4 of 4 launches done" in shown.stdout
    assert "no run of this name under runs/; did you mean before?" in invoke("report", "befor_").stderr
    compared = invoke("compare", "--verbose", "before:split", "x=after:split")
    assert (compared.exit_code, "x against" in compared.stdout) == (0, True)
    assert invoke("baseline", "save", "before:split", "base.json").exit_code == 0
    assert invoke("check", "after:split", "--baseline", "before", "--min-launches", "2").exit_code == 0
    resumed = invoke("run", "--resume", "before", "--rounds", "1")
    assert (resumed.exit_code, "--resume: --rounds is 1 now and already 2 in the run" in resumed.stderr) == (2, True)


def test_the_list_has_every_run_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    summarized(SyntheticRun(rounds=2).write(Path("runs/old")))
    learners = "learners:1+engines:1/staleness=1"
    layouts = {"standard": STANDARD, "split": SPLIT, learners: SPLIT}
    SyntheticRun(layouts=layouts, rounds=1, statuses={(1, "split"): Status.OOM}).write(Path("runs/new"))
    for folder, day in (("old", 1), ("new", 2)):
        file = Path("runs", folder, "run.json")
        file.write_text(
            json.dumps(json.loads(file.read_text()) | {"name": folder, "started": f"2026-03-0{day}T10:00:00Z"})
        )
    for damage in ("", "[]", '{"schema_version": 1'):
        path = Path(f"runs/damaged{len(damage)}")
        (path / "trials").mkdir(parents=True)
        if damage:
            (path / "run.json").write_text(damage)
    (Path("runs/old/summary.json")).rename("summary.json")
    shared = Path("runs/shared")
    shared.mkdir()
    Path("summary.json").rename(shared / "summary.json")
    summarized(Path("runs/old"))
    monkeypatch.setenv("COLUMNS", "80")
    result = invoke("list")
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(len(line.rstrip()) <= 80 for line in result.stdout.splitlines())
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        "2026-03-02 10:00  running 0/3  new",
        f"  standard, split, {learners}",
        "2026-03-01 10:00  done         demo",
        "  standard, split slower 1.408",
        "2026-03-01 10:00  done         old",
        "  standard, split slower 1.408",
        "–                 damaged      damaged20",
        "–                 damaged      damaged2",
        "–                 damaged      damaged0",
    ]
    runs = json.loads(invoke("list", "--json").stdout)
    assert [run["name"] for run in runs] == ["new", "demo", "old", "damaged20", "damaged2", "damaged0"]
    assert runs[2]["folder"] == "runs/old"
    assert runs[2]["verdicts"]["split"]["verdict"] == "slower"
    assert "run.json: cannot read it as JSON" in runs[3]["error"]


def test_the_list_is_a_line_a_run_where_all_fit() -> None:
    for name in ("a", "b"):
        summarized(SyntheticRun(rounds=2).write(Path("runs", name)))
    (Path("runs/b/summary.json")).write_text("{}")
    result = invoke("list", "runs")
    assert [re.split("  +", line.strip()) for line in result.stdout.splitlines()] == [
        ["run", "started (UTC)", "status", "placements", "verdict"],
        ["b", "2026-03-01 10:00", "done", "standard, split", "–"],  # two runs of one name: by their folders
        ["a", "2026-03-01 10:00", "done", "standard, split", "slower 1.408"],
    ]
    assert [run.error for run in list_runs(Path("runs"))] == ["runs/b/summary.json: not as placebench writes it", None]


def test_a_run_that_is_resumed_is_listed_without_the_verdict_of_before() -> None:
    path = SyntheticRun(rounds=2).write(Path("runs", "a"))
    summarized(path)
    done = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(done | {"status": "running", "ended": None}))
    [resumed] = list_runs(Path("runs"))
    assert (resumed.status, resumed.verdicts) == ("running", {})
    (path / "run.json").write_text(json.dumps(done))
    [over] = list_runs(Path("runs"))
    assert over.verdicts["split"].verdict == "slower"


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting() -> None:
    sound = record("runs/20260301T100000Z-a")
    for name in ("run.json", "summary.json"):
        folder = Path("runs", f"pipe-{name}")
        folder.mkdir()
        os.mkfifo(folder / name)
    assert find_run("latest") == sound
    listed = {run.name: run.status for run in list_runs(Path("runs"))}
    assert {name: listed[name] for name in ("pipe-run.json", "pipe-summary.json")} == {
        "pipe-run.json": "damaged",
        "pipe-summary.json": "damaged",
    }


def test_a_list_without_runs_is_one_line() -> None:
    none = "there is no run under runs/ yet; start one with placebench run\n"
    assert (invoke("list").stdout, invoke("list", "--json").stdout) == (none, "[]\n")
    Path("runs/empty").mkdir(parents=True)
    assert (invoke("list").stdout, invoke("list", "runs").exit_code) == (none, 0)
    missing = invoke("list", "nowhere")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert missing.stderr == "placebench: nowhere: there is no such folder; name the --out of the runs\n"
