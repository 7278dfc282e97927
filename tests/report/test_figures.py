"""The figures: colors, what is stacked and what is not, and that saving is repeatable."""

import itertools
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from layouts import SPLIT, STANDARD
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from synthetic_run import SyntheticRun

from placebench.compare.comparison import compare_run
from placebench.logs.timing import Kind, timings_of
from placebench.report import figures, palette, style
from placebench.report.observed_plot import roles_on_devices
from placebench.report.plots import steps
from placebench.report.waterfall import waterfall
from placebench.spec.phases import PHASE_ORDER


def tidy(launch: str, **seconds: float) -> pd.DataFrame:
    found = timings_of(pd.DataFrame({f"timing_s/{phase}": value for phase, value in seconds.items()}, range(1, 7)))
    assert found is not None
    return found.tidy(launch)


SERIAL = tidy("standard", gen=2.0, ref=1.0, adv=0.5, update_actor=1.0, step=5.0)
OVERLAPPING = tidy("split", gen=2.0, ref=1.0, values=1.5, update_critic=2.0, update_actor=1.0, step=5.0)
BOTH = pd.concat([SERIAL, OVERLAPPING], ignore_index=True)


def bars(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_every_phase_has_a_color_of_its_own() -> None:
    unknown = ["switch_wait", "gen_max", "update_critic_wait", "dump_rollout_generations"]
    names = [*PHASE_ORDER, "step", "unattributed", "testing", "save_checkpoint", *unknown]
    colors = palette.phase_colors(names)
    assert len(set(colors.values())) == len(names)
    distances = {
        (one, other): sum((a - b) ** 2 for a, b in zip(to_rgb(colors[one]), to_rgb(colors[other]), strict=True)) ** 0.5
        for one, other in itertools.combinations(names, 2)
    }
    assert min(distances.values()) > 0.12, min(distances, key=distances.__getitem__)


def test_a_phase_keeps_its_color_whatever_else_is_drawn() -> None:
    alone = palette.phase_colors(["switch_wait"]) | palette.phase_colors(["gen"])
    together = palette.phase_colors([*PHASE_ORDER, "switch_wait", "step"])
    assert {phase: together[phase] for phase in alone} == alone


def test_more_unknown_phases_than_colors() -> None:
    names = [f"phase{number}" for number in range(40)]
    assert set(palette.phase_colors(names)) == set(names)
    assert figures.phases_over_steps(tidy("a", **dict.fromkeys(names, 1.0))).axes


def test_serial_phases_are_stacked_to_the_whole_step() -> None:
    figure = figures.share_of_step(SERIAL)
    drawn = bars(figure)
    assert sum(bar.get_width() for bar in drawn) == pytest.approx(100)
    assert len({bar.get_y() for bar in drawn}) == 1
    assert [bar.get_x() for bar in drawn] == pytest.approx([0, 40, 60, 70, 90])
    assert legend_of(figure) == ["gen", "ref", "adv", "update_actor", "unattributed"]


def test_overlapping_phases_are_not_stacked() -> None:
    figure = figures.share_of_step(OVERLAPPING)
    drawn = bars(figure)
    assert [bar.get_x() for bar in drawn] == [0.0] * 5
    assert len({bar.get_y() for bar in drawn}) == 5
    assert [bar.get_width() for bar in drawn] == pytest.approx([40, 20, 30, 40, 20])
    assert "(phases overlap: shares sum to 150 %)" in figure.axes[0].get_yticklabels()[0].get_text()


def test_phases_that_may_overlap_are_not_stacked_either() -> None:
    figure = figures.share_of_step(SERIAL.assign(kind=SERIAL["kind"].replace(Kind.PHASE.value, Kind.OVERLAP.value)))
    assert {bar.get_x() for bar in bars(figure)} == {0.0}
    assert "(phases may overlap: shares sum to 100 %)" in figure.axes[0].get_yticklabels()[0].get_text()


def test_shares_weigh_a_phase_that_some_steps_have() -> None:
    rare = pd.concat([SERIAL, pd.DataFrame([("standard", 3, "testing", 2.0, "phase")], columns=SERIAL.columns)])
    assert figures.share_table(rare)["testing"] == pytest.approx(100 * 2 / 30)


def test_shares_without_a_step_time_are_of_the_phases_and_say_so() -> None:
    figure = figures.share_of_step(tidy("old", gen=3.0, adv=1.0))
    assert [bar.get_width() for bar in bars(figure)] == pytest.approx([75, 25])
    assert "no step time" in figure.axes[0].get_yticklabels()[0].get_text()


def test_a_log_with_nothing_but_the_step_is_drawn() -> None:
    only_step = tidy("a", step=1.0)
    assert figures.share_table(only_step[only_step["kind"] == Kind.STEP]).empty
    assert figures.share_of_step(only_step[only_step["kind"] == Kind.STEP]).axes
    assert figures.share_of_step(tidy("a", gen=0.0)).axes


def test_means_have_bars_per_launch_and_their_intervals() -> None:
    means = figures.mean_table(BOTH)
    gen = means[means["phase"] == "gen"]
    assert gen[["launch", "mean", "low", "high", "steps"]].to_numpy().tolist() == [
        ["standard", 2.0, 2.0, 2.0, 6],
        ["split", 2.0, 2.0, 2.0, 6],
    ]
    figure = figures.mean_per_phase(means)
    widths = [bar.get_width() for bar in bars(figure) if bar.get_width() == bar.get_width()]
    assert sorted(widths) == pytest.approx(sorted(means["mean"]))
    assert legend_of(figure) == ["standard", "split"]
    assert figures.mean_per_phase(means.drop(columns=["low", "high"]), interval=None).axes


def test_figures_group_by_placement() -> None:
    by_placement = pd.concat([BOTH.assign(placement=BOTH["launch"]), SERIAL.assign(launch="2", placement="standard")])
    assert len(figures.phases_over_steps(by_placement, by="placement").axes) == 2
    assert len(bars(figures.share_of_step(by_placement, by="placement"))) == 10
    assert figures.mean_per_phase(figures.mean_table(by_placement, by="placement"), by="placement").axes


def test_panels_share_a_scale_unless_unreadable() -> None:
    small = tidy("tiny", gen=0.02, step=0.05)
    same = figures.phases_over_steps(BOTH)
    assert same.axes[0].get_ylim() == same.axes[1].get_ylim()
    assert same.axes[0].get_ylim()[1] > 5
    apart = figures.phases_over_steps(pd.concat([BOTH, small], ignore_index=True))
    assert apart.axes[2].get_ylim()[1] < 0.1
    assert "scales differ" in str(apart.get_supylabel())


def test_lines_are_centerd_averages_and_leave_rare_phases() -> None:
    rows = [("a", step, "gen", float(step), "phase") for step in (3, 1, 2, 4)] + [("a", 2, "testing", 9.0, "phase")]
    timing = pd.DataFrame(rows, columns=["launch", "step", "phase", "seconds", "kind"])
    lines = figures.average_lines(timing, 3)
    assert lines[["phase", "step", "average"]].to_numpy().tolist() == [
        ["gen", 1, 1.5],
        ["gen", 2, 2.0],
        ["gen", 3, 3.0],
        ["gen", 4, 3.5],
    ]


def test_launches_of_one_placement_are_averaged_step_by_step() -> None:
    other = SERIAL.assign(launch="2", seconds=SERIAL["seconds"] * 2)
    lines = figures.average_lines(pd.concat([SERIAL, other]).assign(placement="standard"), 1, by="placement")
    assert lines.loc[lines["phase"] == "gen", "average"].tolist() == [3.0] * 6


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    for name in ("one", "two"):
        style.save_figure(figures.phases_over_steps(BOTH, smooth=3), tmp_path / f"{name}.{suffix}")
    content = (tmp_path / f"one.{suffix}").read_bytes()
    assert content == (tmp_path / f"two.{suffix}").read_bytes()
    assert len(content) > 1000


def test_svg_keeps_text_as_text() -> None:
    text = style.svg_text(figures.share_of_step(BOTH))
    assert text.startswith("<svg")
    assert ">update_actor</text>" in text


@pytest.mark.parametrize("name", ["$a_b$ $", "_hidden", "训练", "a" * 200, "x\\y^{"])
def test_odd_names_are_drawn_as_they_are(tmp_path: Path, name: str) -> None:
    timing = pd.concat([tidy(name, **{name: 1.0}, step=2.0), SERIAL], ignore_index=True)
    for figure in (
        figures.phases_over_steps(timing),
        figures.mean_per_phase(figures.mean_table(timing)),
        figures.share_of_step(timing),
    ):
        style.save_figure(figure, tmp_path / "figure.png")
        drawn = unescape(style.svg_text(figure))
        assert [line for line in style.wrap(name).splitlines() if line not in drawn] == []


def test_long_names_are_broken_at_their_marks() -> None:
    name = "learners:1+engines:1/staleness=4/inflight_updates=true"
    assert style.wrap(name).splitlines() == ["learners:1+engines:1/staleness=4", "/inflight_updates=true"]


def test_names_of_two_lines_stay_inside_the_figure(tmp_path: Path) -> None:
    name = "critic-and-reward-on-their-own-device-with-all-overlap"
    figure = waterfall(compare_run(SyntheticRun({"standard": STANDARD, name: SPLIT}, rounds=1).write(tmp_path / "run")))
    assert figure is not None
    begins = [float(x) for x in re.findall(r'<text[^>]*transform="translate\(([-.0-9]+) ', style.svg_text(figure))]
    assert min(begins) > 2.0  # of the 3 points around everything


def test_names_are_whole_on_a_phone(tmp_path: Path) -> None:
    name = "critic-and-reward-on-their-own-device-only-updates-overlap/staleness=1"
    figure = waterfall(compare_run(SyntheticRun({"standard": STANDARD, name: SPLIT}, rounds=1).write(tmp_path / "run")))
    assert figure is not None
    assert "\n" in figure.axes[0].get_yticklabels()[-1].get_text()
    style.lay_out_narrowly(figure)
    for text in (figure.axes[0].get_yticklabels()[-1].get_text(), figure.axes[0].get_title(loc="left")):
        assert name in text.replace("\n", "")


def test_panels_of_a_report_are_as_many_beside_each_other_as_are_legible(tmp_path: Path) -> None:
    layouts = dict.fromkeys(("standard", "b", "c", "d"), STANDARD)
    figure = steps(compare_run(SyntheticRun(layouts, rounds=1).write(tmp_path / "run")))
    assert figure is not None
    assert len({round(axes.get_position().x0, 1) for axes in figure.axes}) == 2


def test_numbers_of_a_title_are_not_broken_from_their_units(tmp_path: Path) -> None:
    name = "learners:1+engines:1/staleness=1"
    comparison = compare_run(SyntheticRun({"standard": STANDARD, name: SPLIT}, rounds=2).write(tmp_path / "run"))
    figure = waterfall(comparison)
    assert figure is not None
    first, second = figure.axes[0].get_title(loc="left").splitlines()
    assert first == f"{name} against standard:"
    assert second.endswith("\u00a0s")


def test_a_share_of_a_role_that_is_too_small_to_tell_is_not_drawn_as_none(tmp_path: Path) -> None:
    layout = replace(STANDARD, times={**STANDARD.times, "reward": (0.51, 0.512)})
    figure = roles_on_devices(compare_run(SyntheticRun({"standard": layout}, rounds=1).write(tmp_path / "run")))
    assert figure is not None
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    reward = [text.get_text() for text in figure.axes[0].texts if round(text.get_position()[1]) == 4]
    assert names[4].startswith("reward")
    assert reward == ["<1", "<1"]


def test_more_steps_than_a_figure_is_wide_are_drawn_as_means_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MOST_POINTS", 10)
    seconds = pd.DataFrame({"timing_s/gen": [1.0, 3.0] * 15, "timing_s/step": [2.0, 6.0] * 15}, range(1, 31))
    timings = timings_of(seconds)
    assert timings is not None
    thinned = figures.thinning([timings])
    assert thinned == 3
    figure = figures.phases_over_steps(timings.thinned(thinned).tidy("a"), thinned=thinned)
    assert figure.get_supylabel() == "seconds per step\neach point the mean of 3 steps"
    lines = {np.size(line.get_xdata()) for line in figure.axes[0].lines}
    assert lines == {10}
    assert figures.share_table(timings.whole().tidy("a")).to_dict() == figures.share_table(timings.tidy("a")).to_dict()
