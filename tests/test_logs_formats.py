"""Every format beside verl's: what is read from its sample, what is corrected, what is told."""

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import log_samples
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from placebench.compare.log_arms import arm_of_logs
from placebench.errors import UsageError
from placebench.logs import DIALECTS, FORMATS, Kind, LoggedRun, read_log, read_run, scan_log
from placebench.logs import source as log_source
from placebench.logs.facts import logged_facts
from placebench.logs.trl import steps_per_line

SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)

SLIME_TIMERS = ("generate", "wake_up", "data_preprocess", "log_probs", "actor_train", "sleep", "update_weights")


def write(folder: Path, content: bytes | str, name: str = "train.log") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def sample(folder: Path, name: str) -> LoggedRun:
    return read_run([write(folder, log_samples.SAMPLES[name][1])])


def metrics(run: LoggedRun, step: int) -> dict[str, float]:
    rows = run.frame[run.frame["step"] == step]
    return dict(zip(rows["metric"], rows["value"], strict=True))


def phases(run: LoggedRun, step: int) -> dict[str, tuple[float, str]]:
    assert run.timings is not None
    rows = run.timings[run.timings["step"] == step]
    return {
        phase: (round(seconds, 6), kind)
        for phase, seconds, kind in zip(rows["phase"], rows["seconds"], rows["kind"], strict=True)
    }


def flags(run: LoggedRun) -> set[str]:
    return {flag.name for flag in run.flags}


@pytest.mark.parametrize("name", log_samples.SAMPLES)
def test_the_format_is_told_by_the_content(tmp_path: Path, name: str) -> None:
    known, content = log_samples.SAMPLES[name]
    log = scan_log(write(tmp_path, content))
    assert log.format.name == known
    assert (sorted(set(log.table.frame("a")["step"])), log.table.damages, log.table.restarts) == ([1, 2, 3], 0, [])
    assert read_log(log.path, log_format=known).equals(read_log(log.path))


def test_every_format_has_a_sample() -> None:
    elsewhere = {"placebench", "verl", "verl-jsonl"}
    assert {known for known, _ in log_samples.SAMPLES.values()} | elsewhere == {known.name for known in FORMATS}


@pytest.mark.parametrize("name", log_samples.SAMPLES)
@pytest.mark.parametrize("pack", ["gzip", "zstd", "crlf"])
def test_packed_logs_and_other_line_ends_read_the_same(tmp_path: Path, name: str, pack: str) -> None:
    _, content = log_samples.SAMPLES[name]
    if pack == "crlf" and name == "tensorboard":
        changed = content
    elif pack == "crlf":
        changed = content.replace(b"\n", b"\r\n")
    elif pack == "gzip":
        changed = gzip.compress(content)
    else:
        stream = pa.BufferOutputStream()
        with pa.CompressedOutputStream(stream, "zstd") as packed:
            packed.write(content)
        changed = stream.getvalue().to_pybytes()
    plain, other = read_log(write(tmp_path, content)), read_log(write(tmp_path, changed, "other.log"), launch="train")
    assert other.equals(plain)


CARRIERS = ("0: ", " 12: ", "2026-08-21T17:14:19.123456789Z ", "2026-08-21T17:14:19+02:00 ", "3: 2026-08-21T17:14:19Z ")
CONSOLES = [
    name
    for name, (known, _) in log_samples.SAMPLES.items()
    if known not in {"jsonl", "tensorboard", "csv", "trl-state"}
]


@pytest.mark.parametrize("name", CONSOLES)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_what_srun_and_containers_put_before_every_line_changes_nothing(
    tmp_path: Path, name: str, carrier: str
) -> None:
    known, content = log_samples.SAMPLES[name]
    # Progress bars may or may not stand before TRL's dicts.
    for text in (content.decode(), re.sub(r".*\r", "", content.decode())):
        carried = "".join(f"{carrier}{line}\n" for line in text.split("\n")[:-1])
        log = scan_log(write(tmp_path, carried))
        assert (log.format.name, log.table.damages) == (known, 0)
        assert log.table.frame("a").equals(read_log(write(tmp_path, text, "plain.log"), launch="a"))


@pytest.mark.parametrize(("steps", "told"), [(1, "its only step is"), (8, "all its 8 steps are")])
def test_a_log_of_nothing_but_cut_off_steps_says_how_many(tmp_path: Path, steps: int, told: str) -> None:
    path = write(tmp_path, "".join(f"===== Step {step}/8 =====\n  • Loss: 0.5\n" for step in range(1, steps + 1)))
    lines = "1, 3, 5, 7, 9, …" if steps > 5 else "1"
    with pytest.raises(UsageError, match=f"{told} cut off or torn apart: at line {lines}"):
        read_log(path)


def test_zstd_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as packed:
        packed.write(log_samples.SAMPLES["skyrl"][1] * 50)
    data = stream.getvalue().to_pybytes()
    for damaged in (data[:-9], data[:30] + b"\xff" * 90):
        with pytest.raises(UsageError, match="the zstd data is damaged or cut off"):
            read_log(write(tmp_path, damaged))


@pytest.mark.parametrize("name", log_samples.SAMPLES)
def test_where_the_blocks_are_cut_makes_no_difference(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, log_samples.SAMPLES[name][1])
    whole = read_log(path)
    known = log_samples.SAMPLES[name][0]
    for size in (1, 7, 64):
        monkeypatch.setattr(log_source, "BLOCK_BYTES", size)
        assert read_log(path, log_format=known).equals(whole)


def test_openrlhf_in_turn_and_side_by_side(tmp_path: Path) -> None:
    run = sample(tmp_path, "openrlhf")
    assert phases(run, 1) == {
        "gen": (5.0, Kind.PHASE),
        "update_weights": (1.0, Kind.PHASE),
        "make_experience": (2.0, Kind.PHASE),
        "ppo_train": (3.0, Kind.PHASE),
        "step": (11.0, Kind.STEP),
    }
    assert math.isnan(metrics(run, 1)["kl"])
    assert metrics(run, 2)["log/step_seconds"] == 15.0
    assert flags(run) == {"openrlhf-step-total", "clock", "no-tokens"}
    found = phases(sample(tmp_path, "openrlhf, asynchronous"), 1)
    assert found["gen"] == (5.0, Kind.OVERLAP)
    assert "unattributed" not in found


def test_slime_waits_through_its_weight_sync(tmp_path: Path) -> None:
    run = sample(tmp_path, "slime")
    found = phases(run, 1)
    assert found["step"] == (13.0, Kind.STEP)
    assert found["train_wait"] == (10.0, Kind.PHASE)
    assert found["update_weights"] == (1.5, Kind.DETAIL)
    assert found["gen"] == (7.0, Kind.OVERLAP)
    assert found["train"] == (3.0, Kind.DETAIL)
    assert found["unattributed"] == (0.5, Kind.UNATTRIBUTED)
    assert "train/loss" not in metrics(run, 2)
    # 15 s between the lines of the sample's steps, 14 s in step 2.
    assert flags(run) == {"slime-step-time", "slime-tokens-per-gpu", "no-tokens"}


@dataclass
class Clock:
    """Time that passes only when somebody spends it, and the timers that saw it pass."""

    now: float = 0.0
    seen: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begin = self.now
        yield
        self.seen[name] = self.seen.get(name, 0.0) + self.now - begin

    def spend(self, name: str, seconds: float) -> None:
        with self.timed(name):
            self.now += seconds


@SHARED_FOLDER
@given(spent=st.fixed_dictionaries(dict.fromkeys(SLIME_TIMERS, st.integers(1, 40))))
def test_slime_steps_last_as_long_as_the_clock_says(tmp_path: Path, spent: dict[str, int]) -> None:
    """A run in slime's order: generate, then wake up and train, print, then sleep and send the weights."""
    clock, lines = Clock(), []
    for step in range(9):
        with clock.timed("train_wait"):
            clock.spend("generate", spent["generate"])
            clock.spend("wake_up", spent["wake_up"])
            clock.spend("data_preprocess", spent["data_preprocess"])
        with clock.timed("train"):
            clock.spend("log_probs", spent["log_probs"])
            clock.spend("actor_train", spent["actor_train"])
        times = {f"perf/{name}_time": clock.seen[name] for name in clock.seen if name != "generate"}
        whole = {"perf/step_time": clock.seen["train_wait"] + clock.seen["train"]}
        stamp = datetime.fromtimestamp(clock.now, UTC).strftime("%Y-%m-%d %H:%M:%S")
        lines.append(f"[{stamp}] train_metric_utils.py:44 - perf {step}: {times | whole}\n")
        clock.seen.clear()
        with clock.timed("train_wait"):
            clock.spend("sleep", spent["sleep"])
            clock.spend("update_weights", spent["update_weights"])
    run = read_run([write(tmp_path, "".join(lines))])
    assert phases(run, 5)["step"][0] == sum(spent.values())
    assert metrics(run, 5)["log/step_seconds"] == sum(spent.values())
    assert phases(run, 5)["unattributed"] == (0.0, Kind.UNATTRIBUTED)
    assert flags(run) == {"slime-step-time", "no-tokens"}


def test_a_clock_that_shows_less_than_the_step_is_told(tmp_path: Path) -> None:
    text = log_samples.SAMPLES["slime"][1].decode().replace("'perf/step_time': 1", "'perf/step_time': 3")
    (told,) = (flag.text for flag in read_run([write(tmp_path, text)]).flags if flag.name == "clock")
    assert told == (
        "the log's clock shows 15.0 s a step, its step time 34.5 s: steps overlap, or some time is counted twice"
    )


def test_skyrl_parts_are_not_added_to_the_whole(tmp_path: Path) -> None:
    run = sample(tmp_path, "skyrl")
    found = phases(run, 1)
    assert found["train_critic_and_policy"] == (5.5, Kind.DETAIL)
    assert found["update_critic"] == (2.0, Kind.PHASE)
    assert found["unattributed"] == (1.0, Kind.UNATTRIBUTED)
    assert flags(run) == {"skyrl-tokens-per-gpu", "clock", "no-tokens"}


def test_skyrl_dicts_that_fit_into_one_line(tmp_path: Path) -> None:
    run = sample(tmp_path, "skyrl, short")
    found = {"policy/final_loss": 0.3, "timing/step": 13.0, "log/step_seconds": 15.0}
    assert metrics(run, 2) | found == metrics(run, 2)
    assert (run.logs[0].table.lines, run.logs[0].table.damages) == (6, 0)


def test_areal_takes_the_step_from_the_clock(tmp_path: Path) -> None:
    run = sample(tmp_path, "areal")
    assert "step" not in phases(run, 1)
    assert phases(run, 2)["step"] == (15.0, Kind.STEP)
    assert phases(run, 2)["rollout"] == (8.0, Kind.PHASE)
    assert phases(run, 2)["update_actor"] == (3.0, Kind.PHASE)
    assert math.isnan(metrics(run, 1)["ppo_actor/loss"])
    assert flags(run) == {"areal-no-step", "areal-rollout-wait", "no-tokens"}


@pytest.mark.parametrize("name", ["nemo-rl", "tensorboard"])
def test_nemo_rl_block_and_events(tmp_path: Path, name: str) -> None:
    found = phases(sample(tmp_path, name), 2)
    assert found["gen"] == (6.0, Kind.PHASE)
    assert found["update_actor"] == (3.0, Kind.PHASE)
    assert found["step"] == (12.0, Kind.STEP)
    assert "valid_tokens_per_sec_per_gpu" not in found
    assert found["unattributed"][1] == Kind.UNATTRIBUTED


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("written", ["console", "events"])
def test_nemo_rl_validation_is_no_part_of_a_steps_work(tmp_path: Path, written: str, every: int) -> None:
    seconds = {step: 200.0 if step % every == 0 else 0.0 for step in range(1, 13)}
    if written == "console":
        content = "".join(log_samples.nemo_rl(step, validation_s=spent) for step, spent in seconds.items()).encode()
    else:
        train = {"generation": 5.0, "policy_training": 3.0}
        content = log_samples.FILE_VERSION
        for step, spent in seconds.items():
            timers = {**train, "total_step_time": 11.0 + spent}
            content += log_samples.event(step, {f"timing/train/{name}": number for name, number in timers.items()})
            if spent:
                content += log_samples.event(step, {"timing/validation/total_validation_time": spent})
    run = read_run([write(tmp_path, content)])
    assert phases(run, 4)["testing"] == (200.0, Kind.PHASE)
    shown = arm_of_logs([run]).launch_values.loc[1]
    assert shown["step_time"] < 30
    assert shown["part/testing"] == 200.0


def test_nemo_rl_nested_timers_are_details(tmp_path: Path) -> None:
    run = sample(tmp_path, "nemo-rl")
    found = phases(run, 1)
    assert found["prepare_for_generation"] == (1.5, Kind.PHASE)
    assert found["prepare_for_generation/transfer_and_update_weights"] == (1.0, Kind.DETAIL)
    assert found["unattributed"] == (1.5, Kind.UNATTRIBUTED)
    assert metrics(run, 1)["E2E (Tokens/sec/gpu)"] == 1234.5
    assert flags(run) == {"nemo-rl-nested-timers", "nemo-rl-mfu", "no-tokens"}


def test_every_trap_is_told_by_some_log(tmp_path: Path) -> None:
    told = set().union(*(flags(sample(tmp_path, name)) for name in log_samples.SAMPLES))
    rare = ("timing_s/gen,training/off_policy/lag", "timing/train/generation,ray/training_worker_idle_time_ratio")
    for names in rare:
        (tmp_path / "rare.csv").write_text(f"step,{names}\n1,2.0,0.0\n")
        told |= flags(read_run([tmp_path / "rare.csv"]))
    assert {trap.name for dialect in DIALECTS for trap in dialect.traps} <= told


@pytest.mark.parametrize("name", ["trl, quoted", "trl, plain", "trl-state"])
def test_trl_tokens_are_differences_of_a_count(tmp_path: Path, name: str) -> None:
    run = sample(tmp_path, name)
    assert phases(run, 2)["step"] == (6.0, Kind.STEP)
    tokens = run.throughput.set_index("step")
    assert math.isnan(tokens["tokens"].tolist()[0])
    assert tokens["tokens_per_s"].tolist()[1] == pytest.approx(116 / 6)
    assert {"trl-step-time", "trl-cumulative-tokens"} <= flags(run)


def test_trl_lines_of_one_generation_are_taken_together(tmp_path: Path) -> None:
    lines = []
    for step in range(1, 7):
        tokens = f"'num_tokens': {step * 100.0}, " if step % 2 else ""
        lines.append(f"{{'loss': 0.5, {tokens}'step_time': {9.0 if step % 2 else 1.0}, 'epoch': {step / 10}}}\n")
    lines.append("{'train_runtime': 30.5, 'train_steps_per_second': 0.197, 'epoch': 0.6}\n")
    throughput = read_run([write(tmp_path, "".join(lines))]).throughput.set_index("step")
    assert throughput["tokens_per_s"].dropna().to_dict() == pytest.approx({3: 20.0, 5: 20.0})


def trl_rows(first: int, last: int, every: int, *, steps: int = 100, tokens: float = 1000.0) -> list[dict[str, float]]:
    """What TRL logs every so many steps of 4 s; 250 tokens/s unless other tokens are said."""
    return [
        {"loss": 0.01, "num_tokens": tokens * step, "step_time": 4.0, "epoch": step / steps}
        for step in range(first + every, last + 1, every)
    ]


def trl_console(rows: list[dict[str, float]], steps: int = 100, runtime: float | None = 420.0, epoch: float = 1) -> str:
    """The rows as transformers 5 prints them, with the last line if the run came to its end."""
    lines = [str({name: f"{value:.4g}" for name, value in row.items()}) + "\n" for row in rows]
    if runtime is not None:
        rate = f"'train_steps_per_second': '{steps / runtime:.3f}'"
        lines.append(f"{{'train_runtime': '{runtime:.4g}', {rate}, 'train_loss': '0.1', 'epoch': '{epoch:.4g}'}}\n")
    return "".join(lines)


def trl_state(rows: list[dict[str, float]], steps: int = 100) -> str:
    history = [{**row, "step": round(row["epoch"] * steps)} for row in rows]
    return json.dumps({"best_metric": None, "log_history": history}, indent=1)


def trl_csv(rows: list[dict[str, float]], steps: int = 100) -> str:
    """As W&B exports a history: its own `_step` counts the calls."""
    lines = ["_step,train/step_time,train/num_tokens,train/global_step"]
    lines += [
        f"{at},{row['step_time']},{row['num_tokens']},{round(row['epoch'] * steps)}" for at, row in enumerate(rows)
    ]
    return "\n".join(lines) + "\n"


def trl_events(rows: list[dict[str, float]], steps: int = 100) -> bytes:
    return log_samples.FILE_VERSION + b"".join(
        log_samples.event(round(row["epoch"] * steps), {f"train/{name}": value for name, value in row.items()})
        for row in rows
    )


@pytest.mark.parametrize("every", [1, 2, 10])
@pytest.mark.parametrize("written", [trl_console, trl_state, trl_csv, trl_events])
def test_trl_rows_that_stand_for_several_steps(
    tmp_path: Path, written: Callable[[list[dict[str, float]]], str | bytes], every: int
) -> None:
    run = read_run([write(tmp_path, written(trl_rows(0, 100, every)))])
    assert run.throughput["tokens_per_s"].dropna().tolist() == pytest.approx([250.0] * (100 // every - 1))
    assert logged_facts(run)["tokens a step"] == pytest.approx(1000.0)
    assert "no-tokens" not in flags(run)


@SHARED_FOLDER
@given(
    every=st.integers(1, 12),
    lines=st.integers(4, 40),
    done=st.integers(0, 30),
    rest=st.integers(0, 11),
    overhead=st.floats(1.0, 1.9),
)
def test_trl_after_a_resume_divides_by_its_own_steps(
    tmp_path: Path, every: int, lines: int, done: int, rest: int, overhead: float
) -> None:
    """The last line divides all steps of the run by the time of those since the resume; no number is taken wrongly."""
    first, last = done * every, (done + lines) * every
    steps = last + min(rest, every - 1)
    rows = trl_rows(first, last, every, steps=steps)
    runtime = (steps - first) * 4.0 * overhead
    run = read_run([write(tmp_path, trl_console(rows, steps, runtime=runtime))])
    assert run.logs[0].table.steps_per_number in ({every} if lines >= 2 * every else {every, None})


any_number = st.one_of(st.floats(), st.floats(0, 1e3), st.sampled_from([0.0, 5e-324, 1e300, math.inf, math.nan]))


def end_of_run(runtime: float, rate: float, epoch: float) -> dict[str, float]:
    return {"train_runtime": runtime, "train_steps_per_second": rate, "epoch": epoch}


@given(
    epochs=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=6).map(sorted),
    seconds=st.lists(any_number, max_size=6),
    end=st.builds(end_of_run, any_number, any_number, any_number) | st.just({}),
)
@example([0.0, 1.0], [1.0], end_of_run(1.0, 5e-324, 1.0))
@example([0.0, 1.0], [1.0], end_of_run(1e300, 1.0, 1.0))
def test_trl_steps_per_line_is_a_whole_number_or_none(
    epochs: list[float], seconds: list[float], end: dict[str, float]
) -> None:
    found = steps_per_line(epochs, seconds, end)
    assert found is None or found >= 1


def test_trl_that_does_not_say_how_many_steps_a_line_stands_for(tmp_path: Path) -> None:
    rows = trl_rows(0, 100, 10)
    killed = trl_console(rows, runtime=None)
    stopped_early = trl_console(trl_rows(0, 50, 1), runtime=210.0, epoch=0.5)
    calls = trl_csv(rows).replace("train/global_step", "train/other")
    for text in (killed, stopped_early, calls):
        run = read_run([write(tmp_path, text)])
        assert run.throughput["tokens_per_s"].isna().all()
        (why,) = (flag.text for flag in run.flags if flag.name == "no-tokens")
        assert why.startswith("no throughput: the log does not say how many steps lie between two of its lines")


@pytest.mark.parametrize(("tokens", "steps"), [(12_345.0, 3000), (3000.0, 5000)])
def test_trl_tokens_in_four_digits_are_those_of_the_whole_span(tmp_path: Path, tokens: float, steps: int) -> None:
    rows = trl_rows(0, steps, 1, steps=steps, tokens=tokens)
    run = read_run([write(tmp_path, trl_console(rows, steps, runtime=4.2 * steps))])
    shown = arm_of_logs([run]).launch_values.loc[1, "tokens_per_s"]
    assert shown == pytest.approx(tokens / 4, rel=2e-3)
    assert logged_facts(run)["tokens a step"] == pytest.approx(tokens, rel=2e-3)


def test_trl_after_a_restart_goes_on_where_the_epoch_does(tmp_path: Path) -> None:
    epochs = enumerate([1, 2, 3, 2, 3])
    text = "".join(f"{{'loss': {at}.0, 'step_time': 1.0, 'epoch': {epoch}}}\n" for at, epoch in epochs)
    log = scan_log(write(tmp_path, text))
    frame = log.table.frame("a")
    assert frame.loc[frame["metric"] == "loss", "value"].tolist() == [0.0, 3.0, 4.0]
    assert [(restart.step, restart.line) for restart in log.table.restarts] == [(2, 4)]


def test_open_instruct_wide_and_wrapped_are_equal(tmp_path: Path) -> None:
    wide, wrapped = (sample(tmp_path, f"open-instruct, {shape}") for shape in ("wide", "wrapped"))
    assert wide.frame.equals(wrapped.frame)
    found = phases(wide, 1)
    assert found["update_actor"] == (2.8, Kind.PHASE)
    assert found["training"] == (7.9, Kind.DETAIL)
    assert found["update_weights"] == (0.61, Kind.OVERLAP)
    assert found["unattributed"] == (1.29, Kind.UNATTRIBUTED)


@pytest.mark.parametrize(("total", "idling", "trained"), [("13.10", "5.10", 7.9), ("8.19", "5.10", 2.8)])
def test_open_instruct_idled_before_it_trained(tmp_path: Path, total: str, idling: str, trained: float) -> None:
    """Unless the two exceed the step: then the training contains the idling."""
    panels = (log_samples.PACKING_PANEL.format(step=step, total=total, idling=idling) for step in range(1, 9))
    run = read_run([write(tmp_path, "".join(panels))], learner_ranks=8)
    found = phases(run, 3)
    assert found["update_actor"] == (trained, Kind.PHASE)
    assert found["trainer_idling"] == (5.1, Kind.PHASE)
    assert found["getting_response"] == (9.0, Kind.OVERLAP)
    assert found["unattributed"] == (round(float(total) - trained - 5.1, 6), Kind.UNATTRIBUTED)
    assert run.throughput["tokens"].tolist() == [1200.0] * 8
    assert flags(run) == {"open-instruct-training-waits", "open-instruct-two-decimals"}


def test_open_instruct_tokens_need_the_ranks(tmp_path: Path) -> None:
    run = sample(tmp_path, "open-instruct, wide")
    assert run.throughput["tokens"].isna().all()
    assert {"open-instruct-ranks", "open-instruct-training-waits", "no-tokens"} <= flags(run)
    told = read_run([logs.path for logs in run.logs], learner_ranks=4, devices=2).throughput
    assert told["tokens"].tolist() == [300.0] * 3
    assert told["tokens_per_s_per_device"].tolist()[0] == pytest.approx(300 / 9.19 / 2)


def test_prime_rl_trainer_and_orchestrator(tmp_path: Path) -> None:
    run = sample(tmp_path, "prime-rl")
    assert metrics(run, 2) | {"orchestrator/time/step": 125.0, "time/step": 16.2} == metrics(run, 2)
    assert metrics(run, 2)["perf/peak_memory"] == 12.5
    assert metrics(run, 2)["trainable"] == 16.0
    assert flags(run) == {"prime-rl-throughput", "no-tokens"}
    assert phases(sample(tmp_path, "prime-rl, metrics.jsonl"), 1)["update_actor"] == (6.0, Kind.PHASE)


def test_csv_names_tell_the_framework(tmp_path: Path) -> None:
    run = sample(tmp_path, "csv")
    assert run.dialect.framework == "verl"
    assert phases(run, 2) == {
        "gen": (2.5, Kind.PHASE),
        "unattributed": (3.5, Kind.UNATTRIBUTED),
        "step": (6.0, Kind.STEP),
    }


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffstep,timing_s/gen,timing_s/step\n1,1.5,2.5\n2,1.5,2.5\n",
        '\ufeff\n"step","timing_s/gen","timing_s/step"\r\n"1","1.5","2.5"\r\n"2","1.5","2.5"\r\n',
        "step;timing_s/gen;timing_s/step\n1;1,5;2,5\n2;1,5;2,5e0\n",
        "step\ttiming_s/gen\ttiming_s/step\n1\t1,5\t2.5\n2\t1,5\t2.5\n",
        '"Step","my - run - timing_s/gen","my - run - timing_s/gen__MIN","my - run - timing_s/gen__MAX",'
        '"my - run - timing_s/step"\n"1","1.5","1.0","2.0","2.5"\n"2","1.5","1.0","2.0","2.5"\n',
    ],
    ids=["mark", "mark and quotes", "semicolons", "tabs", "panel"],
)
def test_csv_as_spreadsheets_and_trackers_write_it(tmp_path: Path, content: str) -> None:
    run = read_run([write(tmp_path, content, "log.csv")])
    assert run.dialect.framework == "verl"
    assert [metrics(run, step) for step in (1, 2)] == [{"timing_s/gen": 1.5, "timing_s/step": 2.5}] * 2


def test_columns_of_several_runs_keep_their_names(tmp_path: Path) -> None:
    run = read_run([write(tmp_path, "Step,a - timing_s/gen,b - timing_s/gen,loss__MIN\n1,1.5,2.5,0.5\n")])
    assert metrics(run, 1) == {"a - timing_s/gen": 1.5, "b - timing_s/gen": 2.5, "loss__MIN": 0.5}


@pytest.mark.parametrize(
    ("row", "told"), [('1,"1,005.5"', "'1,005.5'"), ('1,"-12,005"', "'-12,005'"), ("1;1.005,5", "'1.005,5'")]
)
def test_csv_with_separators_of_thousands_is_refused(tmp_path: Path, row: str, told: str) -> None:
    header = "step;timing_s/gen" if ";" in row else "step,timing_s/gen"
    with pytest.raises(UsageError, match=f"line 2: {told} under timing_s/gen has separators of thousands"):
        read_log(write(tmp_path, f"{header}\n{row}\n"))


def test_step_time_alone_is_not_trls(tmp_path: Path) -> None:
    table = "step,step_time,{}\n1,10.0,5.0\n2,10.0,5.0\n"
    assert read_run([write(tmp_path, table.format("gen_time"), "own.csv")]).dialect.framework == "an unknown framework"
    assert read_run([write(tmp_path, table.format("num_tokens"), "trl.csv")]).dialect.framework == "TRL"


VERL = "step:{step} - timing_s/step:2.0 - perf/total_num_tokens:800 - perf/throughput:{reported}\n"


def test_rows_that_contradict_themselves_are_named(tmp_path: Path) -> None:
    text = "".join(VERL.format(step=step, reported=150.0 if step == 4 else 100.0) for step in range(1, 8))
    run = read_run([write(tmp_path, text)])
    assert run.throughput["tokens_per_s_per_device"].tolist() == [100.0] * 7
    assert run.throughput.loc[run.throughput["contradicts"], "step"].tolist() == [4]
    assert "throughput-contradicts" in flags(run)
    counted = read_run([write(tmp_path, text)], devices=8).throughput
    assert counted["contradicts"].all()
    assert counted["tokens_per_s_per_device"].tolist() == [50.0] * 7


def test_files_of_one_run_complete_each_other(tmp_path: Path) -> None:
    console = write(tmp_path, "step:1 - timing_s/gen:1.0 - timing_s/step:4.0\n")
    other = write(tmp_path, '{"step": 1, "data": {"timing_s/adv": 2.0, "timing_s/gen": 3.0}}\n', "m.jsonl")
    run = read_run([console, other])
    assert metrics(run, 1) == {"timing_s/gen": 1.0, "timing_s/step": 4.0, "timing_s/adv": 2.0}
    assert "files-disagree" in flags(run)
    with pytest.raises(UsageError, match="of different frameworks"):
        read_run([console, write(tmp_path, log_samples.SAMPLES["skyrl"][1], "sky.log")])


def test_a_folder_stands_for_its_event_files(tmp_path: Path) -> None:
    write(tmp_path, log_samples.NEMO_EVENTS, "events.out.tfevents.17.host")
    assert read_run([tmp_path]).dialect.framework == "NeMo-RL"


def verl_events(steps: range, seconds: float) -> bytes:
    """As TensorBoard's writer puts them: an event a metric."""
    return log_samples.FILE_VERSION + b"".join(
        log_samples.event(step, {f"timing_s/{name}": share * seconds})
        for step in steps
        for name, share in (("gen", 0.5), ("update_actor", 0.5), ("step", 1.0))
    )


def test_a_folder_of_a_restarted_run_reads_as_one_file_would(tmp_path: Path) -> None:
    """Also where the last event before the restart is cut off, and a start wrote nothing."""
    before, after = verl_events(range(1, 41), 10.0), verl_events(range(11, 41), 5.0)
    folder = tmp_path / "run"
    folder.mkdir()
    # In the order of names, the later one comes first.
    write(folder, after, "events.out.tfevents.1700009999.host.2.0")
    write(folder, before + before[-40:][:9], "events.out.tfevents.999999999.host.1.0")
    write(folder, log_samples.FILE_VERSION, "events.out.tfevents.1700001000.host.1.0")
    write(folder, "not an event", "notes.txt")
    run = read_run([folder])
    whole = read_run([write(tmp_path, before + after[len(log_samples.FILE_VERSION) :])], name="run")
    assert run.frame.equals(whole.frame)
    assert {step: phases(run, step)["step"][0] for step in (10, 11, 40)} == {10: 10.0, 11: 5.0, 40: 5.0}
    assert flags(run) == {"restart", "cut-off", "no-tokens"}
    assert flags(whole) == {"restart", "no-tokens"}
    assert next(flag.text for flag in whole.flags).startswith("the run was restarted at step 11; ")


def test_a_folder_without_steps_is_refused(tmp_path: Path) -> None:
    write(tmp_path, log_samples.FILE_VERSION, "events.out.tfevents.17.host")
    with pytest.raises(UsageError, match=r"no training steps in its 1 TensorBoard event file$"):
        read_run([tmp_path])
    with pytest.raises(UsageError, match="is a directory"):
        read_run([tmp_path], log_format="verl")


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
    whole = read_run([write(tmp_path, content, "whole.log")], name="train").frame
    assert run.frame.equals(whole[: len(run.frame)]) or name == "slime"
    assert len(run.frame) < len(whole)
    assert "cut-off" in flags(run)


@pytest.mark.parametrize("name", log_samples.SAMPLES)
def test_a_last_line_without_an_end_is_told_where_it_matters(tmp_path: Path, name: str) -> None:
    known, content = log_samples.SAMPLES[name]
    run = read_run([write(tmp_path, content.rstrip(b"\n"))])
    assert ("open-end" in flags(run)) == (known in {"nemo-rl", "prime-rl", "csv"})
    assert "open-end" not in flags(sample(tmp_path, name))


def test_what_is_damaged_in_the_middle_is_refused_with_its_place(tmp_path: Path) -> None:
    events = bytearray(log_samples.NEMO_EVENTS)
    events[len(log_samples.FILE_VERSION) + 20] ^= 1
    with pytest.raises(UsageError, match="TensorBoard event file: record 2 is damaged"):
        read_log(write(tmp_path, bytes(events)))
    with pytest.raises(UsageError, match="line 3 has another number of cells"):
        read_log(write(tmp_path, log_samples.CSV_TABLE.replace("2,2.5,", "2,")))
    with pytest.raises(UsageError, match=r"line 3: the step '2\.5' is no whole number"):
        read_log(write(tmp_path, log_samples.CSV_TABLE.replace("2,2.5", "2.5,2.5")))
    with pytest.raises(UsageError, match=r"trainer_state.json of TRL: line \d+: the file is not JSON"):
        read_log(write(tmp_path, log_samples.TRAINER_STATE[:-40]))


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
    assert not run.frame.duplicated(["step", "metric"]).any()
    assert run.frame["step"].is_monotonic_increasing


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
    for step, metric, value in read_log(path)[["step", "metric", "value"]].itertuples(index=False):
        found.setdefault(step, {})[metric] = value
    return found
