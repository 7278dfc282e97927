"""The kept table of held-out cases is what the predictor of today says of them."""

import pytest
from click.testing import CliRunner
from pages import ROOT
from prediction_cases import by_amdahl, by_operations, model_of, read_folders, results
from prediction_errors import main
from published_orderings import A100, PPO, Job, Model, placements
from published_orderings import main as published

from placebench.predict import kernel_tables
from placebench.predict.interval import PredictionClass, held_out_cases
from placebench.predict.kernel_tables import engine_tables
from placebench.spec.placement import Role


@pytest.fixture(autouse=True)
def _without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept table and the page are made without the extra `predict`, as most users have it."""
    monkeypatch.setattr(kernel_tables, "_is_installed", lambda: False)
    engine_tables.cache_clear()


def test_the_kept_table_has_what_is_predicted_today() -> None:
    kept = {(one.group, one.case): one for one in held_out_cases()}
    folders = [folder for folder in read_folders() if folder.name.endswith("ppo-7b") or folder.name.endswith("grpo")]
    cases = list(results(folders))
    assert {one.kept.kind for one in cases} == {PredictionClass.SAME_RUN, PredictionClass.OTHER_HOST}
    for case in cases:
        one = kept[case.kept.group, case.kept.case]
        assert (one.kind, one.is_host_bound, one.launches) == (
            case.kept.kind,
            case.kept.is_host_bound,
            case.kept.launches,
        )
        assert one.predicted_s == pytest.approx(case.kept.predicted_s, rel=2e-3), (
            f"{one.group}, {one.case}: run benchmarks/prediction_errors.py --write-table"
        )
        assert one.measured_s == pytest.approx(case.kept.measured_s, rel=1e-4)


def test_simpler_ways_give_back_what_they_were_made_of() -> None:
    (folder,) = [folder for folder in read_folders() if folder.name.endswith("ppo-7b")]
    first = folder.file.cases[0]
    model, placement = model_of([folder.file], folder.file, first)
    assert by_operations(model, placement) == pytest.approx(first.step_s)
    assert by_amdahl(model, placement) == pytest.approx(first.step_s, rel=0.02)


@pytest.mark.slow
def test_the_page_has_the_errors_of_today() -> None:
    page = (ROOT / "docs" / "prediction-published.md").read_text(encoding="utf-8")
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 0, done.output
    tables = {title: rows for part in done.output.split("### ")[1:] for title, _, rows in [part.partition("\n")]}
    # What AIConfigurator says needs the extra; pools are told by their mean alone.
    with_tables = {"Generation alone", "Kernels of a token step"}
    told = [rows for title, rows in tables.items() if title not in {*with_tables, "Memory"}]
    lines = [line for rows in told for line in rows.splitlines() if line.startswith("|")]
    lines += [
        line.removesuffix("not installed |")
        for title in with_tables
        for line in tables[title].splitlines()
        if line.startswith("|")
    ]
    lines += [line for line in done.output.splitlines() if "placements from all others of their run" in line]
    assert [line for line in lines if line not in page] == []
    _, pools, *_, error, _ = tables["Memory"].strip().splitlines()[-1].split("|")
    count, mean = pools.split()[0], error.split("%")[0].strip()
    assert f"{count} pools with 16 GiB or more were estimated {mean} % off" in page


def test_the_page_has_what_the_scripts_print() -> None:
    page = (ROOT / "docs" / "prediction-published.md").read_text(encoding="utf-8")
    printed = CliRunner().invoke(published, [])
    assert printed.exit_code == 0, printed.output
    lines = [line for line in printed.output.splitlines() if line]
    assert len(lines) > 50
    assert [line for line in lines if line not in page] == []


def test_an_ordering_is_the_walk_of_phases_worked_out_by_hand() -> None:
    model = Model(1e9, 1e9, 0.0, 1)
    job = Job(dict.fromkeys((Role.ACTOR, Role.CRITIC, Role.REWARD), model), 8, 10.0, 0.0, A100, 0.5, 0.5)
    # 2 · 10⁹ operations for each of 80 tokens, at half of 312 TFLOP/s.
    forward = 2e9 * 80 / 156e12
    assert job.seconds("ref", 2) == pytest.approx(forward / 2)
    assert job.seconds("update_actor", 2) == pytest.approx(3 * forward / 2)
    together = placements(2)["colocate"]
    assert job.step(PPO, together) == pytest.approx((1 + 4 + 6) * forward / 2)
    # Apart, two of the passes and an update are beside the others.
    assert job.step(PPO, placements(2)["split"]) == pytest.approx((1 + 2 + 3) * forward)
