import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import SyntheticRun

from placebench.record.folder import Status, Trial
from placebench.record.progress import DeviceLoad, LaunchPosition, LaunchState, position_of, time_left
from placebench.record.run_file import LaunchWall, RunFile
from placebench.record.writing import append_jsonl, write_json
from placebench.run.display import LiveDisplay, PlainDisplay, open_display
from placebench.run.watch import TrialWatch
from placebench.spec.text import format_bytes, format_seconds

POSITION = LaunchPosition(2, 4, 1, 2, "split", 10, {"GPU-1234": "gpu:0"})


def state(step_times: Sequence[float] = (), *, elapsed: float = 0.0, silent: float = 0.0, step: int = 3) -> LaunchState:
    loads = (DeviceLoad("GPU-1234", 0.42, 3 << 30), DeviceLoad("controller", 0.1, 1 << 20))
    return LaunchState("step", step, ("update_actor", "update_critic"), tuple(step_times), loads, elapsed, silent)


def wall(total: float, after: float = 0.0) -> LaunchWall:
    return LaunchWall(total_s=total, before_steps_s=0.0, steps_s=total - after, after_steps_s=after, cleanup_s=0.0)


def test_devices_of_several_nodes_are_shown_with_their_node(tmp_path: Path) -> None:
    record = RunFile.read(SyntheticRun().write(tmp_path / "run") / "run.json")
    assert position_of(record, 1, "split").labels == {"cpu:0": "cpu:0", "cpu:1": "cpu:1"}
    here, there = record.devices
    apart = record.model_copy(update={"devices": (here, replace(there, node="other"))})
    assert position_of(apart, 1, "split").labels == {"cpu:0": "bench/cpu:0", "cpu:1": "other/cpu:1"}


def test_nothing_is_known_before_the_first_step_of_the_first_launch() -> None:
    assert time_left({}, "split", state(elapsed=9), 10, ["standard"]) is None


def test_the_first_launch_tells_from_its_own_steps() -> None:
    assert time_left({}, "split", state([2, 1, 1], elapsed=14), 10, []) == 7
    assert time_left({}, "split", state([2, 1, 1], elapsed=14), 10, ["standard", "split"]) == 7 + 2 * 21


def test_later_launches_tell_from_finished_ones() -> None:
    finished = {"standard": [wall(20, 2), wall(30, 4)], "split": [wall(40, 3)]}
    assert time_left(finished, "split", state(elapsed=15), 10, ["standard"]) == 25 + 25
    assert time_left(finished, "split", state(elapsed=99), 10, []) == 0
    assert time_left(finished, "split", state([1.0] * 8, elapsed=30), 10, ["split"]) == 2 + 3 + 40
    assert time_left({"standard": [wall(20)]}, "split", state(elapsed=5), 10, ["split"]) == 15 + 20


@given(
    st.lists(st.floats(0.1, 100), max_size=10),
    st.floats(0, 1000),
    st.dictionaries(st.sampled_from(["standard", "split"]), st.lists(st.floats(1, 1000).map(wall), max_size=3)),
    st.lists(st.sampled_from(["standard", "split"]), max_size=5),
)
def test_the_time_left_is_unknown_or_not_negative_and_grows_with_the_work(
    steps: list[float], elapsed: float, finished: dict[str, list[LaunchWall]], remaining: list[str]
) -> None:
    left = time_left(finished, "split", state(steps, elapsed=elapsed), 10, remaining)
    more = time_left(finished, "split", state(steps, elapsed=elapsed), 10, [*remaining, "standard"])
    assert (left is None) == (more is None) == (not steps and not any(finished.values()))
    assert left is None or more is None or 0 <= left <= more


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (8.26, "8.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1:00 min"),
        (245, "4:05 min"),
        (3599.6, "1:00 h"),
        (3725, "1:02 h"),
    ],
)
def test_seconds_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_bytes_for_people() -> None:
    assert [format_bytes(size) for size in (1 << 20, 1536 << 20, 80 << 30)] == ["1 MiB", "1,536 MiB", "80.0 GiB"]


def test_plain_lines_name_launch_step_and_time_left() -> None:
    out = StringIO()
    with PlainDisplay(out, pause_s=0, silence_s=0) as display:
        display.begin(POSITION)
        display.update(state([1.5]), 75)
        display.update(state([1.5], silent=4), None)
        display.end(Status.DONE, 12.34, None)
        display.end(Status.OOM, 5, "no memory")
        display.note("look out")
    assert out.getvalue().splitlines() == [
        "[2/4] round 1 split: start",
        "[2/4] round 1 split: step 1/10 1.5 s, about 1:15 min left",
        "[2/4] round 1 split: step 3/10: update_actor + update_critic, 4.0 s so far",
        "[2/4] round 1 split: done after 12.3 s",
        "[2/4] round 1 split: oom after 5.0 s: no memory",
        "note: look out",
    ]


def test_plain_lines_are_few_and_the_last_step_is_among_them() -> None:
    out = StringIO()
    display = PlainDisplay(out, pause_s=60)
    display.begin(POSITION)
    for done in range(1, 11):
        display.update(state([1.0] * done), None)
    assert re.findall(r"step (\d+)/10", out.getvalue()) == ["10"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_the_live_display_shows_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    with LiveDisplay(out, interval_s=0) as display:
        display.begin(POSITION)
        display.update(state([1.5, 1.25]), 75)
        drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
        display.end(Status.FAILED, 5, "a [bold] reason")
    for words in (
        "round 1/2  split",
        "launch 2 of 4",
        "about 1:15 min left",
        "step 3/10: update_actor + update_critic",
        "last step 1.2 s",
        "gpu:0",
        "42%",
        "3,072 MiB",
    ):
        assert words in drawn
    assert "controller" not in drawn
    end = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "2/4 round 1 split failed after 5.0 s: a [bold] reason" in end


@pytest.mark.parametrize(
    ("stream", "ci", "term", "live"),
    [
        (Terminal(), "", "xterm", True),
        (Terminal(), "false", "xterm", True),
        (Terminal(), "true", "xterm", False),
        (Terminal(), "", "dumb", False),
        (StringIO(), "", "xterm", False),
    ],
)
def test_the_display_fits_where_it_is_shown(
    stream: StringIO, ci: str, term: str, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("TERM", term)
    with open_display(stream) as display:
        display.begin(POSITION)
        display.update(state([1.0] * 10), None)
    assert ("\x1b[?25l" in stream.getvalue()) == live


class Gone(StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


class GoneTerminal(Gone, Terminal):
    pass


@pytest.mark.parametrize("stream", [Gone, GoneTerminal])
def test_a_display_whose_reader_is_gone_falls_silent(stream: type[Gone], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "")
    monkeypatch.setenv("TERM", "xterm")
    with open_display(stream()) as display:
        display.begin(POSITION)
        display.update(state([1.0] * 10), 1)
        display.end(Status.DONE, 1, None)
        display.note("unheard")


def test_a_watch_reads_what_is_new_and_tells_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    trial = Trial(tmp_path)
    watch = TrialWatch(trial)
    now[0] += 5
    first = watch.read()
    assert (first.stage, first.step, first.step_times, first.elapsed_s, first.silent_s) == ("", 0, (), 5, 5)
    write_json(trial.progress, {"stage": "step", "step": 1, "running": ["gen"], "wall": 1.0})
    with trial.steps.open("a") as steps, trial.device_samples.open("a") as samples:
        append_jsonl(steps, {"step": 1, "metrics": {"timing_s/step": 1.5}})
        steps.write('{"step": 2, "metr')
        append_jsonl(samples, {"kind": "header"})
        append_jsonl(samples, {"kind": "sample", "device": "cpu:0", "util": None, "memory_bytes": None})
        append_jsonl(samples, {"kind": "sample", "device": "cpu:0", "util": 0.5, "memory_bytes": 7})
        now[0] += 5
        steps.flush()
        second = watch.read()
        assert (second.stage, second.step, second.running, second.silent_s) == ("step", 1, ("gen",), 0)
        assert second.step_times == (1.5,)
        assert second.loads == (DeviceLoad("cpu:0", 0.5, 7),)
        now[0] += 5
        trial.log.write_text("chatter is no progress")
        assert watch.read().silent_s == 5
        steps.write('ics": {"timing_s/step": 2.5}}\n')
    third = watch.read()
    assert (third.step_times, third.silent_s) == ((1.5, 2.5), 0)
