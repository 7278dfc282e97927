"""Growing files are read once, a part at a time."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.record.tail import JsonlTail


def drained(tail: JsonlTail) -> list[bytes]:
    lines = tail.read_lines()
    while tail.behind:
        lines += tail.read_lines()
    return lines


@given(st.lists(st.lists(st.binary(max_size=30).filter(lambda text: not set(text) & set(b"\r\n")), max_size=6)))
def test_every_line_comes_once_however_little_is_read_at_a_time(
    tmp_path_factory: pytest.TempPathFactory, writes: list[list[bytes]]
) -> None:
    path = tmp_path_factory.mktemp("tail") / "lines.jsonl"
    whole, parts = JsonlTail(path), JsonlTail(path, 40)
    found: dict[str, list[bytes]] = {"whole": [], "parts": []}
    with path.open("ab") as stream:
        for lines in writes:
            stream.write(b"".join(line + b"\n" for line in lines) + b"begun")
            stream.flush()
            found["whole"] += drained(whole)
            found["parts"] += drained(parts)
            stream.truncate(path.stat().st_size - len(b"begun"))
            stream.seek(0, 2)
    expected = [line for lines in writes for line in lines]
    assert found == {"whole": expected, "parts": expected}


def test_a_line_that_is_longer_than_what_is_read_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"one\n" + 100 * b"x" + b"\ntwo\n")
    assert drained(JsonlTail(path, 16)) == [b"one", b"two"]


def test_what_lies_far_before_the_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(b"line %02d\n" % number for number in range(20)))
    tail = JsonlTail(path, 64)
    tail.skip_to_last(20)
    assert drained(tail) == [b"line 18", b"line 19"]


def test_a_file_that_is_written_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"one\ntwo\n")
    tail = JsonlTail(path)
    assert drained(tail) == [b"one", b"two"]
    path.write_bytes(b"new\n")
    assert drained(tail) == [b"new"]
    path.unlink()
    assert drained(tail) == []
