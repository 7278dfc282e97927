import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import SPLIT, STANDARD
from rich.console import Console
from showing import printed, read_summary, write_report
from synthetic_run import SyntheticRun, edit_spans, gpu_run, record_walls

from placebench.compare.comparison import compare_run, compare_sides
from placebench.compare.measure.sides import read_sides
from placebench.compare.read.run_reading import load_run
from placebench.compare.read.sources import ReadingOptions, Source
from placebench.errors import UsageError
from placebench.record.folder import Status
from placebench.report.build import build_report
from placebench.report.plots import _timings, ratios
from placebench.report.schema import Summary
from placebench.report.show import show
from placebench.report.style import NARROW_TICK_ROOM, lay_out_narrowly
from placebench.report.summary import summarize

ALL_FAILED = {(round_, name): Status.FAILED for round_ in (1, 2, 3) for name in ("standard", "split")}
HALF_FINISHED = {(2, "split"): Status.OOM, (3, "standard"): Status.RUNNING, (3, "split"): Status.PLANNED}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = SyntheticRun().write(tmp_path_factory.mktemp("finished") / "run")
    build_report(path)
    return path


def test_every_file_of_the_report_is_there(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    paths = build_report(path, with_png=True)
    assert paths.trace is not None
    assert {file.name for file in paths.plots} == {
        f"{name}.{suffix}"
        for name in ("timeline", "roles", "difference", "ratios", "phases", "steps")
        for suffix in ("svg", "png")
    }
    for file in (paths.summary, paths.markdown, paths.html, paths.trace, *paths.plots):
        assert file.stat().st_size > 500
        assert file.is_relative_to(path)
    summary = read_summary(path)
    assert (summary.done, summary.planned) == (2, 2)


def test_building_again_gives_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    names = ("report.html", "report.md", "summary.json", "trace.json.gz", "plots/timeline.svg")
    before = [(finished / name).read_bytes() for name in names]
    (finished / "plots" / "timeline.png").touch()
    build_report(finished)
    assert [(finished / name).read_bytes() for name in names] == before
    assert {plot.suffix for plot in (finished / "plots").iterdir()} == {".svg"}


def test_the_summary_has_every_number_with_unit_interval_and_n(finished: Path) -> None:
    summary = read_summary(finished)
    split = summary.placements[1]
    step = split.quantities[0]
    assert (step.key, step.unit, step.n) == ("step_time", "s", 3)
    assert step.value == pytest.approx(1.83 * 1.008, rel=1e-3)
    assert step.ratio is not None
    assert step.ratio.value == pytest.approx(1.83 / 1.30)
    assert (step.ratio.pairs, step.ratio.verdict) == (3, "slower")
    assert [quantity.label for quantity in split.quantities] == [
        "step", "gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor",
        "update_weights", "unattributed", "hidden by overlap", "tokens/s", "tokens/s/device", "device load",
        "peak memory", "idle",
    ]  # fmt: skip
    assert all(quantity.low is not None and quantity.n == 3 for quantity in split.quantities)
    assert sum(wait.value or 0 for wait in split.waits if "critic_pool" in wait.key) == pytest.approx(
        next(found.value for found in split.devices[1].quantities if found.label == "idle")
    )
    assert summary.model_dump().keys() == Summary.model_json_schema()["properties"].keys()


def test_the_parts_of_the_critical_path_add_up_in_the_summary(finished: Path) -> None:
    standard, split = read_summary(finished).placements
    for placement in (standard, split):
        step = placement.quantities[0].value
        assert sum(part.on_path_s for part in placement.critical_path) == pytest.approx(step, rel=1e-12)
    parts = {(part.kind, part.phase): part for part in split.critical_path}
    gen = parts["phase", "gen"]
    assert gen.on_path_s == pytest.approx(0.90 * 1.008, rel=1e-3)
    assert gen.difference is not None
    assert gen.difference.value == pytest.approx(0.40 * 1.008, rel=1e-3)
    assert gen.difference.rounds == 3
    critic = parts["phase", "update_critic"]
    assert [critic.on_path_s, critic.off_path_s] == pytest.approx([0, 0.40 * 1.008], rel=1e-3)
    assert [part.difference for part in standard.critical_path] == [None] * len(standard.critical_path)
    steps = [placement.quantities[0].value or 0 for placement in (standard, split)]
    differences = (part.difference.value for part in split.critical_path if part.difference)
    assert sum(differences) == pytest.approx(steps[1] - steps[0], rel=1e-12)


def test_waiting_is_told_by_pool_and_cause_with_its_share(finished: Path) -> None:
    markdown = (finished / "report.md").read_text()
    rows = [line for line in markdown.splitlines() if line.startswith("| split | critic_pool | ")]
    assert rows == [
        "| split | critic_pool | gen | 0.907 s | 49.2 % |",
        "| split | critic_pool | ref | 0.192 s | 10.4 % |",
        "| split | critic_pool | update_actor | 0.081 s | 4.4 % |",
        "| split | critic_pool | the controller (no phase runs) | 0.030 s | 1.6 % |",
        "| split | critic_pool | adv | 0.010 s | 0.5 % |",
        "| split | critic_pool | update_weights | 0.010 s | 0.5 % |",
    ]
    assert "| split | update_actor beside update_critic | 0.403 s | 21.9 % |" in markdown


def test_terminal_tables_fit_80_columns_without_colors(finished: Path) -> None:
    text = printed(finished)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80 or all("/" in line for line in lines if len(line) > 80)
    assert "\x1b" not in text
    rows = {line[:18].strip(): line.split() for line in lines[: lines.index("")]}
    assert rows["step"] == ["step", "1.31", "s", "1.84", "s", "1.408", "±<0.0001", "slower"]
    assert rows["gen"][-1] == "slower"
    assert rows["reward"][-1] == "same"
    assert rows["hidden by overlap"][-4:] == ["615", "ms", "–", "–"]
    assert "split is slower than standard" in text
    assert str(finished / "report.html") in text


def test_the_pages_hold_the_same_numbers(finished: Path) -> None:
    markdown, html = ((finished / name).read_text() for name in ("report.md", "report.html"))
    for text in (markdown, html):
        assert "split is slower than standard: a step takes 40.8 % more time" in text
        assert "split overlaps 0.61 s of work" in text
        assert "cpu:1 (critic_pool) waits 1.23 s" in text
    assert "| step | 1.31 s | 1.84 s | 1.408 | ±<0.0001 | slower |" in markdown
    assert "![" in markdown
    assert "| hidden in split |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n" in markdown
    assert "| update_critic | 202 ms | 0 ms | −202 ms | −204 to −200 ms | 0 ms | 403 ms |" in markdown
    assert "| step | 1.31 s | 1.84 s | +0.53 s | – | 0 s | 0.61 s |" in markdown
    for name in re.findall(r"\]\((plots/[^)]*)\)", markdown):
        assert (finished / name).is_file()


def test_the_page_loads_nothing(finished: Path) -> None:
    html = (finished / "report.html").read_text()
    assert html.count("<svg") == 12  # each for a screen and for a phone
    assert not re.findall(r"<(?:script|link|img|iframe|object)\b|@import|url\((?!#)|\bsrc=", html)
    assert not re.findall(r'href="(?!#)', html)


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    name = "<b>a|b</b> $x$ [bold]"
    path = SyntheticRun(layouts={"standard": STANDARD, name: SPLIT}, rounds=2).write(tmp_path / "run")
    build_report(path)
    html, markdown = (path / "report.html").read_text(), (path / "report.md").read_text()
    assert "<b>" not in html
    assert "&lt;b&gt;a|b&lt;/b&gt; $x$ [bold]" in html
    assert r"\<b>a\|b\</b> $x$ \[bold]" in markdown
    assert f"{name} is slower than standard" in printed(path, width=200)


def test_one_line_says_where_the_wall_time_went(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1, layouts={"standard": STANDARD}, pace=lambda *_: 1.0).write(tmp_path / "run")
    record_walls(path, 30.0)
    write_report(path)
    line = "Of 30.0 s, measured steps took 5.2 s (17 %), starts 3.0 s, warm-up 5.2 s, ends 5.0 s, all else 11.6 s."
    assert line in printed(path, width=200)
    assert line in (path / "report.md").read_text()
    assert line in (path / "report.html").read_text()


def test_a_half_finished_run_shows_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    path = SyntheticRun(statuses=HALF_FINISHED).write(tmp_path / "run")
    write_report(path)
    summary = read_summary(path)
    assert (summary.done, summary.planned) == (3, 6)
    text = printed(path, width=200)
    assert "warning: round 2 split: out of memory: worker on cpu:1 ended: oom" in text
    assert "warning: round 3 standard: still running" in text
    assert "Undecided whether split or standard is faster: a step takes 41 % more time" in text
    assert "3 of 6 launches done" in text
    assert "measured steps took" not in text
    assert [launch.status for launch in read_summary(path).launches] == [
        "done", "done", "done", "oom", "running", "planned",
    ]  # fmt: skip


def test_a_run_without_a_finished_launch_has_a_report(tmp_path: Path) -> None:
    path = SyntheticRun(statuses=ALL_FAILED).write(tmp_path / "run")
    paths = build_report(path)
    assert (read_summary(path).done, paths.trace, paths.plots) == (0, None, ())
    text = printed(path, width=200)
    assert "split against standard: nothing to compare, as standard and split have no finished launch." in text
    assert "round 1 standard: failed: worker on cpu:1 ended: failed" in (path / "report.html").read_text()


def test_an_older_trace_and_figures_do_not_outlive_a_rebuild(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    build_report(path)
    for status in path.glob("trials/*/status"):
        status.write_text("failed\n")
    build_report(path)
    assert not (path / "trace.json.gz").exists()
    assert not list((path / "plots").iterdir())


def test_the_controllers_view_is_left_out_where_it_is_the_same(tmp_path: Path) -> None:
    def end_earlier(span: dict[str, Any]) -> None:
        if span["phase"] == "gen" and span["device"] != "controller":
            span.update({key: span[key] - 0.1 for key in ("end_wall", "end_mono")})

    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    title = "## Phases from submission to result"
    assert title not in write_report(path).markdown.read_text()
    edit_spans(path, "split", end_earlier)
    assert title in write_report(path).markdown.read_text()


def test_tables_of_samples_are_left_out_where_there_are_none(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    titles = ("## Phases on the devices of a pool", "## Phases on devices")
    assert all(title in write_report(path).markdown.read_text() for title in titles)
    for samples in path.glob("trials/*/devices.jsonl"):
        samples.unlink()
    markdown = write_report(path).markdown.read_text()
    assert "|   update_actor |" in markdown.replace("&nbsp;", " ")
    assert [title for title in titles if title in markdown] == []


def test_all_placements_stand_in_one_table_and_nobodys_numbers_in_none(tmp_path: Path) -> None:
    layouts = {"standard": STANDARD, "split": SPLIT, "other": SPLIT}
    path = SyntheticRun(layouts=layouts, rounds=2).write(tmp_path / "run")
    markdown = write_report(path).markdown.read_text()
    table = markdown.partition("## All placements")[2].partition("##")[0]
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n") if line]
    assert header[:3] == ["placement", "devices", "step"]
    assert [row[:2] for row in rows] == [["standard", "2"], ["split", "2"], ["other", "2"]]
    assert rows[0][3] == "–"
    assert rows[1][3:6] == rows[2][3:6] != ["–"] * 3
    # None of them has engines of its own.
    assert "| engines wait |" not in markdown
    assert "| hidden by overlap |" in markdown


def test_which_side_is_slower_is_told_of_the_first_placement_too(tmp_path: Path) -> None:
    names = ("learners:1+engines:1/staleness=1", "learners:1+engines:1/staleness=2")
    metrics = {
        "training/trainer_wait_s": 0.5,
        "training/engine_wait_s": 0.0,
        "training/queue_mean": 0.0,
        "training/lag_mean": 1.0,
        "training/dropped_sequences": 0,
        "training/generated_tokens": 1200,
        "training/generating_s": 1.5,
    }
    path = SyntheticRun(layouts=dict.fromkeys(names, SPLIT), rounds=2, metrics=metrics).write(tmp_path / "run")
    run_file = path / "run.json"
    run_file.write_text(run_file.read_text().replace('"staleness": 0', '"staleness": 1'))
    built = write_report(path)
    first, second = read_summary(path).placements
    assert first.headline is None
    assert len(first.reasons) == 1
    told = " ".join(printed(path).split())
    for name, sentence in zip(names, (first.reasons[0], second.reasons[-1]), strict=True):
        assert sentence.startswith(f"In {name}, learners wait 0.50 s of the ")
        assert sentence.endswith(". The engines are slower: another device helps most there.")
        assert told.count(sentence) == 1
        assert built.markdown.read_text().count(sentence) == 1
        assert built.html.read_text().count(sentence) == 1
    compared = summarize(compare_sides(read_sides([Source(None, run=path)], ReadingOptions())), 2).placements
    assert [f"In {one.name}, learners wait 0.50 s" in one.reasons[-1] for one in compared] == [True, True]


@pytest.mark.parametrize("names", [("standard",), ("standard", "split", "other")])
def test_any_number_of_placements(tmp_path: Path, names: tuple[str, ...]) -> None:
    layouts = dict(zip(names, (STANDARD, SPLIT, SPLIT), strict=False))
    path = SyntheticRun(layouts=layouts, rounds=2).write(tmp_path / "run")
    write_report(path)
    text = printed(path)
    assert [f"{name} against standard" in text for name in names[1:]] == [True] * (len(names) - 1)
    assert len(read_summary(path).verdicts) == max(1, len(names) - 1)
    assert ("standard: a step takes 1.31 s" in text) == (len(names) == 1)
    assert ("All placements" in text) == ("## All placements" in (path / "report.md").read_text()) == (len(names) > 2)
    alone = ["update_critic", "0.201", "s", "15.4", "%", "0", "s", "0", "s"] in [
        line.split() for line in text.splitlines()
    ]
    assert alone == (len(names) == 1)


def test_the_memory_that_was_expected_stands_beside_the_peak(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    content = json.loads((path / "run.json").read_text())
    content["placements"][1]["memory_estimate_bytes"] = {"critic_pool": 3 << 30}
    (path / "run.json").write_text(json.dumps(content))
    write_report(path)
    found = [
        (device.pool, device.estimated_memory_bytes)
        for placement in read_summary(path).placements
        for device in placement.devices
    ]
    assert found == [("global_pool", None), ("global_pool", None), ("actor_pool", None), ("critic_pool", 3 << 30)]
    markdown = (path / "report.md").read_text()
    assert "| placement | device | pool | load | peak memory | estimated | idle |" in markdown
    assert " 3.00 GiB | " in next(line for line in markdown.splitlines() if line.startswith("| split | cpu:1 |"))
    assert "estimated" not in printed(path)


def test_a_finished_launch_has_its_value_of_every_number(tmp_path: Path) -> None:
    path = gpu_run(rounds=2, statuses={(2, "split"): Status.OOM}).write(tmp_path / "run")
    write_report(path)
    summary = read_summary(path)
    launches = {(launch.round, launch.placement): launch for launch in summary.launches}
    assert launches[2, "split"].values == {}
    for placement in summary.placements:
        values = launches[1, placement.name].values
        devices = [found for device in placement.devices for found in (*device.quantities, *device.waits)]
        # The unit of every value is found by its key.
        quantities = [*placement.quantities, *placement.controller_view, *placement.overlaps, *placement.waits]
        assert set(values) == {found.key for found in (*quantities, *devices) if found.value is not None}
        wanted = ("step_time", "tokens_per_s_per_device", "tokens_per_j", "mfu/update_actor", "mbu/gen", "idle/cpu:1")
        assert all(values[key] for key in wanted)
    split = summary.placements[1]
    assert launches[1, "split"].values["step_time"] == pytest.approx(split.quantities[0].value)
    first, second = (launches[number, "standard"].values["step_time"] for number in (1, 2))
    assert first
    assert second
    assert (first * second) ** 0.5 == pytest.approx(summary.placements[0].quantities[0].value)


def test_what_each_device_waits_for_without_a_trace(finished: Path) -> None:
    summary = read_summary(finished)
    for placement in summary.placements:
        for device in placement.devices:
            waits = {found.key: found.value or 0.0 for found in device.waits}
            assert list(waits) == [f"wait_nothing_to_do/{device.id}", f"wait_slower_ranks/{device.id}"]
            idle = next(found.value for found in device.quantities if found.label == "idle")
            assert sum(waits.values()) == pytest.approx(idle)
    markdown, html = ((finished / name).read_text() for name in ("report.md", "report.html"))
    header = "placement | device | nothing to do | slower ranks | collectives | host | sum | share of the step |"
    assert f"## What each device waits for\n\n| {header}\n" in markdown
    assert "| split | cpu:1 | 1.23 s | 0 s | – | – | 1.23 s | 66.7 % |" in markdown
    for page in (markdown, html):
        assert "nothing to do = idle − slower ranks" in page
        assert "no kernels of the device were traced. They are traced only on GPUs" in page
        assert "Of the one traced step" not in page
        assert "Not traced" not in page


def test_phases_over_the_steps_are_those_of_spans_where_a_log_has_none(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    steps = path / "trials" / "01-standard" / "steps.jsonl"
    rows = [json.loads(line) for line in steps.read_text().splitlines()]
    bare = [row | {"metrics": {"timing_s/step": 1.3}} for row in rows]
    steps.write_text("".join(json.dumps(row) + "\n" for row in bare))
    (launch, _) = load_run(path).launches
    found = _timings(launch)
    assert found.loc[4, "timing_s/step"] == 1.3
    assert found.loc[4, "timing_s/adv"] == pytest.approx(0.01, rel=0.05)


def test_an_interval_that_the_frame_cuts_has_an_arrowhead_there(tmp_path: Path) -> None:
    run = SyntheticRun(rounds=2, pace=lambda round_, name: 2.0 if (round_, name) == (1, "split") else 1.0)
    figure = ratios(compare_run(run.write(tmp_path / "wide")))
    assert figure is not None
    (axes,) = figure.axes
    heads = {
        (line.get_marker(), tuple(np.atleast_1d(line.get_xdata())))
        for line in axes.lines
        if line.get_marker() in ("<", ">")
    }
    low, high = axes.get_xlim()
    assert heads == {("<", (low,)), (">", (high,))}
    single = ratios(compare_run(SyntheticRun(rounds=1).write(tmp_path / "single")))
    assert single is not None
    assert {text.get_text().partition(" ")[2] for text in single.axes[0].texts} == {"undecided"}
    narrow = ratios(compare_run(SyntheticRun(rounds=2).write(tmp_path / "narrow")))
    assert narrow is not None
    assert not {"<", ">"} & {str(line.get_marker()) for line in narrow.axes[0].lines}
    lay_out_narrowly(narrow)
    ticks = np.log(narrow.axes[0].get_xticks())
    assert 0 in ticks
    assert (np.diff(ticks) >= NARROW_TICK_ROOM * np.diff(np.log(narrow.axes[0].get_xlim()))).all()


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no run\.json in it"):
        build_report(tmp_path)
    with pytest.raises(UsageError, match="there is no such folder"):
        show(tmp_path / "missing", Console(file=io.StringIO()))


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    (path / "plots").write_text("a file where the folder should be")
    with pytest.raises(UsageError, match=r"run/plots: cannot write the report: File exists"):
        build_report(path)
