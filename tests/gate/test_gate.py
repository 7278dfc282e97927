"""`placebench check` and `placebench baseline`: which exit code and which output."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gate_runs import run
from hypothesis import given
from hypothesis import strategies as st
from invoking import invoke
from layouts import STANDARD
from pages import ROOT

from placebench.commands.options import parse_share
from placebench.errors import UsageError
from placebench.gate.baseline import save_baseline
from placebench.record.folder import Status

pytestmark = pytest.mark.usefixtures("own_temp", "off_github")


def test_several_runs_of_the_same_count_as_one(tmp_path: Path) -> None:
    runs = {
        side: [run(tmp_path / f"{side}{n}", factor * (1 + n), rounds=1) for n in range(3)]
        for side, factor in (("before", 1.0), ("after", 1.3))
    }
    before, after = (",".join(map(str, paths)) for paths in runs.values())
    assert invoke("check", after, "--baseline", before, "--paired").exit_code == 1
    again = ",".join(str(run(tmp_path / f"again{n}", 1.0 + n, rounds=1)) for n in range(3))
    assert invoke("check", again, "--baseline", before, "--paired").exit_code == 0
    # One launch of each run: the runs differ by more than the code does.
    assert invoke("check", after, "--baseline", before).exit_code == 0
    other = run(tmp_path / "other", rounds=1, workload={"model": "big"})
    refused = invoke("check", f"{runs['after'][0]},{other}", "--baseline", before)
    assert refused.exit_code == 4
    assert "demo and demo cannot be taken together: workload model: tiny → big" in refused.stderr


@pytest.mark.parametrize(("place", "side"), [(1, "after"), (0, "before"), (2, "before")])
def test_a_damaged_launch_leaves_the_others_paired(tmp_path: Path, place: int, side: str) -> None:
    """The machine gets slower from pair to pair; the code is the same."""
    runs = {
        side: [run(tmp_path / f"{side}{n}", 1.3**n, rounds=1, layouts={"standard": STANDARD}) for n in range(4)]
        for side in ("before", "after")
    }
    (runs[side][place] / "trials/01-standard/spans.jsonl").write_bytes(bytes(100))
    before, after = (",".join(map(str, paths)) for paths in runs.values())
    result = invoke("check", after, "--baseline", before, "--paired", "--json", tmp_path / "gate.json")
    assert result.exit_code == 0, result.output
    (case,) = json.loads((tmp_path / "gate.json").read_text())["cases"]
    assert (case["ratio"], case["outcome"]) == (pytest.approx(1.0, abs=1e-3), "passed")
    few = invoke("check", after, "--baseline", before, "--paired", "--min-launches", 4)
    assert few.exit_code == 3


def test_a_number_that_few_launches_have_is_not_passed(tmp_path: Path) -> None:
    before, now = run(tmp_path / "before", rounds=4), run(tmp_path / "now", rounds=4)
    base = tmp_path / "base.json"
    assert invoke("baseline", "save", before, base).exit_code == 0
    content = json.loads(base.read_text())
    for launch in content["placements"]["standard"]["launches"][:2]:
        del launch["phase/gen"]
    base.write_text(json.dumps(content))
    result = invoke("check", now, "--baseline", base, "--metric", "gen")
    assert result.exit_code == 3
    assert "standard: gen was measured in 2 launches of a side, 3 needed" in result.stderr
    assert invoke("check", now, "--baseline", base, "--metric", "gen", "--min-launches", 2).exit_code == 0


@pytest.mark.parametrize("again", ["{0},{0}", "{0},other/../{0}", "{0},link", "{0},{0}:standard", "{0}:standard,{0}"])
def test_a_run_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("run"), rounds=1, layouts={"standard": STANDARD})
    run(Path("other"), layouts={"standard": STANDARD})
    Path("link").symlink_to("run")
    again = again.format("run")
    for words in (["check", again, "--baseline", "other"], ["check", "other", "--baseline", again]):
        refused = invoke(*words, "--paired", "--min-launches", 2)
        assert refused.exit_code == 2, refused.output
        assert refused.stderr == f"placebench: {again.split(',')[1]} is given twice: name it once\n"
    assert invoke("check", "run", "--baseline", "other", "--min-launches", 2).exit_code == 3
    saved = invoke("baseline", "save", "other", "base.json")
    assert saved.exit_code == 0
    assert "is given twice" in invoke("check", "other", "--baseline", "base.json,base.json").stderr
    shutil.copy("base.json", "again.json")
    copied = invoke("check", "run", "--baseline", "base.json,again.json")
    assert copied.stderr == "placebench: again.json is given twice, as base.json is of the same run: name it once\n"


@pytest.mark.parametrize("name", ["a=b,c:d+e@f", "learners:2,1+engines:5", "split, twice"])
def test_a_placement_may_have_commas_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("1", "2", "3", "4"):
        run(Path(folder), layouts=dict.fromkeys((name, "standard"), STANDARD))
    assert invoke("baseline", "save", f"1:{name}", "base.json").output.startswith(f"base.json: 3 of {name} launches")
    both = f"3:{name},4:{name}"
    for word, baseline in ((f"3:{name}", "1,2"), (both, f"base.json:{name}"), (both, f"1:{name},2:{name}")):
        result = invoke("check", word, "--baseline", baseline)
        assert result.exit_code == 0, result.output
        assert result.stdout.endswith("no regression: 1 number within 5 %\n")


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("run:learners:2,1+engines:6,run", "run has no placement 'learners:2,1+engines:6': it has "),
        ("run:splt,run", "run has no placement 'splt': it has standard, split"),
        ("nowhere,run", "nowhere: there is no such folder"),
        ("run,,run", "there is an empty entry"),
    ],
)
def test_an_entry_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("run"))
    result = invoke("check", word, "--baseline", "run")
    assert result.exit_code == 2
    assert reason in result.stderr


def test_a_placement_of_a_run_is_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("runs/0"))
    run(Path("runs/1"))
    run(Path("runs/2"), 1.3)
    for words in (["runs/1:split", "runs/0:split"], ["runs/1:split", "runs/0"]):
        same = invoke("check", words[0], "--baseline", words[1])
        assert same.exit_code == 0, same.output
        assert [line.split()[0] for line in same.stdout.splitlines() if line.endswith("passed")] == ["split"]
    assert invoke("check", "latest:split", "--baseline", "runs/1:split").exit_code == 1
    # The split is slower than the standard placement, of the same run as of another.
    faster = invoke("check", "runs/1:standard", "--baseline", "runs/1:split", "--paired", "--json", "gate.json")
    assert faster.exit_code == 0, faster.output
    content = json.loads(Path("gate.json").read_text())
    assert (content["run"], content["baseline"]) == ("demo:standard", "demo:split")
    assert [(case["placement"], case["outcome"]) for case in content["cases"]] == [("standard", "improved")]
    assert faster.stdout.startswith("demo:standard against demo:split of ")
    assert invoke("check", "latest:split", "--baseline", "runs/1:standard").exit_code == 1
    few = invoke("check", "latest:split", "--baseline", "runs/1:standard", "--min-launches", "4")
    assert "the run has 3 launches of split, 4 needed; the baseline has 3 launches of standard, 4" in few.stderr
    # What is measured is not left unchecked in silence.
    assert "the baseline has no split" in invoke("check", "latest", "--baseline", "runs/1:standard").stderr
    unknown = invoke("check", "latest:split", "--baseline", "runs/1:spilt")
    assert (unknown.exit_code, "runs/1 has no placement 'spilt': it has standard, split" in unknown.stderr) == (2, True)


def test_a_newest_run_that_is_not_there_is_no_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(Path("run"))
    result = invoke("check", "run", "--baseline", "latest", "--json", "gate.json")
    assert result.exit_code == 4
    assert "latest: there is no run under runs/ yet" in result.stderr
    assert json.loads(Path("gate.json").read_text())["exit_code"] == 4


def test_the_command_passes_and_fails(tmp_path: Path) -> None:
    before, slower = run(tmp_path / "before"), run(tmp_path / "slower", 1.3)
    baseline = tmp_path / "baseline.json"
    saved = invoke("baseline", "save", before, baseline)
    assert (saved.exit_code, saved.output) == (0, f"{baseline}: 3 of standard, 3 of split launches of demo\n")
    same = invoke("check", run(tmp_path / "same"), "--baseline", baseline)
    assert same.exit_code == 0, same.output
    assert same.stdout.endswith("no regression: 2 numbers within 5 %\n")
    worse = invoke("check", slower, "--baseline", before, "--metric", "step", "--metric", "phase/gen")
    assert worse.exit_code == 1
    assert worse.stderr.startswith("placebench: standard: step is 1.30 times the baseline's (95 % interval ")
    assert [line.split()[:2] for line in worse.stdout.splitlines() if line.rstrip().endswith(" regression")] == [
        ["standard", "step"], ["standard", "gen"], ["split", "step"], ["split", "gen"],
    ]  # fmt: skip
    assert invoke("check", slower, "--baseline", before, "--max-regression", "50%").exit_code == 0
    assert invoke("check", f"{slower}:split", "--baseline", baseline).exit_code == 1


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs and baselines, good ones and others."""
    folder = tmp_path_factory.mktemp("ends")
    run(folder / "run")
    run(folder / "single", rounds=1)
    run(folder / "failed", statuses={(2, "split"): Status.OOM, (3, "split"): Status.PLANNED})
    save_baseline(run(folder / "before"), folder / "base.json")
    (folder / "empty").mkdir()
    (folder / "shared").mkdir()
    shutil.copy(ROOT / "runs" / "reference" / "4x-h200" / "ppo-7b" / "summary.json", folder / "shared")
    (folder / "broken.json").write_text("{")
    kept = json.loads((folder / "base.json").read_text())
    (folder / "older.json").write_text(json.dumps({**kept, "schema_version": 0}))
    return folder


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["check", "run"], 2, "Missing option '--baseline'"),
        (["check", "nowhere", "--baseline", "base.json"], 2, "nowhere: there is no such folder"),
        (
            ["check", "run", "--baseline", "base.json", "--max-regression", "5"],
            2,
            "write a share, such as 5% or 0.05, from 0 to below 100 %",
        ),
        (["check", "run", "--baseline", "base.json", "--max-regression", "-5%"], 2, "write a share"),
        (["check", "run", "--baseline", "base.json", "--metric", "steps"], 2, "no such number: use step, gen, "),
        (["check", "run", "--baseline", "base.json", "--metric", "load"], 2, "neither more nor less of it is worse"),
        (["check", "run:spilt", "--baseline", "base.json"], 2, "run has no placement 'spilt'"),
        (["check", "run", "--baseline", "base.json", "--junit", "run"], 2, "run: cannot write it: Is a directory"),
        (["check", "run,", "--baseline", "base.json"], 2, "'run,': there is an empty entry"),
        (["check", "run", "--baseline", "nowhere.json"], 4, "nowhere.json: there is no baseline: save one with"),
        (["check", "run", "--baseline", "empty"], 4, "empty: no baseline: there is no run.json in this folder"),
        (
            ["check", "shared:split", "--baseline", "base.json"],
            2,
            "placebench: shared: there is no run.json in it: it was shared without its raw files, and only show,"
            " report, compare, predict --from and search --from can use its summary.json",
        ),
        (["baseline", "save", "shared:split/overlap=none", "new.json"], 2, "placebench: shared: there is no run.json"),
        (
            ["check", "run", "--baseline", "shared:standard"],
            4,
            "placebench: shared: no baseline: there is no run.json: it was shared without its raw files",
        ),
        (["check", "run", "--baseline", "broken.json"], 4, "not a baseline that this placebench reads: Invalid JSON"),
        (["check", "run", "--baseline", "older.json"], 4, "not a baseline that this placebench reads: schema_version"),
        (
            ["check", "failed", "--baseline", "base.json"],
            3,
            "the run has launches that are not done: round 2 split",
        ),
        (
            ["check", "run", "--baseline", "base.json", "--min-launches", "4"],
            3,
            "has 3 launches of standard, 4 needed",
        ),
        (["baseline", "save", "failed", "new.json"], 3, "no baseline from a run with launches that are not done"),
        (["baseline", "save", "single", "new.json"], 3, "standard has 1 finished launch: a baseline needs 2 or more"),
        (["baseline", "save", "run", "run"], 2, "run: cannot write it: Is a directory"),
        (["baseline", "save", "run", ""], 2, "Invalid value for 'FILE': it is empty: name a file"),
        (["check", "run", "--baseline", "base.json", "--json", ""], 2, "Invalid value for '--json': it is empty"),
        (["check", "run", "--baseline", "base.json", "--junit", ""], 2, "Invalid value for '--junit': it is empty"),
        (["check", "run", "--baseline", "base.json", "--json", "/"], 2, "'--json': /: cannot write it: Is a directory"),
        (
            ["check", "run", "--baseline", "base.json", "--junit", "new.json", "--json", "empty/../new.json"],
            2,
            "--junit and --json both name empty/../new.json: give each a file of its own",
        ),
        (
            ["check", "run", "--baseline", "base.json", "--json", "empty/../base.json"],
            2,
            "--baseline and --json both name empty/../base.json: give each a file of its own",
        ),
    ],
)
def test_other_ends_have_their_exit_code(
    ends: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, reason: str
) -> None:
    shutil.copytree(ends, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    kept = Path("base.json").read_text()
    result = invoke(*arguments)
    assert result.exit_code == code, result.output
    assert Path("base.json").read_text() == kept
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("new.json").exists()


def test_a_run_is_no_baseline_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_baseline(run(Path("run"), rounds=2), Path("base.json"))
    run(Path("other"), rounds=2)
    Path("link").symlink_to("run")
    shutil.copytree("run", "copy")
    for baseline in ("run", "base.json", "link", "copy", "other/../run:split", "base.json:split", "other,run"):
        result = invoke("check", "run", "--baseline", baseline)
        assert result.exit_code == 2
        assert result.stderr == (
            f"placebench: --baseline {baseline}: is of the run that is checked: take the baseline of an earlier run\n"
        )


def test_a_damaged_launch_is_told_and_the_others_are_saved_and_checked(tmp_path: Path) -> None:
    before, now = run(tmp_path / "before", rounds=4), run(tmp_path / "now", rounds=4)
    for path in (before, now):
        (path / "trials/02-split/spans.jsonl").write_bytes(bytes(100))
    damaged = (
        "set aside: round 2 split: {}/trials/02-split: steps.jsonl and spans.jsonl do not have the same steps, each"
        " once"
    )
    saved = invoke("baseline", "save", before, tmp_path / "base.json")
    assert saved.stderr == f"placebench: {damaged.format(before)}\n"
    assert saved.stdout == f"{tmp_path / 'base.json'}: 4 of standard, 3 of split launches of demo\n"
    result = invoke("check", now, "--baseline", tmp_path / "base.json")
    assert result.exit_code == 0, result.output
    assert "".join(result.stdout.split()).count("".join(damaged.format(now).split())) == 1


def test_ctrl_c_is_exit_code_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placebench.gate.asked.measured_run", stop)
    assert invoke("check", tmp_path, "--baseline", tmp_path).exit_code == 130


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("5 %", 0.05), ("0.05", 0.05), ("0", 0.0), ("99%", 0.99)])
def test_shares(text: str, share: float) -> None:
    assert parse_share("--max-regression", text) == pytest.approx(share)


@given(st.text(max_size=6))
def test_no_share_breaks_the_parser(text: str) -> None:
    try:
        assert 0 <= parse_share("--x", text) < 1
    except UsageError:
        assert not text.removesuffix("%").isdecimal() or int(text.removesuffix("%")) >= 1


def test_a_check_needs_no_torch(tmp_path: Path) -> None:
    before, now = run(tmp_path / "before"), run(tmp_path / "now")
    program = (
        "import sys; from placebench.cli import main\n"
        f"sys.argv = ['placebench', 'check', {str(now)!r}, '--baseline', {str(before)!r}]\n"
        "try: main()\n"
        "finally: print(sorted(sys.modules.keys() & {'torch', 'ray', 'vllm', 'transformers'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n[]\n")


def test_a_baseline_is_not_waited_for_at_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    result = invoke("check", run(tmp_path / "run"), "--baseline", tmp_path / "pipe")
    assert result.exit_code == 4
    assert result.stderr.endswith("pipe: cannot read it: it is a pipe or a device; name a regular file\n")
