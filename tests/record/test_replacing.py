"""Files that are replaced: the old or the new content is there at any moment, and nothing beside it."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from synthetic_run import SyntheticRun

from placebench.errors import UsageError
from placebench.record.writing import replacing, replacing_output, write_atomically
from placebench.report.build import build_report


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
def test_what_is_broken_off_leaves_the_old_content_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def break_off() -> None:
        with replacing(path) as scratch:
            scratch.write_text("half of the n")
            raise error

    with pytest.raises(type(error)):
        break_off()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with replacing(path) as scratch:
        scratch.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_what_is_made_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", "text")
    (tmp_path / "other").touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_a_user_names_stays_the_link_or_the_pipe_that_it_is(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("file")
    os.mkfifo(pipe)
    for content in (b"one", b"other"):
        with replacing_output(link) as scratch:
            scratch.write_bytes(content)
        assert (tmp_path / "file").read_bytes() == content
    with ThreadPoolExecutor() as reading:
        read = reading.submit(pipe.read_bytes)
        with replacing_output(pipe) as scratch:
            scratch.write_bytes(b"text")
        assert read.result() == b"text"
    assert link.is_symlink()
    assert pipe.is_fifo()
    assert {path.name for path in tmp_path.iterdir()} == {"link", "file", "pipe"}


def test_a_report_that_cannot_be_written_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SyntheticRun(rounds=2, steps=4).write(tmp_path / "run")
    monkeypatch.setattr("placebench.report.plots.draw_plots", lambda *_: ())
    build_report(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert run / "trace.json.gz" in before

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UsageError, match="cannot write the report: No space left on device"):
        build_report(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
