"""Names from logs, records and the command line: none steers a terminal, a page, a sheet or a CI system."""

import csv
import gzip
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from invoking import invoke
from layouts import SPLIT, STANDARD, Layout
from markdown_it import MarkdownIt
from pages import ROOT
from rich.text import Text
from synthetic_run import SyntheticRun, read_json

from placebench.host.terminal import new_console, printable, say_json
from placebench.record.folder import Status
from placebench.record.progress import LaunchPosition
from placebench.run.display import LiveDisplay, PlainDisplay
from placebench.spec.legible import encodable, escape_markdown, one_line, sheet_cell, shown, visible

# One of each kind: C0, DEL, C1, sequences for a terminal, a link of one, ends of lines, turns of direction, no width,
# marks of pages, of tables and of CI systems.
NASTY = (
    "\x00\x07\b\t\r\v\f\x1b[2J\x1b]0;X\x07\x1b]8;;http://x\x1b\\\x7f\x85\x9b31m\n::error::x\u2028\u2029\u202a\u202e\u2066\u2069"
    "\u061c\u200b\u200d\u2060\ufeff|`*_<script>x</script>\"'><img src=x>&amp;[a](http://x)~~a~~ ##[error]x\n# h\n- b http://x"
)
# What JSON has escapes for, and UTF-8 nothing.
LONE = "\udce9\ud800"
FILE_NAME = NASTY.replace("\x00", "").replace("/", "")
texts = st.text(st.one_of(st.characters(), st.sampled_from(NASTY)), max_size=30)


def tame(text: str) -> str:
    """The text, once it is sure that each of its characters is one to look at or ends a line."""
    odd = {char for char in text if not (char.isprintable() or char == "\n" or unicodedata.category(char) == "Zs")}
    assert not odd
    return text


class Tags(HTMLParser):
    """The elements of a page, and where its links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.links |= {value or "" for name, value in attrs if name in ("href", "src")}


def check_report(folder: Path) -> dict[str, Any]:
    """See that no file of a report is steered by a name; returns the summary, whose names are exact."""
    page = Tags(tame((folder / "report.html").read_text(encoding="utf-8")))
    assert page.names.isdisjoint({"script", "img", "a", "em", "code"})
    text = tame((folder / "report.md").read_text(encoding="utf-8"))
    rendered = Tags(MarkdownIt("gfm-like", {"linkify": False}).render(text))
    assert rendered.names.isdisjoint({"script", "a", "em", "code", "s", "h3"})
    assert all(link.startswith("plots/") for link in rendered.links)
    for table in text.replace("\\|", "").split("\n\n"):
        assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) <= 1
    for figure in folder.glob("plots/*.svg"):
        ElementTree.fromstring(tame(figure.read_text(encoding="utf-8")))
    content: dict[str, Any] = read_json(folder / "summary.json")
    return content


def soil(path: Path, changes: Mapping[str, str]) -> None:
    """Put other texts in place of some, wherever they stand in the records of a run."""

    def soiled(value: Any) -> Any:
        if isinstance(value, dict):
            return {soiled(key): soiled(below) for key, below in value.items()}
        if isinstance(value, list):
            return list(map(soiled, value))
        return changes.get(value, value) if isinstance(value, str) else value

    for file in path.rglob("*.json*"):
        lines = [file.read_text()] if file.suffix == ".json" else file.read_text().splitlines()
        file.write_text("".join(json.dumps(soiled(json.loads(line))) + "\n" for line in lines))


def hostile_run(path: Path, text: str, **changes: Any) -> Path:
    """A run with a text in every name of its records that is not one of placebench's own words."""

    def layout(plain: Layout) -> Layout:
        pools = {f"{pool}{text}": devices for pool, devices in plain.pools.items()}
        return replace(plain, pools=pools, roles={role: f"{pool}{text}" for role, pool in plain.roles.items()})

    layouts = {f"a{text}": layout(STANDARD), f"b{text}": layout(SPLIT)}
    written = SyntheticRun(layouts=layouts, rounds=2, steps=4, metrics={f"timing_s/{text}": 0.1}, **changes).write(path)
    names = (
        "demo",
        "bench",
        "Example device",
        "Example CPU",
        "tiny",
        "0.1.0",
        "2.13.0",
        "0123456789abcdef",
        "run",
        "3.11.7",
    )
    soil(path, {name: f"{name}{text}{LONE}" for name in names})
    soil(path / "trials", {"adv": f"adv{text}"})
    for file in path.glob("trials/*/error.txt"):
        file.write_text(f"{text}\n{file.read_text()}")
    return written


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("runs") / "run", NASTY)


def test_no_page_figure_or_trace_of_a_run_is_steered_by_its_records(run: Path) -> None:
    result = invoke("report", run)
    assert (result.exit_code, result.stderr) == (0, "")
    summary = check_report(run)
    assert summary["name"] == "demo" + encodable(NASTY + LONE)
    with gzip.open(run / "trace.json.gz") as stream:
        trace = json.load(stream)
    for event in trace["traceEvents"]:
        tame("".join(map(str, (event["name"], *event["args"].values()))))


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "RUN"],
        ["list", "ABOVE"],
        ["list", "--json", "ABOVE"],
        ["compare", "RUN", f"x{FILE_NAME.replace('=', '')}=OTHER"],
        ["check", "RUN", "--baseline", "OTHER", "--junit", "gate.xml", "--json", "gate.json", "--min-launches", "2"],
        ["check", "RUN", "--baseline", f"nowhere{FILE_NAME}"],
        ["check", "RUN", "--baseline", "OTHER", "--metric", NASTY],
        ["show", f"RUN{FILE_NAME}"],
        ["baseline", "save", f"RUN:{FILE_NAME}", "baseline.json"],
        ["run", "--resume", f"RUN{FILE_NAME}"],
        ["run", "--dry-run", "--set", f"{FILE_NAME}=1"],
        ["run", "--dry-run", "--name", FILE_NAME, "--model", FILE_NAME, "--placements", FILE_NAME],
        ["placements", FILE_NAME],
        ["slurm", "submit", "--print", f"--partition={FILE_NAME}", "--", "run", f"--name={FILE_NAME}"],
        [FILE_NAME],
    ],
)
def test_no_command_says_what_steers_a_terminal(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    paths = {"RUN": run, "ABOVE": run.parent, "OTHER": tmp_path / "other"}
    if "OTHER" in " ".join(arguments):
        SyntheticRun(rounds=2, steps=4).write(paths["OTHER"])
    for word, path in paths.items():
        arguments = [argument.replace(word, str(path)) for argument in arguments]
    result = invoke(*arguments)
    assert result.exit_code in range(5)
    commands = [line for line in tame(result.output).splitlines() if line.lstrip().startswith("::")]
    assert all(line.startswith(("::error title=placebench check::", "::warning title=")) for line in commands)
    assert "##[" not in result.output.replace("\n", "")
    for file in tmp_path.glob("gate.*"):
        text = file.read_text()
        ElementTree.fromstring(tame(text)) if file.suffix == ".xml" else json.loads(text)
    if Path("step.md").exists():
        tags = Tags(MarkdownIt("gfm-like", {"linkify": False}).render(tame(Path("step.md").read_text())))
        assert tags.names.isdisjoint({"script", "img", "a", "em", "code", "s", "h1"})


@settings(max_examples=3)
@given(texts)
def test_a_comparison_of_logs_shows_any_names(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("logs")
    name = text.encode("utf-8", "replace").decode().replace("/", "").replace("\0", "").replace("=", "")[:40]
    logs = [folder / f"{place}{name}.jsonl" for place in "ab"]
    for place, log in enumerate(logs):
        metrics = {"timing_s/step": 1.0 + place, f"timing_s/{text}{NASTY}": 0.5}
        log.write_text("".join(json.dumps({"step": step, "data": metrics}) + "\n" for step in range(5)))
    result = invoke("compare", *logs, "--out", folder / "out")
    assert (result.exit_code, result.stderr) == (0, "")
    tame(result.stdout)
    check_report(folder / "out")


def plot(folder: Path, *names: str) -> list[list[str]]:
    """Rows of the numbers that the plot of logs of these names has written."""
    for name in names:
        metrics = {"timing_s/step": 1.0, "timing_s/gen": 0.5, f"timing_s/=cmd|'{FILE_NAME}": 0.25}
        (folder / name).write_text("".join(json.dumps({"step": step, "data": metrics}) + "\n" for step in (1, 2)))
    program = [sys.executable, str(ROOT / "plot" / "plot_timing_metrics.py"), "--format=svg", "--output-dir=out"]
    done = subprocess.run([*program, *names], cwd=folder, capture_output=True, text=True, check=True)
    tame(done.stdout + done.stderr)
    for figure in folder.glob("out/*.svg"):
        ElementTree.fromstring(tame(figure.read_text(encoding="utf-8")))
    text = (folder / "out" / "timing_s.csv").read_text(encoding="utf-8")
    return list(csv.reader(StringIO(tame(text))))


def test_a_sheet_takes_no_name_for_a_formula(tmp_path: Path) -> None:
    header, *rows = plot(tmp_path, "=cmd.log", "@b.log")
    assert header == ["launch", "step", "phase", "seconds", "kind"]
    assert {row[0] for row in rows} == {"'=cmd", "'@b"}
    assert {row[2][:5] for row in rows} == {"step", "gen", "'=cmd", "unatt"}
    assert {float(row[3]) for row in rows} == {1.0, 0.5, 0.25}
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]


def test_a_failed_launch_says_its_reason_as_it_can_be_shown(tmp_path: Path) -> None:
    failed = {(2, f"a{NASTY}"): Status.FAILED, (1, f"b{NASTY}"): Status.OOM}
    result = invoke("show", hostile_run(tmp_path / "run", NASTY, statuses=failed))
    assert result.exit_code == 0
    tame(result.output)


def test_a_run_whose_folder_is_not_utf_8_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SyntheticRun(rounds=2, steps=4).write(Path("runs") / os.fsdecode(b"caf\xe9"))
    (Path("runs") / os.fsdecode(b"\xff")).mkdir()
    for arguments in (["list"], ["list", "--json"], ["show", "latest"], ["report", "latest"], ["show", "demo"]):
        result = invoke(*arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        tame(result.stdout)


def test_a_name_that_is_not_utf_8_is_refused_in_one_line(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9.log"
    Path(os.fsdecode(name)).write_text("step:1 - timing_s/step:1.0\n")
    for arguments in (["show"], ["report"], ["compare"], ["run", "--config"], ["placements"], ["baseline", "save"]):
        result = invoke(*arguments, os.fsdecode(name))
        assert (result.exit_code, result.stdout) == (2, "")
        assert (
            result.stderr
            == f"placebench: {tmp_path}/caf\\xe9.log: not UTF-8: rename the file, or make a link to it with"
            " another name\n"
        )


@pytest.mark.parametrize("display", [lambda stream: PlainDisplay(stream), lambda stream: LiveDisplay(stream)])
def test_the_display_of_a_run_shows_any_names(display: Callable[[StringIO], PlainDisplay]) -> None:
    stream = StringIO()
    shown_in = display(stream)
    shown_in.begin(LaunchPosition(1, 1, 1, 1, NASTY, 2, {}))
    shown_in.end(Status.FAILED, 1.0, NASTY)
    shown_in.note(NASTY)
    tame(stream.getvalue())


@given(texts)
def test_what_is_shown_of_a_text_can_be_looked_at(text: str) -> None:
    assert "\n" not in tame(visible(text) + printable(text) + sheet_cell(text) + one_line(text) + shown(text))
    encodable(text).encode()
    assert len(one_line(1000 * text)) < 800
    assert visible(visible(text)) == visible(text)
    assert visible(text) == text or not text.isprintable()
    stream = StringIO()
    new_console(stream, force_terminal=True, width=80).print(Text(text, "bold"))
    tame(stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", ""))


@given(st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=5))
def test_printed_json_commands_no_ci_system_and_is_the_same(value: Any) -> None:
    stream = StringIO()
    with redirect_stdout(stream):
        say_json(value)
    said = stream.getvalue()
    assert json.loads(said) == value
    assert said.isascii()
    assert not re.search(r"##\w*\[|::[A-Za-z]", said)


@given(texts)
def test_markdown_shows_a_text_as_it_is(text: str) -> None:
    wanted = " ".join(visible(text).split())
    for page in (escape_markdown(text), f"| {escape_markdown(text)} |\n| --- |\n", f"- {escape_markdown(text)}\n"):
        tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(page)
        inline = [token for token in tokens if token.type == "inline"]
        assert {child.type for token in inline for child in token.children or ()} <= {"text", "text_special"}
        told = "".join(child.content for token in inline for child in token.children or ())
        assert " ".join(told.split()) == wanted
