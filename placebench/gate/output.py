"""What a check says: a table, JUnit XML, JSON, and a summary and annotations for GitHub."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from rich.text import Text

from placebench.compare.statistics.verdicts import Better
from placebench.errors import UsageError
from placebench.gate.baseline import write_named
from placebench.gate.checking import BaselineCheck, MetricCheck, Outcome, describe, unequal_work
from placebench.gate.work import OtherWork
from placebench.host.terminal import printable
from placebench.report.columns import Holds, add_columns, broken, keeps_words
from placebench.spec.legible import escape_markdown, legible
from placebench.spec.text import MISSING, interval, plural, ratio, scale_of, threshold

STYLES = {
    Outcome.REGRESSION: "bold red",
    Outcome.UNDECIDED: "yellow",
    Outcome.NOT_MEASURED: "yellow",
    Outcome.IMPROVED: "green",
}
HEADER = ("placement", "number", "baseline", "run", "ratio", "95 % interval", "would see", "result")
HOLDS = (Holds.NAMES, Holds.LABELS, *[Holds.NUMBERS] * 5, Holds.LABELS)


def print_check(check: BaselineCheck, console: Console) -> None:
    """Print the table and what must be known beside it; errors are for whoever ends the command."""
    check = legible(check)
    if check.cases:
        for part in _table(check, console.width):
            console.print(part)
        console.print(
            "A regression: the whole interval is worse by more than the threshold; 'would see': the smallest measured"
            " change that would have been one.",
            style="dim",
        )
    for text in _warnings(check):
        start, text = text.split(": ", 1)
        console.print(Text.assemble((f"{start}: ", "yellow"), text))


def _table(check: BaselineCheck, width: int) -> Iterator[Table | Text]:
    """The table; where a name's word would have to be broken, each name in a line of its own above its numbers."""
    rows = [_cells(case) for case in check.cases]
    table = _empty_table()
    widths = add_columns(table, HEADER, HOLDS, rows, width)
    if keeps_words((HEADER[0], *(row[0] for row in rows)), widths[0]):
        for case, (placement, *cells) in zip(check.cases, rows, strict=True):
            _add_row(table, case, broken(placement, widths[0]), *cells)
        table.title = Text(title(check))
        yield table
        return
    below = [(f"  {label}", *cells) for _, label, *cells in rows]
    head = _empty_table()
    add_columns(head, HEADER[1:], HOLDS[1:], below, width)
    head.title = Text(title(check))
    yield head
    for placement, group in groupby(zip(check.cases, below, strict=True), key=lambda pair: pair[0].placement):
        yield Text(placement)
        part = _empty_table()
        part.show_header = False
        add_columns(part, HEADER[1:], HOLDS[1:], below, width)
        for case, texts in group:
            _add_row(part, case, *texts)
        yield part


def _empty_table() -> Table:
    return Table(title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 1))


def _add_row(table: Table, case: MetricCheck, *cells: str) -> None:
    *others, outcome = cells
    table.add_row(*map(Text, others), Text(outcome, STYLES.get(case.outcome, "")))


def _warnings(check: BaselineCheck) -> list[str]:
    """What must be known beside the numbers, one line each."""
    work = [text for case in check.cases if (text := unequal_work(case))]
    return [*check.set_aside, *check.turns, *work, *(f"differs, as allowed: {text}" for text in check.allowed)]


def title(check: BaselineCheck) -> str:
    """What is compared with what."""
    when = f" of {check.measured}" if check.measured else ""
    return f"{check.run} against {check.baseline}{when}, at most {threshold(check.max_regression)} worse"


def problems(check: BaselineCheck) -> list[tuple[str, str]]:
    """What keeps the run from being judged: whose fault it is, and one line."""
    baseline = [text for text in (check.missing, *check.incomparable) if text]
    return [("baseline", text) for text in baseline] + [("launches", text) for text in check.failures]


def _cells(case: MetricCheck) -> tuple[str, ...]:
    found, told = case.ratio, scale_of(case.metric.unit, case.before, case.now, ratio=case.ratio)
    worse = "−" if case.metric.better is Better.MORE else "+"
    return (
        case.placement,
        case.metric.label,
        told.text(case.before.value),
        told.text(case.now.value),
        MISSING if found is None else ratio(found.value, found.low, found.high),
        MISSING if found is None else interval(found.low, found.high),
        MISSING if math.isnan(case.visible) else f"{worse}{100 * case.visible:.0f} %",
        case.outcome.value,
    )


def verdict(check: BaselineCheck) -> str:
    """The whole in one line."""
    if check.error:
        return str(check.error)
    share, numbers = threshold(check.max_regression), plural(len(check.cases), "number")
    noisy = sum(case.worst > check.max_regression for case in check.cases if case.outcome is not Outcome.UNDECIDED)
    doubts = []
    if undecided := check.of(Outcome.UNDECIDED):
        doubts.append(f"worse only as measured or only at equal tokens: {len(undecided)} of {numbers}")
    if noisy:
        doubts.append(f"too noisy to be sure of {share}: {noisy} of {numbers}")
    return f"no regression shown; {'; '.join(doubts)}" if doubts else f"no regression: {numbers} within {share}"


def write_junit(check: BaselineCheck, path: Path) -> None:
    """Write JUnit XML: a case a number; what keeps it from being judged is an error, a regression a failure.

    A number that unequal work leaves open counts as skipped.

    Raises:
        UsageError: the file cannot be written.
    """
    check = legible(check)  # XML has no control characters
    errors = problems(check)
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        suites,
        "testsuite",
        name="placebench",
        tests=str(len(check.cases) + len(errors)),
        failures=str(len(check.of(Outcome.REGRESSION))),
        errors=str(len(errors)),
        skipped=str(len(check.of(Outcome.UNDECIDED))),
    )
    for name, text in errors:
        case = ElementTree.SubElement(suite, "testcase", classname="placebench", name=name)
        ElementTree.SubElement(case, "error", message=text)
    for found in check.cases:
        place = {"classname": f"placebench.{found.placement}", "name": found.metric.label}
        case = ElementTree.SubElement(suite, "testcase", place)
        if found.outcome is Outcome.REGRESSION:
            ElementTree.SubElement(case, "failure", type="regression", message=describe(found))
        if found.outcome is Outcome.UNDECIDED:
            ElementTree.SubElement(case, "skipped", message=unequal_work(found) or "")
        texts = filter(None, (describe(found), unequal_work(found)))
        ElementTree.SubElement(case, "system-out").text = "\n".join(texts)
    ElementTree.indent(suites)
    write_named(path, ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n")


def write_json(check: BaselineCheck, path: Path) -> None:
    """Write every number of the check; a missing one is null.

    Raises:
        UsageError: the file cannot be written.
    """
    content = {
        "schema_version": 1,
        "exit_code": check.error.exit_code if check.error else 0,
        "verdict": verdict(check),
        "run": check.run,
        "baseline": check.baseline,
        "max_regression": check.max_regression,
        "incomparable": [text for name, text in problems(check) if name == "baseline"],
        "failures": list(check.failures),
        "allowed": list(check.allowed),
        "set_aside": list(check.set_aside),
        "turns": list(check.turns),
        "cases": [_content(case) for case in check.cases],
    }
    write_named(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _content(case: MetricCheck) -> dict[str, Any]:
    found = case.ratio
    return {
        "placement": case.placement,
        "metric": case.metric.key,
        "unit": case.metric.unit,
        "baseline": _number(case.before.value),
        "baseline_launches": case.before.n,
        "run": _number(case.now.value),
        "run_launches": case.now.n,
        "ratio": _number(found.value) if found else None,
        "low": _number(found.low) if found else None,
        "high": _number(found.high) if found else None,
        "visible": _number(case.visible),
        "outcome": case.outcome.value,
        "work": _work(case.work) if case.work else None,
    }


def _work(work: OtherWork) -> dict[str, Any]:
    """Tokens of a step on both sides, and the number's ratio at equal tokens, null where it is judged as measured."""
    found = work.found
    return {
        "baseline_tokens": _number(work.before),
        "run_tokens": _number(work.now),
        "exponent": _number(found.exponent) if found else None,
        "ratio": _number(found.adjusted.value) if found else None,
        "low": _number(found.adjusted.low) if found else None,
        "high": _number(found.adjusted.high) if found else None,
    }


def report_to_github(check: BaselineCheck, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Append to the step's summary where GitHub says where it is; returns annotations, empty off GitHub.

    Raises:
        UsageError: the summary cannot be written.
    """
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(summary).open("a", encoding="utf-8") as stream:
                stream.write(markdown(check))
        except OSError as error:
            raise UsageError(f"GITHUB_STEP_SUMMARY={summary}: cannot write there: {error.strerror}") from None
    if environment.get("GITHUB_ACTIONS") != "true":
        return []
    lines = [("error", text) for _, text in problems(check)]
    lines += [("error", describe(case)) for case in check.of(Outcome.REGRESSION)]
    lines += [("warning", text) for case in check.of(Outcome.UNDECIDED) if (text := unequal_work(case))]
    lines += [("warning", text.removeprefix("warning: ")) for text in check.turns]
    lines += [("notice", describe(case)) for case in check.of(Outcome.IMPROVED)]
    return [f"::{level} title=placebench check::{_command_text(text)}" for level, text in lines]


def markdown(check: BaselineCheck) -> str:
    """The table for a summary page."""
    lines = [f"### {escape_markdown(title(check))}", "", escape_markdown(verdict(check)), ""]
    if check.cases:
        lines += [f"| {' | '.join(HEADER)} |", "|" + " --- |" * len(HEADER)]
        lines += [f"| {' | '.join(map(escape_markdown, _cells(case)))} |" for case in check.cases]
        lines.append("")
    lines += [f"- {escape_markdown(text)}" for text in _warnings(check)]
    return "\n".join(lines) + "\n"


def _command_text(text: str) -> str:
    """Text as GitHub's workflow commands escape it."""
    return printable(text).replace("%", "%25")


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
