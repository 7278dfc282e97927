"""Finding the format, files that are no logs, JSONL, and what the frame is like."""

import gzip
import json
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import SHARED_FOLDER, frame_of

from placebench.errors import UsageError
from placebench.logs import source as log_source
from placebench.logs.read import is_timing, launch_names, scan_log
from placebench.logs.registry import FORMATS
from placebench.logs.run import read_run

CONSOLE = b"(TaskRunner pid=7) step:1 - timing_s/gen:1.5 - actor/lr:1e-06\nstep:2 - timing_s/gen:2.5 - actor/lr:1e-06\n"
VERL_JSONL = (
    b'{"step":1,"data":{"timing_s/gen":1.5,"actor/lr":1e-06}}\n'
    b'{"step":2,"data":{"timing_s/gen":2.5,"actor/lr":1e-06}}\n'
)
OWN_JSONL = (
    b'{"step": 1, "wall": 9.5, "metrics": {"timing_s/gen": 1.5, "actor/lr": 1e-06}}\n'
    b'{"step": 2, "wall": 9.5, "metrics": {"timing_s/gen": 2.5, "actor/lr": 1e-06}}\n'
)
LOGS = {"verl": CONSOLE, "verl-jsonl": VERL_JSONL, "placebench": OWN_JSONL}
ROWS = [
    ("log", 1, "timing_s/gen", 1.5),
    ("log", 1, "actor/lr", 1e-06),
    ("log", 2, "timing_s/gen", 2.5),
    ("log", 2, "actor/lr", 1e-06),
]


def write(folder: Path, content: bytes, name: str = "log.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def rows(path: Path) -> list[tuple[Any, ...]]:
    return list(frame_of(path).itertuples(index=False, name=None))


@pytest.mark.parametrize(("name", "content"), LOGS.items())
def test_the_format_is_told_by_the_content(tmp_path: Path, name: str, content: bytes) -> None:
    path = write(tmp_path, content)
    assert scan_log(path).format.name == name
    assert rows(path) == ROWS


@pytest.mark.parametrize(("name", "content"), LOGS.items())
@pytest.mark.parametrize("change", [gzip.compress, lambda text: text.replace(b"\n", b"\r\n"), bytes.rstrip])
def test_gzip_line_ends_and_a_missing_last_one(
    tmp_path: Path, name: str, content: bytes, change: Callable[[bytes], bytes]
) -> None:
    path = write(tmp_path, change(content))
    assert scan_log(path).format.name == name
    assert rows(path) == ROWS


def test_the_launch_is_named_by_the_file_or_the_caller(tmp_path: Path) -> None:
    path = write(tmp_path, CONSOLE, "split.log.gz")
    assert read_run([path]).name == "split"
    assert read_run([path], name="01-split").name == "01-split"


def test_only_wanted_metrics_are_kept(tmp_path: Path) -> None:
    log = scan_log(write(tmp_path, CONSOLE * 3), keep=is_timing)
    assert list(log.table.frame("log").itertuples(index=False, name=None)) == [ROWS[0], ROWS[2]]
    assert list(log.table.names) == ["timing_s/gen", "actor/lr"]


def test_a_step_is_found_after_much_text_and_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "BLOCK_BYTES", 16)
    noise = b"loading the checkpoint shards\n" * 50
    assert rows(write(tmp_path, noise + CONSOLE + noise)) == ROWS


def test_a_huge_line_is_read_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "BLOCK_BYTES", 64)
    monkeypatch.setattr(log_source, "MAX_LINE_BYTES", 256)
    path = write(tmp_path, CONSOLE + b"x" * 10_000 + b"\n" + CONSOLE)
    assert rows(path) == ROWS
    assert max(map(len, log_source.whole_lines(path))) < 512


def test_a_log_may_come_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "log"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(CONSOLE,))
    writer.start()
    assert rows(pipe) == ROWS
    writer.join()


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "blank": (b"\n\n \n", "found 3 lines, all blank"),
    "binary": (bytes(range(256)) * 10, "the file is binary"),
    "text": (b"\nhello\tworld\x1b[0m\nstep 1 of 3\n", "found 3 lines of text, beginning with 'hello?world?[0m'"),
    "cut gzip": (gzip.compress(CONSOLE * 100)[:-20], "gzip data is damaged or cut off"),
    "damaged gzip": (gzip.compress(CONSOLE)[:12] + b"\xff" * 40, "gzip data is damaged or cut off"),
}


@pytest.mark.parametrize(("content", "found"), BAD_FILES.values(), ids=BAD_FILES)
def test_what_is_no_log_is_named_in_one_line(tmp_path: Path, content: bytes, found: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(UsageError) as caught:
        frame_of(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert found in message
    assert message.isprintable()


def test_what_is_no_file_is_named_in_one_line(tmp_path: Path) -> None:
    for path, found in [
        (tmp_path, "is a directory"),
        (tmp_path / "none.log", "there is no such file"),
        (Path("/dev/null"), "is a device"),
        (Path("a\0b"), "cannot be read"),
        (write(tmp_path, b"") / "log", "cannot be read: Not a directory"),
    ]:
        with pytest.raises(UsageError, match=found):
            frame_of(path)


def test_a_forced_format_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"looked for: JSONL of verl's file logger"):
        frame_of(write(tmp_path, OWN_JSONL), log_format="verl-jsonl")
    with pytest.raises(UsageError, match="unknown log format 'wandb': use tensorboard, placebench, verl-jsonl, "):
        frame_of(write(tmp_path, OWN_JSONL), log_format="wandb")


def test_a_log_without_timings_says_what_it_has(tmp_path: Path) -> None:
    path = write(tmp_path, b"step:0 - val-core/acc:0.5 - val-aux/n:2\n")
    with pytest.raises(
        UsageError,
        match=r"no timings in seconds \(timing_s/…, timing/…\): found 1 step with 2 other metrics, such as val-aux/n",
    ):
        scan_log(path, keep=is_timing).timings()
    path = write(tmp_path, b"step:0 - timing_s/gen:nan\n")
    with pytest.raises(UsageError, match=r"log\.txt: no timings"):
        scan_log(path, keep=is_timing).timings()


def test_numbers_of_jsonl(tmp_path: Path) -> None:
    data = {"a": None, "b": True, "c": 10**400, "d": -(10**400), "e": "text", "f": [1.0], "g": 3}
    lines = [
        {"step": 1, "data": data},
        {"step": "2", "data": data},
        {"step": 3, "data": 4},
        {"step": True, "data": {}},
        5,
    ]
    frame = frame_of(write(tmp_path, "\n".join(map(json.dumps, lines)).encode()))
    values = dict(zip(frame["metric"], frame["value"], strict=True))
    assert math.isnan(values.pop("a"))
    assert values == {"b": 1.0, "c": math.inf, "d": -math.inf, "g": 3.0}
    assert set(frame["step"]) == {1}


def test_an_unfinished_last_line_of_jsonl_is_dropped(tmp_path: Path) -> None:
    assert rows(write(tmp_path, OWN_JSONL + b'{"step": 3, "wall": 9.5, "metr')) == ROWS


@pytest.mark.parametrize(
    "damage", [b'{"step": 3, "metr\n', b"[" * 100_000 + b"\n", b'{"step": ' + b"1" * 5000 + b"}\n"]
)
def test_a_damaged_line_of_jsonl_is_named(tmp_path: Path, damage: bytes) -> None:
    path = write(tmp_path, OWN_JSONL + b"\n" + damage + OWN_JSONL)
    with pytest.raises(UsageError, match=r"log\.txt: placebench's steps\.jsonl: line 4 is not JSON"):
        frame_of(path)


def test_launch_names_are_short_and_distinct() -> None:
    def named(*paths: str) -> tuple[str, ...]:
        return launch_names([Path(path) for path in paths])

    assert named("runs/demo.log") == ("demo",)
    assert named("runs/demo.log.gz", "runs/demo_split.log.zst") == ("demo", "demo_split")
    assert named("a/x/train.log", "a/y/train.log") == ("x/train", "y/train")
    assert named("x/train.log", "train.log") == ("x/train", "train")
    assert named("a/log.txt", "a/log.jsonl") == ("log.txt", "log.jsonl")
    assert named(".log") == (".log",)
    assert named("a.log", "a.log") == ("a", "a")


console_pieces = [b"step:", b"1", b" - ", b"a/b", b":", b"0.5", b"np.float64(", b")", b"nan", b"1e999", b"\x1b[0m"]
json_pieces = [b'{"step":1,', b'"data":{', b'"metrics":{', b'"a":', b'"\\ud800":', b"}", b"[", b"null"]
odd_pieces = [b"\n", b"\r", b" ", b"\0", b"\xff", b"\x1f\x8b", b"timing_s/gen:2"]
pieces = st.sampled_from(console_pieces + json_pieces + odd_pieces)


@SHARED_FOLDER
@given(
    content=st.binary(max_size=200) | st.lists(pieces, max_size=60).map(b"".join),
    log_format=st.sampled_from([None, *(known.name for known in FORMATS)]),
    zipped=st.booleans(),
)
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, log_format: str | None, zipped: bool) -> None:
    path = write(tmp_path, gzip.compress(content, 1) if zipped else content)
    try:
        frame = frame_of(path, log_format=log_format)
    except UsageError:
        return
    assert list(frame.columns) == ["launch", "step", "metric", "value"]
    assert not frame.duplicated(["step", "metric"]).any()
    assert frame["step"].is_monotonic_increasing


def test_a_state_of_trl_is_known_on_one_line_too(tmp_path: Path) -> None:
    history = [{"step": step, "loss": 0.1, "step_time": 3.0} for step in range(1, 4)]
    for name, content in (
        ("last", {"log_history": history, "global_step": 3}),
        ("first", {"global_step": 3, "log_history": history}),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        assert scan_log(path).format.name == "trl-state"
