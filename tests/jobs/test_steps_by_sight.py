"""Steps of a job of the user's that its log does not time, which last as their lines were seen, or times wrongly."""

import threading
import time
from pathlib import Path

import pytest
from fake_jobs import prepare, python, read_end, rows
from launching import wait_for

from placebench.errors import JobExit
from placebench.jobs import bridge
from placebench.jobs.log_sources import LogSources
from placebench.record.folder import Trial
from placebench.record.job_record import LogRecord
from placebench.record.launch_file import LaunchFile

pytestmark = pytest.mark.usefixtures("bridge_in_this_process")


def flags_of(trial: Trial) -> dict[str, str]:
    record = LogRecord.read(trial)
    assert record
    return {flag.name: flag.text for flag in record.flags}


def test_a_step_that_the_log_times_as_nothing_lasts_as_it_was_seen(tmp_path: Path) -> None:
    text = """
import time
for step in range(1, 6):
    time.sleep(0.05)
    print(f"step:{step} - timing_s/step:{0.0 if step == 3 else 0.05}", flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), devices=1, steps=5)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    times = [row["timing_s/step"] for row in rows(trial)]
    assert [took for step, took in enumerate(times, start=1) if step != 3] == [0.05] * 4
    assert 0 < times[2] < 1
    told = flags_of(trial)["step-time"]
    assert told.startswith("the log times other steps, but not step 3: such a step lasts from when one line was")
    assert "to the next, give or take" in told


def test_steps_whose_lines_come_together_share_the_time(tmp_path: Path) -> None:
    text = """
import time
for step in range(1, 9, 2):
    time.sleep(0.6)
    print(f"step:{step} - loss:0.1\\nstep:{step + 1} - loss:0.1", flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), devices=1, steps=8)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    times = [row["timing_s/step"] for row in rows(trial)]
    assert times[2::2] == pytest.approx(times[3::2])
    assert sum(times[2:]) == pytest.approx(1.8, abs=0.6)
    assert flags_of(trial)["step-time"].startswith("the log does not time its steps: ")


def test_a_last_line_without_an_end_is_a_step_that_ended_when_it_came(tmp_path: Path) -> None:
    trial = prepare(tmp_path, "true", devices=1, steps=2)
    trial.log.write_text("step:1 - loss:0.1\nstep:2 - loss:0.1")
    job, lock = LaunchFile.read(trial.launch_file).job, threading.Lock()
    assert job
    sources = LogSources(trial, job, {}, lock)
    sources.find()

    def is_seen() -> bool:
        with lock:
            sources.look(time.monotonic())
            return sources.choose(time.monotonic(), ends=True) is not None

    wait_for(is_seen)
    before_end = time.monotonic()
    sources.finish()
    chosen = sources.choose(time.monotonic(), ends=True)
    assert chosen
    assert [*chosen.ended] == [1, 2]
    assert chosen.ended[2] < before_end


@pytest.mark.parametrize("code", [0, 3])
def test_a_last_line_without_an_end_may_be_cut_off_where_the_command_has_failed(tmp_path: Path, code: int) -> None:
    text = f"""
print("step:1 - timing_s/step:0.5\\nstep:2 - timing_s/step:0.5", end="", flush=True)
raise SystemExit({code})
"""
    trial = prepare(tmp_path, *python(tmp_path, text), devices=1, steps=2)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert [row["timing_s/step"] for row in rows(trial)] == [0.5, 0.5]
    told = "the last line has no line end: its last number may be cut off"
    assert flags_of(trial).get("open-end") == (told if code else None)


def test_steps_that_are_all_seen_at_once_are_refused_with_what_to_do(tmp_path: Path) -> None:
    text = """
import time
time.sleep(0.2)
print("\\n".join(f"step:{step} - loss:0.1" for step in range(1, 6)), flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), devices=1, steps=5)
    assert bridge.main(str(trial.path)) == JobExit.FAILED
    message = read_end(trial)["message"]
    assert message.startswith("all 5 steps were seen at once, so nothing tells how long each took")
    assert "grep --line-buffered" in message


@pytest.mark.parametrize(
    ("tokens", "told"),
    [(1000, None), (-5, "no throughput: the log has perf/total_num_tokens, but no step has a time")],
)
def test_tokens_of_steps_that_the_log_does_not_time_count(tmp_path: Path, tokens: int, told: str | None) -> None:
    text = f"""
import time
for step in range(1, 4):
    time.sleep(0.2)
    print(f"step:{{step}} - actor/lr:0.1 - perf/total_num_tokens:{tokens}", flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), devices=1, steps=3)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert [row.get("perf/total_num_tokens") for row in rows(trial)] == [None if told else tokens] * 3
    texts = flags_of(trial)
    assert texts["step-time"].startswith("the log does not time its steps: a step lasts from when one line was")
    assert "to the next, the first from the command's start, give or take" in texts["step-time"]
    assert texts.get("no-tokens") == told


@pytest.mark.parametrize(("seconds", "is_told"), [(400, True), (0.01, False)])
def test_a_log_with_more_time_than_has_passed_is_told(tmp_path: Path, seconds: float, is_told: bool) -> None:
    text = f"""
for step in range(1, 4):
    print(f"step:{{step}} - timing_s/step:{seconds}", flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), devices=1, steps=3)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    told = flags_of(trial).get("clock", "")
    assert told.startswith("the log's steps take 1,200.0 s together, but only ") == is_told
    assert told.endswith(" s had passed: their times are not seconds, or overlap") == is_told
