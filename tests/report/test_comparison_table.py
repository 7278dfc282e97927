"""Verdicts beside their intervals, on the terminal and on both pages."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from layouts import SPLIT, STANDARD
from pages import ROOT
from rich.console import Console
from synthetic_run import SyntheticRun

from placebench.compare.comparison import compare_run
from placebench.compare.statistics.verdicts import Verdict
from placebench.report.brief import print_brief
from placebench.report.kept import read_summary
from placebench.report.pages import html, markdown
from placebench.report.plots import ratios
from placebench.report.schema import Summary
from placebench.report.summary import summarize
from placebench.report.tables import overview_grid
from placebench.report.terminal import print_summary


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    path = tmp_path_factory.mktemp("run")
    run = SyntheticRun(layouts={"standard": STANDARD, "split": SPLIT}, pace=lambda round_, _: 1 + round_ / 100)
    return summarize(compare_run(run.write(path / "run")))


def brief(summary: Summary) -> str:
    out = io.StringIO()
    print_brief(summary, Console(file=out, width=80), "more")
    return out.getvalue()


def test_a_verdict_that_its_interval_denies_says_why(summary: Summary) -> None:
    first, other = summary.placements
    step = other.quantities[0]
    assert step.ratio is not None
    pages = (brief(summary), markdown(summary, (), None), html(summary, (), None))
    assert all("its interval alone" not in page for page in pages)
    corrected = step.ratio.model_copy(update={"verdict": Verdict.UNDECIDED, "corrected_for": 12})
    quantities = (step.model_copy(update={"ratio": corrected}), *other.quantities[1:])
    told = summary.model_copy(update={"placements": (first, other.model_copy(update={"quantities": quantities}))})
    note = "its interval alone would decide, but of 12 numbers compared at once, some decide by chance"
    assert "undecided*\n" in brief(told)
    assert f"* {note}" in " ".join(brief(told).split())
    assert r"| undecided\* |" in markdown(told, (), None)
    assert note in markdown(told, (), None)
    assert html(told, (), None).count("undecided*") == 2, "for wide and for narrow screens"
    assert f'<p class="soft notes">* {note}</p>' in html(told, (), None)


def test_the_table_of_all_placements_marks_a_verdict_that_its_interval_denies() -> None:
    summary = read_summary(ROOT / "runs" / "reference" / "4x-h200" / "ppo-1.5b-placements")
    note = "* its interval alone would decide, but of 3 placements compared at once, some decide by chance"
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=80))
    for text in (brief(summary), out.getvalue()):
        assert "1.25 1.06–1.47 undecided*" in " ".join(text.split())
        assert "0.82–1.79 undecided " in " ".join(text.split())
        assert note in " ".join(text.split())
    assert r"| 1.25 | 1.06–1.47 | undecided\* |" in markdown(summary, (), None)
    assert rf"\{note}" in markdown(summary, (), None)
    assert f'<p class="soft notes">{note}</p>' in html(summary, (), None)
    quantities = [step.model_copy(update={"ratio": None}) for step in summary.placements[1].quantities]
    first, second, *others = summary.placements
    unmarked = (first, second.model_copy(update={"quantities": tuple(quantities)}), *others)
    assert "placements compared at once" not in brief(summary.model_copy(update={"placements": unmarked}))


def test_the_table_of_all_placements_has_as_many_digits_in_every_row() -> None:
    summary = read_summary(ROOT / "runs" / "reference" / "4x-h200" / "ppo-1.5b-placements")
    column = [row[-1] for row in overview_grid(summary).rows]
    assert column == ["10,420", "8,390", "8,650", "10,180"], "rounded one by one, 10,418 looked less than 10,176"


@pytest.mark.parametrize(("longer", "steps"), [(1, ["7.3 s", "7.5 s", "10.7 s"]), (16, ["7.3 s", "7.5 s", "171.4 s"])])
def test_the_table_of_all_placements_tells_apart_what_a_headline_does(longer: float, steps: list[str]) -> None:
    summary = read_summary(ROOT / "runs" / "reference" / "4x-h200" / "verl" / "beside-placebench" / "placebench")
    *others, last = summary.placements
    scaled = [
        one.model_copy(update={end: getattr(one, end) * longer for end in ("value", "low", "high")})
        if one.key == "step_time"
        else one
        for one in last.quantities
    ]
    placements = (*others, last.model_copy(update={"quantities": tuple(scaled)}))
    grid = overview_grid(summary.model_copy(update={"placements": placements}))
    assert "7.5 s instead of 7.3 s" in str(summary.placements[1].headline)
    assert [row[grid.header.index("step")] for row in grid.rows] == steps


def test_a_run_that_was_compared_at_once_marks_its_rows(tmp_path: Path) -> None:
    # Three rounds leave p values near 0.05, which as many numbers as a run has do not bear.
    noise = (-0.012, 0.0, 0.012)
    run = SyntheticRun(
        layouts={"standard": STANDARD, **dict.fromkeys("bcde", STANDARD)},
        pace=lambda round_, name: 1.08 + noise[round_ - 1] if name == "b" else 1 + ord(name[0]) % 7 * round_ / 50,
    )
    told = markdown(summarize(compare_run(run.write(tmp_path / "run"))), (), None)
    assert r"| undecided\* |" in told
    assert "numbers compared at once, some decide by chance" in told


def test_the_figure_of_ratios_marks_verdicts_as_the_table_does(tmp_path: Path) -> None:
    comparison = compare_run(SyntheticRun().write(tmp_path / "run"))
    first, other = comparison.sides
    step = other.ratios["step_time"]
    assert step is not None
    corrected = replace(step, verdict=Verdict.UNDECIDED, corrected_for=12)
    told = replace(comparison, sides=(first, replace(other, ratios={**other.ratios, "step_time": corrected})))
    figure = ratios(told)
    assert figure is not None
    (axes,) = figure.axes
    assert axes.texts[0].get_text().endswith("undecided*")
    assert "of 12 numbers compared at once, some decide by chance" in axes.get_xlabel()
