"""Runs by the names that users give them."""

from pathlib import Path

import pytest
from synthetic_run import record

from placebench.errors import UsageError
from placebench.record.named_runs import find_run, with_run

pytestmark = pytest.mark.usefixtures("here")

FIRST, SECOND, THIRD = "20260301T100000Z-split", "20260302T100000Z-split", "20260303T100000Z-split-overlap=none"


def test_a_run_is_found_by_folder_name_beginning_and_latest() -> None:
    for name in (FIRST, SECOND, THIRD):
        record(f"runs/{name}")
    record("runs/20260101T100000Z-mine")
    record("results/20260101T100000Z-split")
    Path("runs/20260303T100000Z-none").mkdir()
    runs = Path("runs")
    for word in (
        "latest",
        "split-overlap=none",
        "split-o",
        "20260303",
        THIRD,
        f"runs/{THIRD}",
        "runs/split-o",
        "runs/latest",
    ):
        assert find_run(word) == runs / THIRD, word
    assert find_run("20260301T100000Z-split") == runs / FIRST  # whole names come before beginnings
    assert find_run("m") == runs / "20260101T100000Z-mine"
    for word in ("results/latest", "results/split", "results/2026"):
        assert find_run(word) == Path("results/20260101T100000Z-split")
    assert find_run("split", Path("results")) == Path("results/20260101T100000Z-split")


def test_latest_goes_by_the_recorded_start() -> None:
    # A copy keeps its start, whatever it is called, and so does a run of a host whose clock has been set since.
    record("runs/20260302T100000Z-b")
    record("runs/zzz").joinpath("run.json").write_text('{"started": "2026-03-01T10:00:00Z"}')
    Path("runs/zzzz").mkdir()
    assert find_run("latest") == Path("runs/20260302T100000Z-b")


def test_several_runs_that_may_be_meant_are_named_in_one_line() -> None:
    for name in (FIRST, SECOND, THIRD):
        record(f"runs/{name}")
    for word in ("split", "split:standard"):
        with pytest.raises(UsageError) as error:
            with_run(word)
        assert str(error.value) == (f"split: may be any of 2 runs: {SECOND}, {FIRST}; name one of these folders")
    for day in range(10, 17):
        record(f"runs/202604{day}T100000Z-other")
    with pytest.raises(UsageError, match=r"of 10 runs: 20260416T100000Z-other, .*-other and 5 more; name"):
        find_run("2026")


def test_what_is_there_is_no_name() -> None:
    record(f"runs/{FIRST}")
    for file in ("split", "s"):
        Path(file).write_text("")
        assert find_run(file) == Path(file)
        Path(file).unlink()
        Path(file).mkdir()
    assert find_run("split") == Path("runs", FIRST)  # a folder that is no run
    assert find_run("s") == Path("s")  # is not what a name begins with
    assert find_run("./split") == Path("split")
    with pytest.raises(UsageError, match=r"^spilt: .* no run of this name under runs/; did you mean split\?$"):
        find_run("spilt")
    with pytest.raises(UsageError, match=r"^x: .*; see placebench list, or name its folder$"):
        find_run("x")


def test_words_of_placements_name_runs_too() -> None:
    record(f"runs/{FIRST}")
    first = f"runs/{FIRST}"
    assert with_run("split:split:1+1/overlap=none") == f"{first}:split:1+1/overlap=none"
    assert with_run("some.log") == "some.log"
    Path("split").mkdir()  # a folder that is no run, as for every command
    assert with_run("split") == first
    Path("split").rmdir()
    assert with_run(f"{first}:split") == f"{first}:split"
    record("my:runs/20260301T100000Z-m")
    assert with_run("my:runs/m:split") == "my:runs/20260301T100000Z-m:split"
