"""The gain of the split and that of the overlap against numbers worked out by hand."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from layouts import SPLIT, STANDARD, Layout
from rich.console import Console
from showing import write_report
from synthetic_run import SyntheticRun, read_json

from placebench.compare.comparison import Comparison, compare_run, compare_sides
from placebench.compare.explain.caveats import caveats
from placebench.compare.explain.gains import OverlapGain, format_gain, gain_sentences, overlap_gains
from placebench.compare.measure.sides import read_sides
from placebench.compare.read.sources import ReadingOptions, Source
from placebench.errors import UsageError
from placebench.record.folder import Status
from placebench.report.build import write_comparison
from placebench.report.show import show
from placebench.report.summary import summarize
from placebench.report.tables import gain_grid
from placebench.report.terminal import print_summary


def with_overlap(overlap: str, pace: float, layout: Layout = SPLIT) -> Layout:
    """A layout whose step takes so many times as long."""
    times = {phase: (start * pace, end * pace) for phase, (start, end) in layout.times.items()}
    return replace(layout, times=times, step_s=layout.step_s * pace, overlap=overlap)


NONE = "split/overlap=none"
UPDATES = "split/overlap=updates"
LAYOUTS = {
    "standard": STANDARD,
    "split": SPLIT,
    NONE: with_overlap("none", 1.25),
    UPDATES: with_overlap("updates", 1.1),
}


def pace(round_: int, placement: str) -> float:
    """The launches of one placement are 1 % apart, the others' not at all, so that its intervals have a width."""
    return 1 + 0.01 * (round_ - 2) if placement == NONE else 1.0


def gains(folder: Path, *names: str, **changes: Layout) -> tuple[OverlapGain, ...]:
    layouts = {name: LAYOUTS[name] for name in names} | changes
    return overlap_gains(compare_run(SyntheticRun(layouts, pace=pace).write(folder / "run")))


def test_split_and_overlap_by_hand(tmp_path: Path) -> None:
    (gain,) = gains(tmp_path, "standard", "split", NONE)
    assert (gain.side.name, gain.base.name) == ("split", NONE)
    assert gain.split is not None
    assert gain.together is not None
    assert gain.split.value == pytest.approx(1.25 * 1.83 / 1.30, rel=1e-3)
    assert gain.overlap.value == pytest.approx(1 / 1.25, rel=1e-3)
    assert gain.together.value == pytest.approx(gain.split.value * gain.overlap.value)
    # t of 2 degrees of freedom times sd / √3 of three log ratios 0.01 apart.
    half_width = 4.3027 * 0.01 / 3**0.5
    for found in (gain.split, gain.overlap):
        assert found.high / found.low == pytest.approx(1 + 2 * half_width, rel=2e-3)
    assert format_gain(gain, "standard") == (
        "Split and overlap told apart: with the split alone a step takes 76 % more time (72 to 80 % more;"
        " split/overlap=none against standard), with the overlap 20 % less time (18 to 22 % less; split against"
        " split/overlap=none), with both 40.8 % more time (±<0.01 %; split against standard)."
    )


def test_every_overlap_is_told_against_each_with_less(tmp_path: Path) -> None:
    found = gains(tmp_path, "standard", "split", UPDATES, NONE)
    pairs = [("split", NONE), ("split", UPDATES), (UPDATES, NONE)]
    assert [(gain.side.name, gain.base.name) for gain in found] == pairs
    assert [gain.overlap.value for gain in found] == pytest.approx([1 / 1.25, 1 / 1.1, 1.1 / 1.25], rel=1e-3)
    assert [gain.split is None for gain in found] == [False, True, False]
    assert format_gain(found[1], "standard") == (
        "The overlap beyond updates: with it a step takes 9.1 % less time (±<0.01 %; split against"
        " split/overlap=updates)."
    )
    told = gain_sentences(found, "standard")
    assert {name: len(sentences) for name, sentences in told.items()} == {"split": 2, UPDATES: 1}


@pytest.mark.parametrize("names", [("split", NONE), (NONE, "split"), (UPDATES, "split"), ("standard", "split")])
def test_what_is_compared_with_the_first_is_not_told_twice(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert gains(tmp_path, *names) == ()


def test_of_three_overlaps_the_two_that_are_not_first_are_told(tmp_path: Path) -> None:
    (gain,) = gains(tmp_path / "most", "split", UPDATES, NONE)
    assert (gain.side.name, gain.base.name, gain.split) == (UPDATES, NONE, None)
    (gain,) = gains(tmp_path / "least", NONE, UPDATES, "split")
    assert (gain.side.name, gain.base.name, gain.split) == ("split", UPDATES, None)


@pytest.mark.parametrize(
    "other",
    [
        replace(LAYOUTS[NONE], pools={"actor_pool": ("cpu:1",), "critic_pool": ("cpu:0",)}),
        replace(LAYOUTS[NONE], roles=dict(SPLIT.roles) | {"ref": "critic_pool"}),
        replace(LAYOUTS[NONE], inflight_updates=True),
        replace(LAYOUTS[NONE], staleness=1),
        replace(LAYOUTS[NONE], scaling="strong"),
    ],
)
def test_placements_that_differ_in_more_than_the_overlap_are_no_pair(tmp_path: Path, other: Layout) -> None:
    assert gains(tmp_path, "standard", "split", other=other) == ()


@pytest.mark.parametrize("first", ["split", NONE])
def test_one_pool_has_no_overlap_to_tell_of(tmp_path: Path, first: str) -> None:
    one_pool = {f"standard/overlap={overlap}": replace(STANDARD, overlap=overlap) for overlap in ("none", "updates")}
    assert gains(tmp_path, first, "standard", **one_pool) == ()


@pytest.mark.parametrize(
    "first",
    [
        # Of three devices; of pools beside which work overlaps; of older weights.
        replace(STANDARD, pools={"global_pool": ("cpu:0", "cpu:1", "cpu:2")}),
        replace(SPLIT, pools={"actor_pool": ("cpu:1",), "critic_pool": ("cpu:0",)}),
        replace(STANDARD, staleness=1),
    ],
)
def test_the_splits_factor_is_told_where_nothing_else_is_in_it(tmp_path: Path, first: Layout) -> None:
    layouts = {"first": first, "split": SPLIT, NONE: LAYOUTS[NONE]}
    (gain,) = overlap_gains(compare_run(SyntheticRun(layouts, pace=pace).write(tmp_path / "run")))
    assert (gain.split, gain.together) == (None, None)
    assert format_gain(gain, "first") == (
        "The overlap by itself: with it a step takes 20 % less time (18 to 22 % less; split against"
        " split/overlap=none)."
    )


def test_engines_of_another_size_leave_the_split_out(tmp_path: Path) -> None:
    path = SyntheticRun({name: LAYOUTS[name] for name in ("standard", "split", NONE)}).write(tmp_path / "run")
    manifest = json.loads((path / "run.json").read_text())
    for placement in manifest["placements"][1:]:
        placement["tensor_parallel"] = 2
    (path / "run.json").write_text(json.dumps(manifest))
    (gain,) = overlap_gains(compare_run(path))
    assert (gain.side.name, gain.split, gain.together) == ("split", None, None)


def test_pools_without_overlap_are_a_base_of_the_split_too(tmp_path: Path) -> None:
    turned = replace(LAYOUTS[NONE], pools={"actor_pool": ("cpu:1",), "critic_pool": ("cpu:0",)})
    layouts = {"turned": turned, "split": SPLIT, NONE: LAYOUTS[NONE]}
    (gain,) = overlap_gains(compare_run(SyntheticRun(layouts).write(tmp_path / "run")))
    assert gain.split is not None
    assert gain.split.value == pytest.approx(1.0)


def test_part_of_the_overlap_in_the_base_leaves_the_split_out(tmp_path: Path) -> None:
    (gain,) = gains(tmp_path, "standard", UPDATES, "split")
    assert (gain.side.name, gain.base.name, gain.split) == ("split", UPDATES, None)


def test_lost_rounds_are_told(tmp_path: Path) -> None:
    layouts = {name: LAYOUTS[name] for name in ("standard", "split", NONE)}
    # The state of the machine in a round is common to its launches: over other rounds the factors are no product.
    run = SyntheticRun(layouts, pace=lambda round_, _: 2.0**round_, statuses={(3, "standard"): Status.FAILED})
    (gain,) = overlap_gains(compare_run(run.write(tmp_path / "first")))
    assert gain.split is not None
    assert gain.together is not None
    assert gain.split.value * gain.overlap.value == pytest.approx(gain.together.value)
    assert [found.pairs for found in (gain.split, gain.overlap, gain.together)] == [2, 2, 2]
    assert format_gain(gain, "standard").startswith(
        "Split and overlap told apart, over the 2 rounds with all three: with"
    )
    two = {name: LAYOUTS[name] for name in (UPDATES, "split", NONE)}
    run = SyntheticRun(two, statuses={(3, NONE): Status.FAILED})
    (gain,) = overlap_gains(compare_run(run.write(tmp_path / "one")))
    assert format_gain(gain, UPDATES).startswith("The overlap by itself, over the 2 rounds with both: ")
    apart = {(3, NONE): Status.FAILED, (4, NONE): Status.FAILED, (1, "split"): Status.FAILED, (2, "split"): Status.OOM}
    run = SyntheticRun(layouts, rounds=4, statuses=apart)
    (gain,) = overlap_gains(compare_run(run.write(tmp_path / "apart")))
    assert format_gain(gain, "standard").startswith("The overlap by itself, launches not paired: ")
    failed = {(round_, NONE): Status.FAILED for round_ in (1, 2, 3)}
    assert overlap_gains(compare_run(SyntheticRun(layouts, statuses=failed).write(tmp_path / "failed"))) == ()


def test_one_round_gives_factors_without_intervals(tmp_path: Path) -> None:
    layouts = {name: LAYOUTS[name] for name in ("standard", "split", NONE)}
    (gain,) = overlap_gains(compare_run(SyntheticRun(layouts, rounds=1).write(tmp_path / "run")))
    assert "with the overlap 20 % less time (split against split/overlap=none), with both" in format_gain(
        gain, "standard"
    )


def test_unequal_work_of_the_two_is_a_warning(tmp_path: Path) -> None:
    # Each is within 1 % of the first, and they are not of each other.
    layouts = {name: LAYOUTS[name] for name in ("standard", "split", NONE)}
    run = SyntheticRun(layouts, tokens={"standard": 1300, "split": 1310, NONE: 1290})
    lines = [line for line in caveats(compare_run(run.write(tmp_path / "run"))) if line.startswith("Unequal work")]
    told = (
        "Unequal work: split had 1,310 tokens a step, split/overlap=none 1,290 (+1.6 %): the overlap's factor is 0.800"
        " (±<0.0001) as measured, 0.788 (±<0.0001) per token."
    )
    assert lines == [f"{told} --ignore-eos makes work equal."]
    assert [line for line in caveats(arms_of((tmp_path / "run", None))) if "Unequal" in line] == [told]


def drifts(path: Path) -> list[str]:
    """The warnings of a drift, which the run's report and a comparison of its arms tell alike."""
    found, of_arms = (
        [line for line in lines if "if the machine changed" in line]
        for lines in (caveats(compare_run(path)), caveats(arms_of((path, None))))
    )
    assert found == of_arms
    return found


def test_lost_rounds_that_let_a_drift_into_the_overlaps_factor_are_a_warning(tmp_path: Path) -> None:
    layouts = {name: LAYOUTS[name] for name in ("standard", "split", NONE)}
    end = ": if the machine changed in between, that shows as a difference. --resume runs what is missing."
    lost = {(2, "split"): Status.OOM, (4, NONE): Status.FAILED}
    path = SyntheticRun(layouts, rounds=4, pace=pace, statuses=lost).write(tmp_path / "order")
    assert drifts(path) == [f"In every round that has all three, split ran before {NONE}{end}"]
    apart = SyntheticRun({"other": replace(STANDARD, staleness=1), **layouts}, rounds=4, pace=pace, statuses=lost)
    assert drifts(apart.write(tmp_path / "both")) == [f"In every round that has both, split ran before {NONE}{end}"]
    lost |= {(1, "split"): Status.OOM, (3, NONE): Status.FAILED}
    (*of_headlines, told) = drifts(SyntheticRun(layouts, rounds=4, pace=pace, statuses=lost).write(tmp_path / "apart"))
    assert told == (
        f"split and {NONE} have no round in common, so their launches cannot be compared in pairs: if the machine"
        " changed in between, that shows as a difference. --resume runs what is missing."
    )
    assert not any(f"split and {NONE}" in line for line in of_headlines)


def test_what_is_told_of_a_headline_is_not_told_of_a_factor(tmp_path: Path) -> None:
    layouts = {name: LAYOUTS[name] for name in ("split", NONE)}
    lost = {(2, "split"): Status.OOM, (4, NONE): Status.FAILED}
    path = SyntheticRun(layouts, rounds=4, pace=pace, statuses=lost).write(tmp_path / "run")
    assert len(drifts(path)) == 1


def test_factors_against_the_first_are_the_ratios_of_the_run(tmp_path: Path) -> None:
    comparison = compare_run(SyntheticRun(LAYOUTS, pace=pace).write(tmp_path / "run"))
    against_none = [gain for gain in overlap_gains(comparison) if gain.base.name == NONE]
    assert len(against_none) == 2
    for gain in against_none:
        for side, factor in ((gain.base, gain.split), (gain.side, gain.together)):
            ratio = side.ratios["step_time"]
            assert ratio is not None
            assert factor is not None
            assert (factor.value, factor.low, factor.high) == (ratio.value, ratio.low, ratio.high)


def test_every_report_has_the_gains(tmp_path: Path) -> None:
    layouts = {name: LAYOUTS[name] for name in ("standard", "split", NONE)}
    path = SyntheticRun(layouts, pace=pace).write(tmp_path / "run")
    write_report(path)
    console = Console(file=io.StringIO(), width=1000)
    show(path, console, verbose=True)
    assert isinstance(console.file, io.StringIO)
    markdown, html = ((path / name).read_text() for name in ("report.md", "report.html"))
    for text in (console.file.getvalue(), markdown, html):
        assert text.count("Split and overlap told apart: with the split alone a step takes 76 % more time") == 1
    assert "| split | split/overlap=none | 1.76 | 1.72–1.80 | 0.80 | 0.78–0.82 | 1.408 | ±\\<0.0001 |" in markdown
    assert "<h2>Gain of the split and of the overlap</h2>" in html
    (row,) = read_json(path / "summary.json")["overlap_gains"]
    assert (row["placement"], row["base"], row["overlap"]["pairs"]) == ("split", NONE, 3)
    assert row["overlap"]["value"] == pytest.approx(0.8, rel=1e-3)
    assert "verdict" not in row["overlap"]


def arms_of(*sources: tuple[Path, str | None]) -> Comparison:
    return compare_sides(read_sides([Source(None, run, placement) for run, placement in sources], ReadingOptions()))


def test_arms_of_one_run_have_the_gains_of_its_report(tmp_path: Path) -> None:
    path = SyntheticRun(LAYOUTS, pace=pace).write(tmp_path / "run")
    own = [(gain.split, gain.overlap, gain.together) for gain in overlap_gains(compare_run(path))]
    found = overlap_gains(arms_of((path, None)))
    assert [(gain.split, gain.overlap, gain.together) for gain in found] == own
    assert len(own) == 3


def test_arms_of_different_runs_have_no_gain(tmp_path: Path) -> None:
    one, other = (SyntheticRun(LAYOUTS, pace=pace).write(tmp_path / name) for name in ("one", "other"))
    assert overlap_gains(arms_of((one, "standard"), (one, "split"), (other, NONE))) == ()
    (gain,) = overlap_gains(arms_of((one, "split"), (other, "split"), (other, NONE)))
    assert (gain.side.name, gain.base.name) == ("other/split", f"other/{NONE}")
    assert (gain.split, gain.overlap.pairs) == (None, 3)


def test_the_report_of_arms_has_their_gains(tmp_path: Path) -> None:
    layouts = {name: LAYOUTS[name] for name in ("standard", "split", NONE)}
    run = SyntheticRun(layouts, pace=pace, tokens={"split": 1310, NONE: 1290})
    comparison = arms_of((run.write(tmp_path / "run"), None))
    summary = summarize(comparison, 2)
    paths = write_comparison(comparison, summary, tmp_path / "out")
    console = Console(file=io.StringIO(), width=1000)
    print_summary(summary, console)
    assert isinstance(console.file, io.StringIO)
    markdown = paths.markdown.read_text()
    for text in (console.file.getvalue(), markdown, paths.html.read_text()):
        assert text.count("Split and overlap told apart: with the split alone a step takes 76") == 1
        assert text.count("Unequal work: split had 1,310 tokens a step, split/overlap=none 1,290 (+1.6 %)") == 1
    assert "| placement | with less overlap | split |" in markdown
    assert "step times of two placements of one run each, paired by its rounds where both have them; below" in markdown
    (row,) = summary.overlap_gains
    assert (row.placement, row.base, row.overlap.pairs) == ("split", NONE, 3)


def test_every_report_has_each_gain_of_three_overlaps(tmp_path: Path) -> None:
    path = SyntheticRun(LAYOUTS, pace=pace).write(tmp_path / "run")
    comparison = arms_of((path, None))
    for summary in (summarize(compare_run(path)), summarize(comparison, 2)):
        bases = [(row.placement, row.base, row.together is None) for row in summary.overlap_gains]
        assert bases == [("split", NONE, False), ("split", UPDATES, True), (UPDATES, NONE, False)]
        assert ("split", UPDATES, "–", "–", "0.909", "±<0.0001", "–", "–") in gain_grid(summary).rows
        reasons = summary.placements[1].reasons
        assert [text.partition(":")[0] for text in reasons[-2:]] == [
            "Split and overlap told apart",
            "The overlap beyond updates",
        ]


def test_a_run_without_such_placements_has_no_gains(tmp_path: Path) -> None:
    summary = summarize(compare_run(SyntheticRun().write(tmp_path / "run")))
    assert summary.overlap_gains == ()
    assert gain_grid(summary).rows == ()
    assert not any("told apart" in reason for placement in summary.placements for reason in placement.reasons)


def test_an_overlap_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    path = SyntheticRun({"standard": replace(STANDARD, overlap="some")}).write(tmp_path / "run")
    with pytest.raises(UsageError, match=r"run\.json: not as placebench writes it: 'some' is not a valid Overlap"):
        compare_run(path)
