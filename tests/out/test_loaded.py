"""`placebench.load`: tables, verdicts, figures and predictions of a run in Python."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from layouts import SPLIT, STANDARD
from matplotlib.figure import Figure
from pages import ROOT
from showing import write_report
from synthetic_run import SyntheticRun, gpu_run

import placebench
from placebench.compare.statistics.verdicts import Verdict
from placebench.errors import UsageError
from placebench.out.loaded import RunComparison
from placebench.record.folder import Status
from placebench.telemetry.samples import QUANTITIES

SHARED = ROOT / "runs" / "reference" / "4x-h200" / "ppo-7b"
WORKLOAD = {"model": "tiny", "batch": {"size": 64, "mini_batch_size": 32}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = SyntheticRun(
        workload=WORKLOAD, pace=lambda *_: 1.0, testing_s=0.5, statuses={(3, "split"): Status.OOM}, span_memory=2**20
    )
    return run.write(tmp_path_factory.mktemp("runs") / "run")


def test_a_table_has_a_row_for_each_launch_step_and_span(path: Path) -> None:
    run = placebench.load(path)
    assert (run.name, run.status, run.placements) == ("demo", "running", ("standard", "split"))
    assert list(run.launches["status"]) == ["done"] * 5 + ["oom"]
    assert run.launches["startup_s"].tolist()[:5] == pytest.approx([3.0] * 5)
    assert run.launches["startup_s"].isna().tolist() == [False] * 5 + [True]

    steps = run.steps.set_index(["placement", "round", "step"])
    assert len(steps) == 5 * 6
    assert steps["is_warmup"].groupby(level="step").agg(["all", "any"]).all(axis=1).tolist() == [True] * 2 + [False] * 4
    # A validation at the end of every second step is no part of its time.
    assert steps.loc[("split", 2, 4), "step_s"] == pytest.approx(SPLIT.step_s)
    assert steps.loc[("split", 2, 4), "timing_s/step"] == pytest.approx(SPLIT.step_s + 0.5)

    spans = run.spans[(run.spans["placement"] == "standard") & (run.spans["step"] == 3)]
    begin, end = STANDARD.times["update_actor"]
    of_phase = spans[spans["phase"] == "update_actor"].groupby("device")["seconds"]
    assert of_phase.count().to_dict() == {"controller": 3, "cpu:0": 3, "cpu:1": 3}
    assert of_phase.mean().tolist() == pytest.approx([end - begin] * 3)
    assert run.spans.groupby(["placement", "round"])["start_s"].min().tolist() == [0.0] * 5
    assert spans["allocated_bytes"].max() == 2**20


def test_samples_lie_on_the_clock_of_the_spans_and_every_column_has_a_unit(tmp_path: Path) -> None:
    run = placebench.load(gpu_run(rounds=1).write(tmp_path / "run"))
    devices = run.devices
    assert devices["power_w"].eq(400.0).all()
    assert devices["time_s"].max() == pytest.approx(run.spans.groupby("placement")["end_s"].max().max(), abs=0.2)
    known = {quantity.key for quantity in QUANTITIES} | {"placement", "round", "time_s", "wall", "device"}
    assert set(devices.columns) <= known
    documented = type(run).devices.__doc__ or ""
    assert [
        column for column in ("time_s", "util", "memory_bytes", "power_w", "wall") if column not in documented
    ] == []


@pytest.mark.parametrize("table", ["launches", "steps", "spans", "devices"])
def test_every_column_of_a_table_is_documented(path: Path, table: str) -> None:
    run = placebench.load(path)
    documented = getattr(type(run), table).__doc__
    columns = [column for column in getattr(run, table) if "/" not in column]  # verl's names are as logged
    assert [column for column in columns if f"`{column}`" not in documented] == []


@pytest.mark.parametrize("table", ["launches", "steps", "spans", "devices"])
def test_a_run_without_a_finished_launch_has_empty_tables_with_columns(tmp_path: Path, table: str) -> None:
    lost = {(round_, name): Status.FAILED for round_ in (1, 2, 3) for name in ("standard", "split")}
    frame = getattr(placebench.load(SyntheticRun(statuses=lost).write(tmp_path / "run")), table)
    assert len(frame) == (6 if table == "launches" else 0)
    assert list(frame.columns[:2]) == ["placement", "round"]


def test_a_run_without_a_finished_launch_has_a_page_without_numbers(tmp_path: Path) -> None:
    lost = {(round_, name): Status.FAILED for round_ in (1, 2, 3) for name in ("standard", "split")}
    run = placebench.load(SyntheticRun(statuses=lost).write(tmp_path / "run"))
    assert "0 of 6 launches done" in run._repr_html_()
    assert run.compare().figures == {}


def test_the_comparison_is_that_of_the_report(path: Path) -> None:
    run = placebench.load(path)
    found = run.compare()
    assert list(found.verdicts) == ["split"]
    row = found.table[(found.table["placement"] == "split") & (found.table["key"] == "step_time")].iloc[0]
    assert row["ratio"] == pytest.approx(SPLIT.step_s / STANDARD.step_s)
    assert (row["unit"], row["verdict"], row["n"]) == ("s", "slower", 2)
    assert run.compare(0.9).verdicts != found.verdicts
    write_report(path)
    kept = placebench.load(path).compare()  # from summary.json, which is newer than the files
    pd.testing.assert_frame_equal(kept.table, found.table)
    assert kept.summary == found.summary


def test_the_words_of_verdicts_are_documented() -> None:
    documented = re.search(r"`verdict`, one of (.*?), as far", RunComparison.table.__doc__ or "", re.DOTALL)
    assert documented
    assert set(re.findall(r"`(\w+)`", documented[1])) == set(Verdict)


def test_figures_are_matplotlibs_and_not_of_pyplot(path: Path) -> None:
    figures = placebench.load(path).compare().figures
    assert {"timeline", "ratios", "phases", "steps"} <= set(figures)
    assert all(type(figure) is Figure for figure in figures.values())


def test_notebooks_show_the_verdict_and_no_markup_of_names(tmp_path: Path) -> None:
    layouts = {"standard": STANDARD, "<script>alert(1)</script>": SPLIT}
    run = placebench.load(SyntheticRun(layouts=layouts, rounds=2).write(tmp_path / "run"))
    page = run._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; is slower than standard" in page
    assert "<table" in page
    assert "\x1b" not in repr(run)


def test_notebooks_mark_a_verdict_that_its_interval_denies_and_say_why() -> None:
    page = placebench.load(SHARED.parent / "ppo-1.5b-placements")._repr_html_()
    assert "<td>1.06–1.47</td>\n      <td>undecided*</td>" in page
    assert "<p>* its interval alone would decide, but of 26 numbers compared at once, some decide by chance</p>" in page


def test_the_run_predicts_its_own_placements_and_others(path: Path) -> None:
    run = placebench.load(path)
    own = run.predict()
    assert own["step_s"].tolist() == pytest.approx([STANDARD.step_s, SPLIT.step_s], rel=0.02)
    documented = type(run).predict.__doc__ or ""
    assert [column for column in own.columns if f"`{column}`" not in documented] == []
    other = run.predict("standard", workload={"batch.size": 128}, price=2.0)
    assert other["step_s"].item() > own["step_s"][0]
    assert other["cost_per_million_tokens"].item() > 0
    with pytest.raises(UsageError, match="splt"):
        run.predict(["standard", "splt"])
    with pytest.raises(UsageError, match=r"^placement 'split' is given twice in placements 'split,standard,split': "):
        run.predict(["split", "standard,split"])
    with pytest.raises(UsageError, match="workload"):
        run.predict("standard", workload={"batch.sise": 128})
    with pytest.raises(UsageError, match=r"^devices 'tpu:1': write cpu:N"):
        run.predict("standard", devices="tpu:1")
    with pytest.raises(UsageError, match=r"workload: key 3 is not text: write workload keys, such as 'batch.size'"):
        run.predict(workload={3: 4})  # type: ignore[dict-item]
    for price in (-1, 0, math.nan, math.inf):
        with pytest.raises(UsageError, match=rf"^price {price}: must be above 0 and at most 1,000,000$"):
            run.predict(price=price)


def test_of_a_shared_run_there_are_verdicts_and_predictions() -> None:
    run = placebench.load(SHARED)
    assert run.placements == ("standard", "split", "split/overlap=none")
    assert run.compare().figures == {}
    assert len(run.compare().table)
    assert len(run.predict("split")) == 1
    with pytest.raises(UsageError, match="shared without its raw files"):
        _ = run.steps


def test_what_is_no_run_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such folder"):
        placebench.load(tmp_path / "nowhere")


def test_neither_torch_nor_ray_is_imported_and_nothing_heavy_before_it_is_needed(path: Path) -> None:
    code = (
        "import sys, placebench; heavy = {'numpy', 'pandas', 'matplotlib', 'torch', 'ray', 'pydantic'};"
        "print(heavy & set(sys.modules)); run = placebench.load(sys.argv[1]); run.steps, run.compare().figures;"
        "print({'torch', 'ray', 'matplotlib.pyplot'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\nset()\n"
