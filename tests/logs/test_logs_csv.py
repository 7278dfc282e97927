"""CSV as trackers and spreadsheets write it."""

from pathlib import Path

import pytest
from log_reading import frame_of, metrics, phases, sample, write

from placebench.errors import UsageError
from placebench.logs.run import read_run
from placebench.logs.timing import Kind


def test_csv_names_tell_the_framework(tmp_path: Path) -> None:
    run = sample(tmp_path, "csv")
    assert run.dialect.framework == "verl"
    assert phases(run, 2) == {
        "gen": (2.5, Kind.PHASE),
        "unattributed": (3.5, Kind.UNATTRIBUTED),
        "step": (6.0, Kind.STEP),
    }


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffstep,timing_s/gen,timing_s/step\n1,1.5,2.5\n2,1.5,2.5\n",
        '\ufeff\n"step","timing_s/gen","timing_s/step"\r\n"1","1.5","2.5"\r\n"2","1.5","2.5"\r\n',
        "step;timing_s/gen;timing_s/step\n1;1,5;2,5\n2;1,5;2,5e0\n",
        "step\ttiming_s/gen\ttiming_s/step\n1\t1,5\t2.5\n2\t1,5\t2.5\n",
        '"Step","my - run - timing_s/gen","my - run - timing_s/gen__MIN","my - run - timing_s/gen__MAX",'
        '"my - run - timing_s/step"\n"1","1.5","1.0","2.0","2.5"\n"2","1.5","1.0","2.0","2.5"\n',
    ],
    ids=["mark", "mark and quotes", "semicolons", "tabs", "panel"],
)
def test_csv_as_spreadsheets_and_trackers_write_it(tmp_path: Path, content: str) -> None:
    run = read_run([write(tmp_path, content, "log.csv")])
    assert run.dialect.framework == "verl"
    assert [metrics(run, step) for step in (1, 2)] == [{"timing_s/gen": 1.5, "timing_s/step": 2.5}] * 2


def test_columns_of_several_runs_keep_their_names(tmp_path: Path) -> None:
    run = read_run([write(tmp_path, "Step,a - timing_s/gen,b - timing_s/gen,loss__MIN\n1,1.5,2.5,0.5\n")])
    assert metrics(run, 1) == {"a - timing_s/gen": 1.5, "b - timing_s/gen": 2.5, "loss__MIN": 0.5}


@pytest.mark.parametrize(
    ("row", "named"), [('1,"1,005.5"', "'1,005.5'"), ('1,"-12,005"', "'-12,005'"), ("1;1.005,5", "'1.005,5'")]
)
def test_csv_with_separators_of_thousands_is_refused(tmp_path: Path, row: str, named: str) -> None:
    header = "step;timing_s/gen" if ";" in row else "step,timing_s/gen"
    with pytest.raises(UsageError, match=f"line 2: {named} under timing_s/gen has thousands separators"):
        frame_of(write(tmp_path, f"{header}\n{row}\n"))
