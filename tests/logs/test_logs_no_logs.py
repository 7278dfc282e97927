"""Files that are no logs: what they are is said in one line, early, and reading that takes long says what it is at."""

import bz2
import gzip
import json
import lzma
import os
import pty
import re
import socket
import threading
import zipfile
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from launching import wait_for
from log_reading import SHARED_FOLDER, frame_of, write
from log_samples import SAMPLES
from pandas.testing import assert_frame_equal

from placebench.cli import main
from placebench.commands.console import progress_on_stderr
from placebench.errors import UsageError
from placebench.logs import progress
from placebench.logs.read import scan_log
from placebench.logs.run import read_run

STEPS = b"".join(b"step:%d - timing_s/gen:1.5 - timing_s/step:2.5\n" % step for step in range(1, 6))
NULS = bytes(1 << 20)


def zipped(content: bytes) -> bytes:
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.log", content)
    return stream.getvalue()


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, "zstd", asbytes=True))


@pytest.mark.parametrize(
    ("packer", "pack"), [("zip", zipped), ("xz", lzma.compress), ("bzip2", bz2.compress)], ids=["zip", "xz", "bzip2"]
)
def test_what_is_packed_otherwise_is_named(tmp_path: Path, packer: str, pack: Callable[[bytes], bytes]) -> None:
    for content in (pack(STEPS), pack(NULS), gzip.compress(pack(STEPS))):
        with pytest.raises(UsageError, match=f"is packed by {packer}, which placebench cannot read: unpack it"):
            scan_log(write(tmp_path, content))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_binary_content_is_given_up_early(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = write(tmp_path, pack(NULS * 40))
    with pytest.raises(UsageError, match=r"the file is binary: its first 1[67] MiB have bytes that no text has"):
        scan_log(path)
    with pytest.raises(UsageError, match=r"the file is binary: its first 1[67] MiB"):
        scan_log(path, log_format="verl")


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_text_that_unpacks_to_too_much_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr("placebench.logs.source.UNPACKED_BYTES", 1 << 20)
    path = write(tmp_path, pack(b"loading checkpoint shard\n" * 300_000))
    with pytest.raises(UsageError, match=r"unpacks to over 100 times its size, as no log does: its first \d MiB have"):
        scan_log(path)


def test_a_line_without_an_end_and_too_many_metrics_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placebench.logs.source.UNBROKEN_BYTES", 1 << 25)
    with pytest.raises(UsageError, match="the file has a line of over 32 MiB, as no log has"):
        scan_log(write(tmp_path, b"a" * (3 << 24)))
    many = " - ".join(f"timing_s/p{number}:1.5" for number in range(10_001))
    with pytest.raises(UsageError, match="10,001 metrics in 1 steps are too many: a metric needs one name in all"):
        read_run([write(tmp_path, f"step:1 - {many}\n")])


PIECES: dict[str, Callable[[int, str], str]] = {
    "verl": lambda step, metric: f"step:{step} - timing_s/{metric}:1.5 - timing_s/step:2.5\n",
    "verl-jsonl": lambda step, metric: f'{{"step": {step}, "data": {{"timing_s/{metric}": 1.5}}}}\n',
    "jsonl": lambda step, metric: f'{{"step": {step}, "time/{metric}": 1.5}}\n',
    "openrlhf": lambda step, metric: f"Global step {step}: {{'timing/{metric}': 1.5}}\n",
}
MANY = [f"p{number}" for number in range(1500)]
WIDE = {
    "verl": "step:1 - " + " - ".join(f"timing_s/{name}:1.5" for name in MANY) + "\n",
    "verl-jsonl": json.dumps({"step": 1, "data": dict.fromkeys(MANY, 1.5)}) + "\n",
    "openrlhf": f"Global step 1: {dict.fromkeys(MANY, 1.5)}\n",
    "csv": f"step,{','.join(MANY)}\n1{',1.5' * len(MANY)}\n",
}


@pytest.mark.parametrize("name", PIECES)
def test_metrics_without_number_over_the_steps_end_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("placebench.logs.table.NAME_LIMIT", 1000)
    text = "".join(PIECES[name](step, metric) for step, metric in enumerate(MANY))
    with pytest.raises(UsageError, match=r"line 1,00[0-9]: over 1,000 metrics, or sets of them, so far:"):
        scan_log(write(tmp_path, text), log_format=name)


@pytest.mark.parametrize("name", WIDE)
def test_metrics_without_number_in_a_line_end_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("placebench.logs.table.NAME_LIMIT", 1000)
    with pytest.raises(UsageError, match=r": line 1: over 1,000 metrics, or sets of them, so far: a metric needs"):
        scan_log(write(tmp_path, WIDE[name]))


def test_a_line_that_is_too_long_for_a_step_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BLOCK_BYTES", "MAX_LINE_BYTES"):
        monkeypatch.setattr(f"placebench.logs.source.{name}", 1 << 12)
    monkeypatch.setattr("placebench.logs.jsonl.MAX_LINE_BYTES", 1 << 12)
    monkeypatch.setattr("placebench.logs.console.MAX_TEXT_BYTES", 1 << 12)
    with pytest.raises(UsageError, match=r"beginning with .*; a line has 0 MiB, as no step has"):
        scan_log(write(tmp_path, WIDE["openrlhf"]))
    with pytest.raises(UsageError, match="line 1 is longer than 0 MiB, as no step is"):
        scan_log(write(tmp_path, WIDE["verl-jsonl"]))


def test_zeros_before_or_behind_steps_hide_none(tmp_path: Path) -> None:
    # What a writer leaves whose file was emptied under it, and what a file system leaves after a crash.
    expected = frame_of(write(tmp_path, STEPS, "plain.log"))
    assert_frame_equal(frame_of(write(tmp_path, NULS * 3 + b"\n" + STEPS)), expected)
    assert_frame_equal(frame_of(write(tmp_path, gzip.compress(STEPS + NULS * 40))), expected)


TEXTS = {name: content for name, (known, content) in SAMPLES.items() if known != "tensorboard"} | {"verl": STEPS}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("name", TEXTS)
def test_any_encoding_with_its_mark_is_read(tmp_path: Path, name: str, encoding: str) -> None:
    text = TEXTS[name].decode().removeprefix("\ufeff")
    expected = frame_of(write(tmp_path, text, "plain.log"))
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    assert_frame_equal(frame_of(write(tmp_path, (mark + text).encode(encoding), "marked.log")), expected)


@SHARED_FOLDER
@given(text=st.text(st.characters(exclude_characters="\0"), max_size=200), cut=st.integers(0, 3))
def test_any_text_in_utf_16_is_read_or_refused(tmp_path: Path, text: str, cut: int) -> None:
    content = (text + "\n").encode("utf-16", "surrogatepass") + STEPS.decode().encode("utf-16-le")
    assert scan_log(write(tmp_path, content[: len(content) - cut])).table.lines >= 4


@pytest.mark.parametrize(
    "name",
    [
        "socket",
        "loop",
        "/dev/zero",
        "folder",
        pytest.param("secret", marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")),
    ],
)
def test_what_cannot_be_read_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        (tmp_path / "secret").touch(mode=0)
        result = CliRunner().invoke(main, ["compare", name])
    assert result.exit_code == 2
    assert re.fullmatch(
        rf"placebench: {name}: (is a socket, not a log file|cannot be read: (Too many levels of symbolic links|"
        r"Permission denied)|is a device, not a log file|is a directory: name a log file in it)\n",
        result.stderr,
    )


def test_reading_that_takes_long_says_what_it_is_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.01)
    monkeypatch.setattr(progress, "NEXT_S", 0.01)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said = ""

    def tells() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return "no step so far" in said

    def write_late() -> None:
        with pipe.open("wb") as stream:
            wait_for(tells)
            stream.write(STEPS)

    writer = threading.Thread(target=write_late)
    writer.start()
    with progress_on_stderr():
        assert scan_log(pipe).table.lines == 5
    writer.join()
    assert said.startswith(f"reading {pipe}: 0 MiB, no step so far\n")


def test_on_a_terminal_progress_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    monkeypatch.setattr(progress, "NEXT_S", 0.01)
    master, slave = pty.openpty()
    told = threading.Event()

    def state() -> str:
        told.set()
        return "reading a.log"

    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr("sys.stderr", terminal)
        with progress_on_stderr(), progress.telling(state):
            assert told.wait(20)
    shown = b""
    # What was written comes in pieces; where the other end is closed and all is read, Linux says EIO.
    with suppress(OSError):
        while piece := os.read(master, 1 << 16):
            shown += piece
    os.close(master)
    assert shown.startswith(b"\r\x1b[2Kreading a.log")
    assert shown.endswith(b"\r\x1b[2K")
    assert b"\n" not in shown
