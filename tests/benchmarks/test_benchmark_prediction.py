"""The kept table of held-out cases is what the predictor of today says of them."""

import pytest
from click.testing import CliRunner
from prediction_cases import by_amdahl, by_operations, model_of, read_folders, results
from prediction_errors import main

from placebench.predict.interval import PredictionClass, held_out_cases


def test_the_kept_table_has_what_is_predicted_today() -> None:
    kept = {(one.group, one.case): one for one in held_out_cases()}
    folders = [folder for folder in read_folders() if folder.name.endswith("7b") or folder.name.endswith("grpo")]
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
    (folder,) = [folder for folder in read_folders() if folder.name.endswith("7b")]
    first = folder.file.cases[0]
    model, placement = model_of([folder.file], folder.file, first)
    assert by_operations(model, placement) == pytest.approx(first.step_s)
    assert by_amdahl(model, placement) == pytest.approx(first.step_s, rel=0.02)


@pytest.mark.slow
def test_all_tables_are_printed() -> None:
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 0, done.output
    for heading in ("Steps", "Generation alone", "Order of placements predicted together", "Memory"):
        assert f"### {heading}\n" in done.output
    assert "Not better on average than: " in done.output
