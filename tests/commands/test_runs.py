"""Runs by the names that users give them, and the list of all of them."""

import json
import os
import re
from pathlib import Path

import pytest
from invoking import invoke
from layouts import SPLIT, STANDARD
from synthetic_run import SyntheticRun

from placebench.commands.compare import named_run
from placebench.commands.runs import find_run, with_run
from placebench.compare.comparison import compare_run
from placebench.errors import UsageError
from placebench.record.folder import Status
from placebench.report.listing import list_runs
from placebench.report.summary import summarize

FIRST, SECOND, THIRD = "20260301T100000Z-split", "20260302T100000Z-split", "20260303T100000Z-split-overlap=none"


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def summarized(path: Path) -> None:
    """Write the summary of a run, without the figures and pages of its report."""
    (path / "summary.json").write_text(summarize(compare_run(path)).model_dump_json())


def record(folder: str, name: str | None = None) -> Path:
    """A run of which only the name and the start are known."""
    path = Path(folder)
    path.mkdir(parents=True)
    time, _, word = path.name.partition("-")
    started = f"{time[:4]}-{time[4:6]}-{time[6:8]}T{time[9:11]}:00:00Z"
    (path / "run.json").write_text(json.dumps({"name": name or word, "started": started}))
    return path


def test_a_run_is_found_by_folder_name_beginning_and_latest() -> None:
    for name in (FIRST, SECOND, THIRD):
        record(f"runs/{name}")
    record("runs/20260101T100000Z-mine")
    record("results/20260101T100000Z-split")
    Path("runs/20260303T100000Z-none").mkdir()
    runs = Path("runs")
    for word in (
        "latest",
        "split-overlap=none",
        "split-o",
        "20260303",
        THIRD,
        f"runs/{THIRD}",
        "runs/split-o",
        "runs/latest",
    ):
        assert find_run(word) == runs / THIRD, word
    assert find_run("20260301T100000Z-split") == runs / FIRST  # whole names come before beginnings
    assert find_run("m") == runs / "20260101T100000Z-mine"
    for word in ("results/latest", "results/split", "results/2026"):
        assert find_run(word) == Path("results/20260101T100000Z-split")
    assert find_run("split", Path("results")) == Path("results/20260101T100000Z-split")


def test_latest_goes_by_the_recorded_start() -> None:
    # A copy keeps its start, whatever it is called, and so does a run of a host whose clock has been set since.
    record("runs/20260302T100000Z-b")
    record("runs/zzz").joinpath("run.json").write_text('{"started": "2026-03-01T10:00:00Z"}')
    Path("runs/zzzz").mkdir()
    assert find_run("latest") == Path("runs/20260302T100000Z-b")


def test_several_runs_that_may_be_meant_are_named_in_one_line() -> None:
    for name in (FIRST, SECOND, THIRD):
        record(f"runs/{name}")
    for word in ("split", "split:standard"):
        with pytest.raises(UsageError) as error:
            with_run(word)
        assert str(error.value) == (f"split: may be any of 2 runs: {SECOND}, {FIRST}; name one of these folders")
    for day in range(10, 17):
        record(f"runs/202604{day}T100000Z-other")
    with pytest.raises(UsageError, match=r"of 10 runs: 20260416T100000Z-other, .*-other and 5 more; name"):
        find_run("2026")


def test_what_is_there_is_no_name() -> None:
    record(f"runs/{FIRST}")
    for file in ("split", "s"):
        Path(file).write_text("")
        assert find_run(file) == Path(file)
        Path(file).unlink()
        Path(file).mkdir()
    assert find_run("split") == Path("runs", FIRST)  # a folder that is no run
    assert find_run("s") == Path("s")  # is not what a name begins with
    assert find_run("./split") == Path("split")
    with pytest.raises(UsageError, match=r"^spilt: .* no run of this name under runs/; did you mean split\?$"):
        find_run("spilt")
    with pytest.raises(UsageError, match=r"^x: .*; see placebench list, or name its folder$"):
        find_run("x")


def test_words_of_arms_and_placements_name_runs_too() -> None:
    record(f"runs/{FIRST}")
    record(f"runs/{THIRD}")
    first, third = f"runs/{FIRST}", f"runs/{THIRD}"
    assert with_run("split:split:1+1/overlap=none") == f"{first}:split:1+1/overlap=none"
    assert with_run("some.log") == "some.log"
    Path("split").mkdir()  # a folder that is no run, as for every command
    assert with_run("split") == first
    Path("split").rmdir()
    assert with_run(f"{first}:split") == f"{first}:split"
    assert named_run("split-overlap=none:split") == f"{third}:split"
    assert named_run("a=split-overlap=none:split/overlap=none") == f"a={third}:split/overlap=none"
    assert named_run("a=latest") == f"a={third}"
    assert named_run("a=b.log,c.log") == "a=b.log,c.log"
    record("my:runs/20260301T100000Z-m")
    assert with_run("my:runs/m:split") == "my:runs/20260301T100000Z-m:split"


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
