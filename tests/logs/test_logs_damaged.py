"""Logs that are cut off, torn or no logs, and written ones that must be read back."""

import csv
import io
from codecs import BOM_UTF8
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import log_samples
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import SHARED_FOLDER, flags, frame_of, sample, write
from pandas.testing import assert_frame_equal

from placebench.errors import UsageError
from placebench.logs.registry import FORMATS
from placebench.logs.run import read_run

CUT: dict[str, Callable[[bytes], bytes]] = {
    "openrlhf": lambda content: content[: content.rfind(b"'timing/step_total")],
    "slime": lambda content: content[: content.rfind(b"'perf/step_time")],
    "skyrl": lambda content: content[: content.rfind(b"'timing/step'")],
    "areal": lambda content: content[: content.rfind("╘".encode())],
    "nemo-rl": lambda content: content[: content.rfind("⏱️".encode())],
    "trl, quoted": lambda content: content[: content.rfind(b"'step_time'") + 14],
    "open-instruct, wide": lambda content: content[: content.rfind("│  val".encode())],
    "prime-rl, metrics.jsonl": lambda content: content[:-30],
    "tensorboard": lambda content: content[:-3],
    "csv": lambda content: content[: content.rfind(b",text")],
}


@pytest.mark.parametrize("name", CUT)
def test_a_step_that_is_cut_off_is_left_out_and_told(tmp_path: Path, name: str) -> None:
    content = log_samples.SAMPLES[name][1]
    run = read_run([write(tmp_path, CUT[name](content))])
    frame, whole = run.logs[0].table.frame("log"), frame_of(write(tmp_path, content, "whole.log"))
    assert frame.equals(whole[: len(frame)]) or name == "slime"
    assert len(frame) < len(whole)
    assert "cut-off" in flags(run)


@pytest.mark.parametrize("name", log_samples.SAMPLES)
def test_a_last_line_without_an_end_is_told_where_it_matters(tmp_path: Path, name: str) -> None:
    known, content = log_samples.SAMPLES[name]
    run = read_run([write(tmp_path, content.rstrip(b"\n"))])
    assert ("open-end" in flags(run)) == (known in {"nemo-rl", "prime-rl", "csv"})
    assert "open-end" not in flags(sample(tmp_path, name))


MARKED = {
    "verl": b"".join(b"step:%d - timing_s/gen:1.5 - timing_s/step:2.5\n" % step for step in (1, 2)),
    "verl-jsonl": b"".join(
        b'{"step": %d, "data": {"timing_s/gen": 1.5, "timing_s/step": 2.5}}\n' % step for step in (1, 2)
    ),
} | {name: content for name, (known, content) in log_samples.SAMPLES.items() if known != "tensorboard"}


@pytest.mark.parametrize("name", MARKED)
def test_the_sign_of_utf_8_hides_no_step(tmp_path: Path, name: str) -> None:
    content = MARKED[name]
    expected = frame_of(write(tmp_path, content, "plain.log"))
    marked = write(tmp_path, BOM_UTF8 + content.removeprefix(BOM_UTF8), "marked.log")
    assert_frame_equal(frame_of(marked), expected)


def test_what_is_damaged_in_the_middle_is_refused_with_its_place(tmp_path: Path) -> None:
    events = bytearray(log_samples.NEMO_EVENTS)
    events[len(log_samples.FILE_VERSION) + 20] ^= 1
    with pytest.raises(UsageError, match="TensorBoard event file: record 2 is damaged"):
        frame_of(write(tmp_path, bytes(events)))
    with pytest.raises(UsageError, match="line 3 has a different number of cells"):
        frame_of(write(tmp_path, log_samples.CSV_TABLE.replace("2,2.5,", "2,")))
    with pytest.raises(UsageError, match=r"line 3: the step '2\.5' is not a whole number"):
        frame_of(write(tmp_path, log_samples.CSV_TABLE.replace("2,2.5", "2.5,2.5")))
    with pytest.raises(UsageError, match=r"trainer_state.json of TRL: line \d+: the file is not JSON"):
        frame_of(write(tmp_path, log_samples.TRAINER_STATE[:-40]))


every_sample = b"".join(content for _, content in log_samples.SAMPLES.values())
pieces = st.builds(
    lambda start, size: every_sample[start : start + size], st.integers(0, len(every_sample)), st.integers(1, 400)
)
forced = st.sampled_from([None, *(known.name for known in FORMATS)])


@SHARED_FOLDER
@given(parts=st.lists(pieces | st.binary(max_size=20), max_size=12), log_format=forced)
def test_torn_logs_are_read_or_refused(tmp_path: Path, parts: list[bytes], log_format: str | None) -> None:
    try:
        run = read_run([write(tmp_path, b"".join(parts))], log_format=log_format, devices=2, learner_ranks=2)
    except UsageError:
        return
    assert run.metrics.index.is_unique
    assert run.metrics.index.is_monotonic_increasing


@SHARED_FOLDER
@given(data=st.binary(max_size=300), log_format=forced)
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes, log_format: str | None) -> None:
    with suppress(UsageError):
        assert read_run([write(tmp_path, data)], log_format=log_format).logs[0].table.lines > 0


numbers = st.floats(width=32, allow_nan=False)
names = st.from_regex(r"[a-z]{1,6}/[a-z_@]{1,9}", fullmatch=True)
steps = st.dictionaries(st.integers(0, 10**6), st.dictionaries(names, numbers, min_size=1, max_size=6), min_size=1)


@SHARED_FOLDER
@given(steps=steps)
def test_printed_dicts_are_read_back(tmp_path: Path, steps: dict[int, dict[str, float]]) -> None:
    text = "".join(f"Global step {step}: {values}\n" for step, values in steps.items())
    assert read_back(write(tmp_path, text)) == steps


@SHARED_FOLDER
@given(
    steps=steps,
    separator=st.sampled_from(",;\t"),
    has_mark=st.booleans(),
    has_decimal_comma=st.booleans(),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_tables_are_read_back(
    tmp_path: Path,
    steps: dict[int, dict[str, float]],
    separator: str,
    has_mark: bool,
    has_decimal_comma: bool,
    quoting: Literal[0, 1],
) -> None:
    columns = sorted({name for values in steps.values() for name in values})
    text = io.StringIO()
    rows = csv.writer(text, delimiter=separator, quoting=quoting)
    rows.writerow(["step", *columns])
    for step, values in steps.items():
        cells = [str(values.get(name, "")) for name in columns]
        rows.writerow(
            [step, *(cell.replace(".", ",") if has_decimal_comma and separator != "," else cell for cell in cells)]
        )
    assert read_back(write(tmp_path, "\ufeff" * has_mark + text.getvalue())) == steps


@SHARED_FOLDER
@given(steps=steps, as_tensor=st.booleans())
def test_events_are_read_back(tmp_path: Path, steps: dict[int, dict[str, float]], as_tensor: bool) -> None:
    content = log_samples.FILE_VERSION
    content += b"".join(log_samples.event(step, values, as_tensor=as_tensor) for step, values in steps.items())
    assert read_back(write(tmp_path, content)) == steps


def read_back(path: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for step, metric, value in frame_of(path)[["step", "metric", "value"]].itertuples(index=False):
        found.setdefault(step, {})[metric] = value
    return found
