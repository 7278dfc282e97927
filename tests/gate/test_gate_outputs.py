"""What `placebench check` prints and writes: the same on the terminal, for GitHub, as JUnit and as JSON."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gate_runs import run
from invoking import invoke
from layouts import SPLIT, STANDARD
from synthetic_run import SyntheticRun

from placebench.record.folder import Status

pytestmark = pytest.mark.usefixtures("own_temp", "off_github")


def test_a_long_name_costs_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = {"learners:1+engines:1/staleness=1/overlap=updates": STANDARD}
    options = ["--metric", "step", "--metric", "tokens/s/device", "--metric", "peak memory"]
    before, now = (run(tmp_path / name, layouts=layouts) for name in ("before", "now"))
    assert invoke("baseline", "save", before, tmp_path / "baseline.json").exit_code == 0
    words = ["check", now, "--baseline", tmp_path / "baseline.json", *options]
    narrow = invoke(*words).stdout
    monkeypatch.setenv("COLUMNS", "200")
    rows = [line.split(None, 1)[1] for line in invoke(*words).stdout.splitlines() if line.startswith("learners")]
    assert len(rows) == 3
    for row in rows:
        cells = re.split(r"\s{2,}", row.strip())
        assert any(all(cell in line for cell in cells) for line in narrow.splitlines()), row


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", ["standard", "critic-alone-on-the-last-node-of-the-rack"])
def test_a_narrow_terminal_breaks_no_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    layouts = {name: STANDARD, "split": SPLIT}
    before, now = run(tmp_path / "before", layouts=layouts), run(tmp_path / "now", 1.3, layouts=layouts)
    labels = ["step", "tokens/s/device", "update_critic", "peak memory"]
    options = [word for label in labels for word in ("--metric", label)]
    lines = [line.rstrip() for line in invoke("check", now, "--baseline", before, *options).stdout.splitlines()]
    assert all(len(line) <= max(width, 80) for line in lines)
    if width == 100 and name == "standard":
        assert [line.split()[0] for line in lines[2:10]] == ["standard"] * 4 + ["split"] * 4
        return
    first = lines.index(name)
    assert lines[first + 5] == "split"
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines[first + 1 : first + 5]]
    assert [(label, result) for label, *_, result in cells] == [
        *zip(labels, ["regression"] * 3 + ["passed"], strict=True)
    ]


def test_unequal_work_stands_in_every_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {"standard": STANDARD}
    before = run(tmp_path / "before", layouts=alone)
    longer = run(tmp_path / "longer", 1.3, layouts=alone, tokens={"standard": 1690})
    slower = run(tmp_path / "slower", 1.6, layouts=alone, tokens={"standard": 1690})
    summary, junit, content = (tmp_path / name for name in ("summary.md", "gate.xml", "gate.json"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = invoke("check", longer, "--baseline", before, "--junit", junit, "--json", content)
    assert result.exit_code == 0
    told = "unequal work: standard had 1,690 tokens a step, the baseline 1,300 (+30.0 %). step: 1.30 ("
    assert told in " ".join(result.stdout.split())
    assert f"::warning title=placebench check::{told.replace('%', '%25')}" in result.stdout
    last = "no regression shown; worse only as measured or only at equal tokens: 1 of 1 number"
    assert result.stdout.splitlines()[-1] == last
    assert f"- {told}" in summary.read_text()
    suite = ElementTree.parse(junit).getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "1", "failures": "0", "errors": "0", "skipped": "1",
    }  # fmt: skip
    assert [(skipped.get("message") or "").startswith(told) for skipped in suite.iter("skipped")] == [True]
    numbers = json.loads(content.read_text())
    assert (numbers["exit_code"], numbers["verdict"], numbers["cases"][0]["outcome"]) == (0, last, "undecided")
    assert numbers["cases"][0]["work"] == {
        "baseline_tokens": pytest.approx(1300), "run_tokens": pytest.approx(1690), "exponent": 1.0,
        "ratio": pytest.approx(1.0), "low": pytest.approx(0.965, abs=0.01), "high": pytest.approx(1.036, abs=0.01),
    }  # fmt: skip
    worse = invoke("check", slower, "--baseline", before, "--junit", junit)
    assert worse.exit_code == 1
    assert worse.stderr.endswith(", 1.23 times with the difference in tokens (+30.0 %) taken out\n")
    (failure,) = ElementTree.parse(junit).getroot()[0].iter("failure")
    assert "(+30.0 %) taken out" in (failure.get("message") or "")


def test_every_output_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, slower = run(tmp_path / "before"), run(tmp_path / "slower", 1.3)
    summary, junit, content = (tmp_path / name for name in ("summary.md", "gate.xml", "gate.json"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    result = invoke("check", slower, "--baseline", before, "--junit", junit, "--json", content)
    assert result.exit_code == 1
    assert result.stdout.count("::error title=placebench check::") == 2
    assert "(95 %25 interval " in result.stdout
    text = summary.read_text()
    assert re.match(r"### demo against demo of 2026-03-01T10:\d\d:\d\dZ, at most 5 % worse\n", text)
    assert "| split | step | " in text
    suite = ElementTree.parse(junit).getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "2", "failures": "2", "errors": "0",
    }  # fmt: skip
    numbers = json.loads(content.read_text())
    assert (numbers["exit_code"], [case["outcome"] for case in numbers["cases"]]) == (1, ["regression"] * 2)
    assert numbers["cases"][0]["ratio"] == pytest.approx(1.3)
    assert result.stderr.strip() == f"placebench: {numbers['verdict']}"


def test_what_cannot_be_judged_is_an_error_of_junit(tmp_path: Path) -> None:
    before = run(tmp_path / "before")
    odd = run(tmp_path / "odd", statuses={(1, "split"): Status.OOM}, workload={"model": "tiny\x1b[31m"})
    junit = tmp_path / "gate.xml"
    result = invoke("check", odd, "--baseline", before, "--junit", junit)
    assert result.exit_code == 4
    errors = [error.get("message") or "" for error in ElementTree.parse(junit).iter("error")]
    assert any("workload model: tiny → tiny\\x1b[31m" in text for text in errors)
    assert any("round 1 split: oom" in text for text in errors)


@pytest.mark.parametrize(
    ("baseline", "reason"),
    [
        ("nowhere.json", "nowhere.json: there is no baseline: save one with"),
        ("broken.json", "broken.json: not a baseline that this placebench reads: Invalid JSON"),
        ("before,other", "demo and demo cannot be taken together: workload model: tiny → big"),
    ],
)
def test_every_output_tells_that_there_is_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, baseline: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run", "before"):
        run(Path(name))
    run(Path("other"), workload={"model": "big"})
    Path("broken.json").write_text("{")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    result = invoke("check", "run", "--baseline", baseline, "--junit", "gate.xml", "--json", "gate.json")
    assert result.exit_code == 4
    assert reason in result.stderr
    assert f"::error title=placebench check::{reason}" in result.stdout
    suite = ElementTree.parse("gate.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    assert [reason in (error.get("message") or "") for error in suite.iter("error")] == [True]
    assert reason in Path("summary.md").read_text()
    content = json.loads(Path("gate.json").read_text())
    assert (content["exit_code"], content["cases"], content["baseline"]) == (4, [], baseline)
    assert [reason in text for text in content["incomparable"]] == [True]


def test_a_link_leads_to_the_file_that_is_written(tmp_path: Path) -> None:
    before = run(tmp_path / "before")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "old.json").write_text("stale")
    links = {name: tmp_path / name for name in ("old.json", "new.json")}
    for name, link in links.items():
        link.symlink_to(tmp_path / "kept" / name)
    assert invoke("baseline", "save", before, links["old.json"]).exit_code == 0
    now = run(tmp_path / "now")
    assert invoke("check", now, "--baseline", links["old.json"], "--json", links["new.json"]).exit_code == 0
    for link in links.values():
        assert link.is_symlink()
        assert json.loads(link.read_text())["schema_version"] == 1


def test_a_fifo_is_written_into(tmp_path: Path) -> None:
    before, now, fifo = run(tmp_path / "before"), run(tmp_path / "now"), tmp_path / "fifo"
    os.mkfifo(fifo)
    # Open for reading too, so that nobody waits for the other end.
    end = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert invoke("baseline", "save", before, fifo).exit_code == 0
        assert json.loads(os.read(end, 1 << 20))["schema_version"] == 1
        # Unlike a file, it takes several outputs.
        assert invoke("check", now, "--baseline", before, "--junit", fifo, "--json", fifo).exit_code == 0
        junit, brace, content = os.read(end, 1 << 20).decode().partition("{")
        assert ElementTree.fromstring(junit).tag == "testsuites"
        assert json.loads(brace + content)["exit_code"] == 0
        assert fifo.is_fifo()
    finally:
        os.close(end)


@pytest.mark.parametrize("name", ["printed", "link"])
def test_what_goes_to_stdout_comes_behind_what_was_printed(tmp_path: Path, name: str) -> None:
    before, now, printed = run(tmp_path / "before"), run(tmp_path / "now"), tmp_path / "printed"
    (tmp_path / "link").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    words = [sys.executable, "-m", "placebench", "check", str(now), "--baseline", str(before), "--json", name]
    with printed.open("w") as stream:
        subprocess.run(words, stdout=stream, check=True, timeout=60, cwd=tmp_path)
    table, brace, rest = printed.read_text().partition("{\n")
    assert "would see" in table
    content, end, last = (brace + rest).partition("\n}\n")
    assert json.loads(content + end)["exit_code"] == 0
    assert last == "no regression: 2 numbers within 5 %\n"


def test_whoever_stops_reading_changes_no_verdict(tmp_path: Path) -> None:
    before, now = (SyntheticRun(rounds=3, pace=lambda *_, by=by: by).write(tmp_path / str(by)) for by in (1.0, 1.5))
    check = f"{sys.executable} -m placebench check {now}:standard --baseline {before}:standard --junit"
    for number, elsewhere in enumerate(("| true", "> /dev/full", "2>&1 | true", "2> /dev/full")):
        junit = tmp_path / f"{number}.xml"
        shell = f"set -o pipefail; {check} {junit} {elsewhere}"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), shell
        assert junit.is_file()
    nothing = f"{sys.executable} -m placebench check {now} --baseline {tmp_path / 'none.json'} 2> /dev/full"
    assert subprocess.run(["bash", "-c", nothing], check=False, timeout=60).returncode == 4


@pytest.mark.parametrize("is_file", [False, True])
def test_pairs_of_a_run_that_was_measured_later_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_file: bool
) -> None:
    before, now = run(tmp_path / "before"), run(tmp_path / "now")
    for steps in now.glob("trials/*/steps.jsonl"):
        lines = [json.loads(line) for line in steps.read_text().splitlines()]
        steps.write_text("".join(json.dumps(line | {"wall": line["wall"] + 86_400}) + "\n" for line in lines))
    if is_file:
        assert invoke("baseline", "save", before, tmp_path / "baseline.json").exit_code == 0
        before = tmp_path / "baseline.json"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    result = invoke("check", now, "--baseline", before, "--paired", "--json", tmp_path / "gate.json")
    told = "launches of standard and split did not take turns with the baseline's: they are not pairs as --paired needs"
    assert result.exit_code == 0, result.stderr
    assert f"warning: {told}" in " ".join(result.stdout.split())
    assert f"::warning title=placebench check::{told}" in result.stdout
    (line,) = json.loads((tmp_path / "gate.json").read_text())["turns"]
    assert line.startswith(f"warning: {told}")
    in_turn = invoke("check", f"{now}:split", "--baseline", f"{now}:standard", "--paired")
    assert "did not take turns" not in in_turn.stdout
