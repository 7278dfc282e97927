"""Logs that still grow: every byte is read once, whole steps are seen, and the command redraws until it is stopped."""

import gzip
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from codecs import BOM_UTF8
from io import BufferedReader
from pathlib import Path

import pandas as pd
import psutil
import pytest
from click.testing import CliRunner
from launching import Screen, wait_for
from log_samples import SAMPLES
from pandas.testing import assert_frame_equal
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.errors import UsageError
from placebench.logs.follow import GrowingLog
from placebench.logs.run import read_run, run_of_logs

pytestmark = pytest.mark.usefixtures("own_temp")

LOCK = threading.Lock()
GROWING = [name for name in SAMPLES if name != "trl-state"]


def line(step: int, seconds: float) -> str:
    return f"step:{step} - timing_s/gen:{seconds / 2} - timing_s/step:{seconds}\n"


def lines(first: int, last: int, seconds: float = 2.0) -> str:
    return "".join(line(step, seconds) for step in range(first, last + 1))


def steps_of(log: GrowingLog) -> list[int]:
    with LOCK:
        return [] if log.log is None else sorted(set(log.log.table.frame("x")["step"]))


@pytest.mark.parametrize("sample", GROWING)
def test_a_log_that_grew_in_pieces_is_the_log(tmp_path: Path, sample: str) -> None:
    known, content = SAMPLES[sample]
    whole, grown = tmp_path / "whole", tmp_path / "grown"
    whole.write_bytes(content)
    grown.write_bytes(b"")
    expected = read_run([whole])
    lock = threading.Lock()
    with GrowingLog(grown, lock, log_format=known, poll_s=0.01) as log, grown.open("ab", buffering=0) as stream:
        for begin in range(0, len(content), 97):
            stream.write(content[begin : begin + 97])
            time.sleep(0.002)

        def frame() -> pd.DataFrame:
            with lock:
                return settled(pd.DataFrame() if log.log is None else run_of_logs((log.log,)).metrics)

        wait_for(lambda: frame().count().sum() == settled(expected.metrics).count().sum())
        assert_frame_equal(frame(), settled(expected.metrics))


def settled(frame: pd.DataFrame) -> pd.DataFrame:
    """All but the last step: some formats show only by the next step that a step is whole."""
    kept: pd.DataFrame = frame[frame.index < 3]
    return kept


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("starting\n" + lines(1, 2) + "step:3 - timing_s/gen:1")
    with GrowingLog(path, LOCK, poll_s=0.01) as log:
        wait_for(lambda: steps_of(log) == [1, 2])
        time.sleep(0.05)
        assert steps_of(log) == [1, 2]
        with path.open("a") as stream:
            stream.write("00.0\n")
        wait_for(lambda: steps_of(log) == [1, 2, 3])
        assert log.log is not None
        frame = log.log.table.frame("x")
        assert frame.loc[frame["step"] == 3, "value"].tolist() == [100.0]


def test_the_sign_of_utf_8_hides_no_step_of_a_growing_log(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(BOM_UTF8[:2])
    with GrowingLog(path, LOCK, poll_s=0.01) as log, path.open("ab", buffering=0) as stream:
        time.sleep(0.05)
        stream.write(BOM_UTF8[2:] + lines(1, 2).encode())
        wait_for(lambda: steps_of(log) == [1, 2])


def test_a_log_that_is_written_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 9))
    with GrowingLog(path, LOCK, poll_s=0.01) as log:
        wait_for(lambda: len(steps_of(log)) == 9)
        path.write_text(lines(1, 2))
        wait_for(lambda: steps_of(log) == [1, 2])


@pytest.mark.parametrize("is_deleted", [True, False])
@pytest.mark.parametrize("keeps_its_inode", [True, False])
def test_a_log_that_is_rotated_goes_on(tmp_path: Path, is_deleted: bool, keeps_its_inode: bool) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 9) + "step:10 - timing_s/gen:1")
    with GrowingLog(path, LOCK, poll_s=0.01) as log:
        for first in (10, 20, 30):
            wait_for(lambda: steps_of(log) == list(range(1, first)))  # noqa: B023 - called in this turn
            if keeps_its_inode:
                path.write_text("")
            elif is_deleted:
                path.unlink()
            else:
                path.rename(tmp_path / "train.log.1")
            with path.open("a") as stream:
                stream.write(line(first, 3.0))
                stream.flush()
                # A file that has grown beyond its former size before anybody looks has not been emptied.
                wait_for(lambda: steps_of(log) == list(range(1, first + 1)))  # noqa: B023 - called in this turn
                stream.write(lines(first + 1, first + 9, 3.0))
        wait_for(lambda: steps_of(log) == list(range(1, 40)))
        assert log.log is not None
        assert not log.log.flags


def test_what_is_written_just_before_a_log_is_put_aside_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, look = tmp_path / "train.log", GrowingLog._is_another

    def rotate_first(self: GrowingLog, stream: BufferedReader, position: int) -> bool:
        if path.read_text() == lines(1, 3):
            with path.open("a") as written:
                written.write(lines(4, 5))
            path.rename(tmp_path / "train.log.1")
            path.write_text(lines(6, 7))
        return look(self, stream, position)

    monkeypatch.setattr(GrowingLog, "_is_another", rotate_first)
    path.write_text(lines(1, 3))
    with GrowingLog(path, LOCK, poll_s=0.01) as log:
        wait_for(lambda: steps_of(log) == [1, 2, 3, 4, 5, 6, 7])


def test_a_rotated_log_may_become_another(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(1, 9))
    with GrowingLog(path, LOCK, poll_s=0.01) as log:
        wait_for(lambda: len(steps_of(log)) == 9)
        path.unlink()
        path.write_text(lines(1, 2))
        wait_for(lambda: steps_of(log) == [1, 2])
        path.unlink()
        path.write_bytes(SAMPLES["prime-rl, metrics.jsonl"][1])
        wait_for(lambda: steps_of(log) == [1, 2, 3])
        assert log.log is not None
        assert log.log.format.name == "jsonl"


def test_a_log_that_breaks_while_it_grows_says_where(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "timing_s/step": 2.0}\n')
    with GrowingLog(path, LOCK, poll_s=0.01) as log:
        wait_for(lambda: log.log)
        with path.open("a") as stream:
            stream.write('not JSON\n{"step": 2, "timing_s/step": 2.0}\n')

        def refused() -> bool:
            try:
                return log.log is None
            except UsageError as error:
                return "line 2" in str(error)

        wait_for(refused)


def test_an_error_that_nobody_expected_reaches_whoever_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object, **__: object) -> None:
        raise ValueError("a reader's mistake")

    monkeypatch.setattr("placebench.logs.follow.fill_table", fill)
    path = tmp_path / "train.log"
    path.write_text(lines(1, 3))
    with GrowingLog(path, LOCK, poll_s=0.01) as log:
        log.finish()
        for look in (lambda: log.log, lambda: log.steps):
            with pytest.raises(ValueError, match="a reader's mistake"):
                look()


@pytest.mark.parametrize(("last", "is_open"), [("bye", False), (line(3, 2.0).rstrip(), True), ("step:3 - timi", False)])
def test_a_last_line_without_an_end_is_read_when_nobody_writes_any_longer(
    tmp_path: Path, last: str, is_open: bool
) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 2) + last)
    with GrowingLog(path, LOCK, poll_s=0.01) as log:
        wait_for(lambda: steps_of(log) == [1, 2])
        log.finish()
        assert steps_of(log) == ([1, 2, 3] if is_open else [1, 2])
        assert log.log is not None
        assert log.log.table.open_end == is_open


@pytest.mark.timeout(30)  # without an end it would wait for ever
def test_a_followed_comparison_ends_with_an_error_that_nobody_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object, **__: object) -> None:
        raise ValueError("a reader's mistake")

    monkeypatch.setattr("placebench.logs.follow.fill_table", fill)
    path = tmp_path / "train.log"
    path.write_text(lines(1, 3))
    result = CliRunner().invoke(main, ["compare", str(path), "--follow"])
    assert result.exit_code == 70, result.output


def test_nothing_is_left_running(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(lines(1, 3))
    before = set(threading.enumerate())
    with GrowingLog(path, LOCK, poll_s=0.01) as log:
        wait_for(lambda: steps_of(log) == [1, 2, 3])
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.log", "cannot follow it: No such file or directory"),
        (".", "is a directory: name a log file in it to follow"),
        ("pipe", "only a file can be followed: leave out --follow to read a pipe to its end"),
        ("packed.gz", "a packed log does not grow: leave out --follow"),
        ("run", "a run's folder is no log: follow trials/<trial>/steps.jsonl in it"),
        ("state.json", "trainer_state.json of TRL is rewritten as a whole each time: follow the console log"),
    ],
)
def test_what_cannot_grow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str) -> None:
    monkeypatch.chdir(tmp_path)
    SyntheticRun(rounds=1).write(Path("run"))
    os.mkfifo("pipe")
    Path("packed.gz").write_bytes(gzip.compress(lines(1, 3).encode()))
    Path("state.json").write_bytes(SAMPLES["trl-state"][1])
    result = CliRunner().invoke(main, ["compare", name, "--follow"], prog_name="placebench")
    assert result.exit_code == 2
    assert reason in result.stderr


def follow(folder: Path, *arguments: str, **options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-u", "-m", "placebench", "compare", *arguments, "--follow"]
    return subprocess.Popen(command, cwd=folder, text=True, **options)  # type: ignore[call-overload,no-any-return]


def test_off_a_terminal_it_prints_a_line_for_news_and_the_tables_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(lines(1, 4))
    (tmp_path / "b.log").touch()
    with (tmp_path / "out").open("w") as out:
        command = follow(tmp_path, "a.log", "b.log", stdout=out, stderr=subprocess.STDOUT)
        try:
            said = tmp_path / "out"
            wait_for(lambda: "waiting: b.log has no step yet" in said.read_text())
            assert said.read_text().startswith("a: 2 steps measured, step 2.00 s; waiting")
            with (tmp_path / "b.log").open("a") as stream:
                stream.write(lines(1, 2, 3.0))
                stream.flush()
                wait_for(lambda: "waiting: b has 2 steps; the first 2 are warm-up" in said.read_text())
                stream.write(lines(3, 5, 3.0))
            wait_for(lambda: "b: 3 steps measured, step 3.00 s, ratio 1.50 undecided" in said.read_text())
            command.send_signal(signal.SIGINT)
            assert command.wait(20) == 0
        finally:
            command.kill()
            command.wait()
    text = said.read_text()
    assert "Undecided whether b or a is faster: a step takes 50 % more time" in text
    assert "Traceback" not in text


def test_stopped_it_writes_its_tables_and_files_though_the_log_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(lines(1, 6))
    (tmp_path / "b.log").touch()
    with (tmp_path / "said").open("w") as out:
        command = follow(tmp_path, "a.log", "b.log", "--out", "compared", stdout=out, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: "a: 4 steps measured" in (tmp_path / "said").read_text())
            (tmp_path / "a.log").unlink()
            command.terminate()
            assert command.wait(60) == 0
        finally:
            command.kill()
            command.wait()
    said = (tmp_path / "said").read_text()
    assert "left out: b.log has no step yet" in said
    assert "a step takes 2.00 s" in said
    assert (tmp_path / "compared" / "report.html").exists()


def test_stopped_before_a_step_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    with (tmp_path / "said").open("w") as out:
        command = follow(tmp_path, "a.log", stdout=out, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: "waiting: a.log has no step yet" in (tmp_path / "said").read_text())
            command.terminate()
            assert command.wait(60) == 2
        finally:
            command.kill()
            command.wait()
    assert "placebench: nothing was measured: a.log has no step yet" in (tmp_path / "said").read_text()


def test_on_a_terminal_it_redraws_its_tables(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(lines(1, 4))
    master, slave = pty.openpty()
    screen = Screen(master)
    command = follow(tmp_path, "a.log", stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"})
    try:
        os.close(slave)
        wait_for(lambda: screen.shows("a step takes 2.00 s"))
        assert screen.shows("Ctrl-C ends it.")
        command.send_signal(signal.SIGTSTP)
        wait_for(lambda: psutil.Process(command.pid).status() == psutil.STATUS_STOPPED)
        assert screen.cursor_is_shown()
        command.send_signal(signal.SIGCONT)
        with (tmp_path / "a.log").open("a") as stream:
            stream.write(lines(5, 9, 4.0))
        wait_for(lambda: screen.shows("a step takes 4.00 s"))
        assert not screen.cursor_is_shown()
        command.send_signal(signal.SIGINT)
        assert command.wait(20) == 0
        assert screen.cursor_is_shown()
    finally:
        command.kill()
        command.wait()
        os.close(master)
