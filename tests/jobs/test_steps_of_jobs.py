"""Steps of a job of the user's: which there are, how long they took, and what is known of each."""

from itertools import pairwise
from pathlib import Path

import pytest
from fake_jobs import PLAIN, TRL, VERL, VERL_WITH_SPANS, is_gone, prepare, python, read_end, rows, write

from placebench.errors import JobExit
from placebench.jobs import bridge, log_sources, log_steps
from placebench.record.job_record import LogRecord
from placebench.record.writing import read_jsonl

pytestmark = pytest.mark.usefixtures("bridge_in_this_process")


def test_steps_of_a_job_become_rows_and_spans(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, VERL), job="verl", steps=4)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert read_end(trial)["kind"] == "done"
    found = list(read_jsonl(trial.steps))
    assert [row["step"] for row in found] == [1, 2, 3, 4]
    assert found[2]["metrics"]["timing_s/step"] == pytest.approx(0.011)
    assert found[2]["metrics"]["actor/grad_norm"] == 0.5
    assert found[2]["metrics"]["perf/total_num_tokens"] == 1000
    spans = list(read_jsonl(trial.spans))
    assert [(span["step"], span["phase"], span["device"]) for span in spans] == [
        (step, "step", "controller") for step in (1, 2, 3, 4)
    ]
    assert all(span["end_mono"] - span["start_mono"] == pytest.approx(0.011) for span in spans)
    assert all(one["end_mono"] <= other["end_mono"] for one, other in pairwise(spans))
    record = LogRecord.read(trial)
    assert record
    assert (record.framework, record.format) == ("verl", "verl-jsonl")
    assert "step-time" not in {flag.name for flag in record.flags}


def test_a_job_that_trains_on_is_ended_after_its_steps(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, TRL), job="trl", devices=1, steps=5)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    found = rows(trial)
    assert len(found) == 5
    # The log counts from the start of the run, and its first line has none before it.
    assert [row.get("perf/total_num_tokens") for row in found] == [None, 500, 500, 500, 500]
    record = LogRecord.read(trial)
    assert record
    assert {flag.name for flag in record.flags} >= {"trl-step-time", "trl-cumulative-tokens"}
    assert is_gone(tmp_path)


def test_steps_that_the_hooks_time_count_as_they_are_and_what_the_log_lacks_is_not_told(tmp_path: Path) -> None:
    text = """
from placebench_attach.spans import emit
for line in range(1, 4):
    emit("step", "timer", 10.0 * line, 10.0 * line + 5.0)
    print({"loss": 0.1, "num_tokens": 500.0 * line, "step_time": 0.01, "epoch": 0.1 * line}, flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), job="trl", devices=1)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert [row["timing_s/step"] for row in rows(trial)] == [5.0] * 3
    record = LogRecord.read(trial)
    assert record
    assert {flag.name for flag in record.flags} == {"trl-cumulative-tokens"}


@pytest.mark.parametrize(("steps", "logged", "tokens"), [(4, [2, 4], [4]), (1, [], []), (5, [2, 4], [4])])
def test_a_trainer_that_logs_every_other_step_has_all_of_them(
    tmp_path: Path, steps: int, logged: list[int], tokens: list[int]
) -> None:
    text = f"""
import pathlib, time
from placebench_attach.spans import emit
written = pathlib.Path({str(tmp_path / "trial" / "steps.jsonl")!r})
for step in range(1, {steps + 1}):
    emit("trainer_step", "timer", 10.0 * step, 10.0 * step + 5.0)
    if step % 2 == 0:
        emit("logged", "timer", 10.0 * step + 5.5, 10.0 * step + 5.5)
        print({{"loss": 0.1, "num_tokens": 250.0 * step, "step_time": 0.01, "epoch": 0.1 * step}}, flush=True)
while not written.exists() or written.read_text().count("\\n") < {steps}:
    time.sleep(0.01)  # all of them are known before it ends
"""
    trial = prepare(tmp_path, *python(tmp_path, text), job="trl", devices=1, steps=steps)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    found = rows(trial)
    assert [row["timing_s/step"] for row in found] == [5.0] * steps
    assert [step for step, row in enumerate(found, 1) if "loss" in row] == logged
    record = LogRecord.read(trial)
    assert (record.format, record.is_one_step) == ("trl" if logged else "spans", False)
    # Tokens are counted from line to line, and are those of a step, not of all since the last line.
    assert [step for step, row in enumerate(found, 1) if row.get("perf/total_num_tokens") == 250.0] == tokens


def test_steps_without_a_time_last_from_line_to_line(tmp_path: Path) -> None:
    text = f"""
import pathlib, time
steps = pathlib.Path({str(tmp_path / "trial" / "steps.jsonl")!r})
for n in range(1, 4):
    time.sleep(0.12)  # what the step takes
    print(f"step:{{n}} - loss:0.5", flush=True)
    while n < 3 and (not steps.exists() or steps.read_text().count("\\n") < n):
        time.sleep(0.01)  # a line that is read late would make the next step short
"""
    trial = prepare(tmp_path, *python(tmp_path, text), log={"format": "verl"})
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert all(row["timing_s/step"] > 0.12 for row in rows(trial)[1:])
    assert "step-time" in {flag.name for flag in LogRecord.read(trial).flags}


def test_what_is_printed_counts_where_the_named_file_does_not_come(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, PLAIN, "0.01"), log={"files": ["{folder}/never.jsonl"]})
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert len(rows(trial)) == 3


# Two processes print of each step: the one that generates, which may be ahead, and the one that trains.
TWO_PRINT = """
import sys, time
ahead, trains = int(sys.argv[1]), sys.argv[2] == "trains"
def tell(text):
    print(text, flush=True)
    time.sleep(0.15)  # long enough for it to be seen, and to be taken for all of the step
for step in range(1, ahead + 1):
    tell(f"{generated}")
for step in range(1, 4):
    step += ahead
    tell(f"{generated}")
    step -= ahead
    if trains:
        tell(f"{trained}")
"""
SLIME_LINES = {
    "generated": "perf {step}: {{'perf/rollout_time': 0.4}}",
    "trained": "perf {step}: {{'perf/train_time': 0.3, 'perf/step_time': 0.5, 'at': {time.monotonic()}}}",
}
PRIME_RL_LINES = {
    "generated": "18:15:02 SUCCESS Step {step} | 0.4s | Reward 0.1972",
    "trained": "18:15:02 SUCCESS Step {step} | 0.5s | Loss 0.1 | At {time.monotonic()}",
}


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    ("lines", "generating", "step_time"),
    [
        (SLIME_LINES, "perf/rollout_time", "perf/step_time"),
        (PRIME_RL_LINES, "orchestrator/time/step", "time/step"),
    ],
    ids=["slime", "prime-rl"],
)
def test_a_step_of_which_two_processes_print_ends_when_it_is_trained(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: dict[str, str],
    generating: str,
    step_time: str,
    ahead: int,
) -> None:
    monkeypatch.setattr(log_sources, "SETTLED_S", 0.1)
    text = TWO_PRINT.replace("{generated}", lines["generated"]).replace("{trained}", lines["trained"])
    trial = prepare(tmp_path, *python(tmp_path, text, str(ahead), "trains"))
    assert bridge.main(str(trial.path)) == JobExit.DONE
    found = list(read_jsonl(trial.steps))
    assert len(found) == 3
    for row in found:
        assert (row["metrics"][generating], row["metrics"][step_time]) == (0.4, 0.5)
        assert row["metrics"]["timing_s/step"] == 0.5
        assert row["mono"] >= row["metrics"]["at"]
    # One of which nobody prints that it trains has the steps that it has.
    alone = prepare(tmp_path / "alone", *python(tmp_path / "alone", text, str(ahead), "generates"))
    assert bridge.main(str(alone.path)) == JobExit.DONE
    assert [row[generating] for row in rows(alone)] == [0.4] * 3


# How a job begins its log where an earlier launch has left one of the same name.
BEGINNINGS = {
    "goes on with it": "",
    "empties it": "open(path, 'w').close()",
    "puts another in its place": "open(path + '~', 'w').close(); os.replace(path + '~', path)",
    "does so later": "print('step', flush=True); time.sleep(0.2); os.remove(path)",
}


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
@pytest.mark.parametrize("where", ["{folder}/../logged.jsonl", "logged.jsonl", "logged.*"])
def test_what_an_earlier_launch_has_logged_is_not_this_one_s(tmp_path: Path, beginning: str, where: str) -> None:
    text = f"""
import json, os, time
path = "logged.jsonl"
{beginning}
for step in range(1, 4):
    with open(path, "a") as log:
        log.write(json.dumps({{"step": step, "launch": 2, "timing_s/step": 0.5}}) + "\\n")
"""
    folder = tmp_path / "a[1]{round}"
    earlier = "".join(f'{{"step": {step}, "launch": 1, "timing_s/step": 0.25}}\n' for step in range(1, 9))
    write(folder, "logged.jsonl", earlier)
    trial = prepare(folder, *python(tmp_path, text), log={"files": [where]}, cwd=str(folder))
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert [(row["launch"], row["timing_s/step"]) for row in rows(trial)] == [(2, 0.5)] * 3


def test_what_comes_before_a_launch_logs_no_steps_of_it(tmp_path: Path) -> None:
    steps = "".join(f'{{"step": {step}, "timing_s/step": 0.25}}\n' for step in range(1, 9))
    before = ["sh", "-c", f"printf '{steps}' > logged.jsonl"]
    text = """
for step in range(1, 4):
    print(f'{{"step": {step}, "timing_s/step": 0.5}}', file=open("logged.jsonl", "a"), flush=True)
"""
    log = {"files": ["logged.jsonl"]}
    trial = prepare(tmp_path, *python(tmp_path, text), log=log, cwd=str(tmp_path), before=before)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert [row["timing_s/step"] for row in rows(trial)] == [0.5] * 3


def test_a_number_that_is_none_is_told_from_one_that_is_lacking(tmp_path: Path) -> None:
    text = """
import json
for step in range(1, 5):
    learned = {"loss": float("nan"), "perf/mfu": float("nan"), "kl": None} if step > 2 else {}
    print(json.dumps({"step": step, "timing_s/step": 0.5, **learned}), flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), steps=4)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert [str(row.get("loss")) for row in rows(trial)] == ["None", "None", "nan", "nan"]
    assert [str(row.get("kl")) for row in rows(trial)] == ["None", "None", "nan", "nan"]  # as writers of JSON mean null
    assert not [row for row in rows(trial) if "perf/mfu" in row]


# Steps, and what is no step of training between them: a sampled response, and the settings as they are printed.
AMONG_TEXT = """
import json, sys, time
for step in range(1, 4):
    print(json.dumps({"step": step, "timing_s/step": 0.5}))
    print(json.dumps({"lr": 1e-6}, indent=1), "of course", "{'loss': 0.1}", "", sep="\\n")
    for path in sys.argv[1:]:
        print('{"step": 1, "action": "click"}', '{"step": 2, "acti', "{}", sep="\\n", flush=True)
        with open(path, "a") as log:
            log.write(json.dumps({"step": step, "data": {"timing_s/step": 0.25}}) + "\\n")
        time.sleep(0.1)  # both are looked at meanwhile
"""


@pytest.mark.parametrize(("arguments", "format_"), [([], "jsonl"), (["{folder}/metrics.jsonl"], "verl-jsonl")])
def test_text_among_json_in_what_a_job_prints_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], format_: str
) -> None:
    monkeypatch.setattr(log_sources, "PATIENCE_S", 0.0)
    trial = prepare(tmp_path, *python(tmp_path, AMONG_TEXT, *arguments), log={"files": arguments})
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert [row["timing_s/step"] for row in rows(trial)] == [0.25 if arguments else 0.5] * 3
    assert LogRecord.read(trial).format == format_


@pytest.mark.parametrize("files", [["{folder}/metrics.jsonl"], []])
def test_what_is_printed_need_be_no_log_where_a_file_has_the_steps(tmp_path: Path, files: list[str]) -> None:
    text = """
import json, sys
print('{"log_history": []}', flush=True)
for step in range(1, 4):
    with open(sys.argv[1], "a") as log:
        log.write(json.dumps({"step": step, "data": {"timing_s/step": 0.25}}) + "\\n")
"""
    trial = prepare(tmp_path, *python(tmp_path, text, "{folder}/metrics.jsonl"), log={"files": files})
    assert (bridge.main(str(trial.path)) == JobExit.DONE) is bool(files)
    assert [row["timing_s/step"] for row in rows(trial)] == [0.25] * 3 * bool(files)
    assert files or "is rewritten as a whole each time" in read_end(trial)["message"]


def test_phases_are_on_the_devices_whose_processes_write_their_spans(tmp_path: Path) -> None:
    command = python(tmp_path, VERL_WITH_SPANS)
    trial = prepare(tmp_path, *command, job="verl", word="split:1+1", log={"files": [], "format": "verl"}, quiet=False)
    assert bridge.main(str(trial.path)) == JobExit.DONE, trial.log.read_text()
    spans = list(read_jsonl(trial.spans))
    second = [span for span in spans if span["step"] == 2]
    assert {(span["phase"], span["device"], span["pool"], span["role"]) for span in second} == {
        ("step", "controller", None, None),
        ("gen", "controller", "actor_pool", "rollout"),
        ("gen", "cpu:0", "actor_pool", "rollout"),
        *((phase, where, "actor_pool", "actor") for phase in ("old_log_prob", "update_actor") for where in BOTH[0]),
        *((phase, where, "critic_pool", "critic") for phase in ("values", "update_critic") for where in BOTH[1]),
    }
    (whole,) = (span for span in second if span["phase"] == "step")
    assert all(whole["start_mono"] <= span["start_mono"] <= span["end_mono"] <= whole["end_mono"] for span in second)
    # Each process is held to the cores of its device.
    assert {row["device"] for row in read_jsonl(trial.processes)} == {"cpu:0", "cpu:1"}


BOTH = (("controller", "cpu:0"), ("controller", "cpu:1"))


def test_a_loop_of_one_s_own_is_its_controller_and_works_on_its_device(tmp_path: Path) -> None:
    text = """
import time
from placebench_attach import span
for step in range(1, 4):
    with span("step"):
        with span("gen"):
            time.sleep(0.01)
        with span("my_update"):
            time.sleep(0.01)
    print(f"step:{step} - timing_s/step:0.02", flush=True)
"""
    trial = prepare(tmp_path, *python(tmp_path, text), devices=1, phases={"my_update": "update_actor"})
    assert bridge.main(str(trial.path)) == JobExit.DONE
    found = [(span["phase"], span["device"]) for span in read_jsonl(trial.spans) if span["step"] == 3]
    both = ("controller", "cpu:0")
    assert sorted(found) == sorted(
        [("step", "controller"), *((phase, where) for phase in ("gen", "update_actor") for where in both)]
    )


# A step is the time that it sleeps; how long it goes on after so many of them is given.
OWN_LOOP = """
import sys, time
from placebench_attach import span
for step in range(int(sys.argv[1])):
    with span("step"), span("update_actor"):
        time.sleep(0.02)
time.sleep(float(sys.argv[2]))
"""


def test_steps_that_a_loop_marks_count_where_it_logs_none(tmp_path: Path) -> None:
    done = prepare(tmp_path, *python(tmp_path, OWN_LOOP, "5", "0"), steps=4, devices=1)
    assert bridge.main(str(done.path)) == JobExit.DONE
    took = [span["end_mono"] - span["start_mono"] for span in read_jsonl(done.spans) if span["phase"] == "step"]
    assert [row["timing_s/step"] for row in rows(done)] == pytest.approx(took, rel=1e-6)
    assert min(took) >= 0.02
    phases = [(span["step"], span["phase"]) for span in read_jsonl(done.spans) if span["device"] == "controller"]
    assert sorted(phases) == sorted((step, name) for step in (1, 2, 3, 4) for name in ("step", "update_actor"))
    assert LogRecord.read(done).format == "spans"
    short = prepare(tmp_path / "short", *python(tmp_path / "short", OWN_LOOP, "2", "0"), devices=1)
    assert bridge.main(str(short.path)) == JobExit.FAILED
    assert read_end(short)["message"] == (
        "the command ended with exit code 0 after 2 of 3 steps: ask for --steps 2, or pass the number of steps to"
        " the command by {steps}"
    )


# Steps that sleep, each with one inside, in two processes.
NESTED = """
import os, time
from placebench_attach import span
is_other = os.fork() == 0
begin = time.monotonic()
for step in range(4):
    with span("step"):
        time.sleep(0.02)
        with span("step"):
            time.sleep(0.02)
with open("took", "a") as file:
    print(time.monotonic() - begin, file=file)
"""


def test_steps_within_steps_and_those_of_a_second_process_count_once(tmp_path: Path) -> None:
    trial = prepare(tmp_path, *python(tmp_path, NESTED), steps=4, devices=1)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    took = [row["timing_s/step"] for row in rows(trial)]
    assert min(took) >= 0.04
    assert sum(took) <= max(map(float, (tmp_path / "took").read_text().split()))
    flags = [flag.text for flag in LogRecord.read(trial).flags]
    assert [text.split(",")[0] for text in flags] == [
        "steps are marked within steps: only the outermost ones count",
        "several processes mark steps",
    ]


def test_a_loop_that_logs_no_steps_and_trains_on_is_ended_after_those_that_it_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_steps, "PATIENCE_S", 0.2)
    trial = prepare(tmp_path, *python(tmp_path, OWN_LOOP, "4", "300"), devices=1)
    assert bridge.main(str(trial.path)) == JobExit.DONE
    assert len(rows(trial)) == 3
    assert is_gone(tmp_path)
