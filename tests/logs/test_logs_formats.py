"""Every format beside verl's: what is read from its sample, what is corrected, what is flagged."""

import gzip
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import log_samples
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_reading import SHARED_FOLDER, flags, frame_of, metrics, phases, sample, write

from placebench.compare.measure.log_sides import side_of_logs
from placebench.errors import UsageError
from placebench.logs import source as log_source
from placebench.logs.read import fill_table, recognize, scan_log
from placebench.logs.registry import DIALECTS, FORMATS
from placebench.logs.run import read_run
from placebench.logs.table import StepTable
from placebench.logs.timing import Kind

SLIME_TIMERS = ("generate", "wake_up", "data_preprocess", "log_probs", "actor_train", "sleep", "update_weights")


@pytest.mark.parametrize("name", log_samples.SAMPLES)
def test_the_format_is_told_by_the_content(tmp_path: Path, name: str) -> None:
    known, content = log_samples.SAMPLES[name]
    log = scan_log(write(tmp_path, content))
    assert log.format.name == known
    assert (sorted(set(log.table.frame("a")["step"])), log.table.damages, log.table.restarts) == ([1, 2, 3], 0, [])
    assert frame_of(log.path, log_format=known).equals(frame_of(log.path))


@pytest.mark.parametrize("name", [name for name in log_samples.SAMPLES if name not in ("tensorboard", "trl-state")])
@pytest.mark.parametrize("before", [b"", b"starting\nand so on\n"])
def test_the_format_is_told_where_the_log_comes_line_by_line(tmp_path: Path, name: str, before: bytes) -> None:
    known, content = log_samples.SAMPLES[name]
    found, blocks = recognize(iter((before + content).splitlines(keepends=True)), None)
    if before and known == "csv":
        assert found is None
        return
    assert found
    assert found.name == known
    table = StepTable()
    fill_table(tmp_path, found, blocks, table)
    assert table.frame("a").equals(scan_log(write(tmp_path, content)).table.frame("a"))


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
    plain, other = frame_of(write(tmp_path, content)), frame_of(write(tmp_path, changed, "other.log"))
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
        assert log.table.frame("log").equals(frame_of(write(tmp_path, text, "plain.log")))


@pytest.mark.parametrize(("steps", "said"), [(1, "its only step is"), (8, "all its 8 steps are")])
def test_a_log_of_nothing_but_cut_off_steps_says_how_many(tmp_path: Path, steps: int, said: str) -> None:
    path = write(tmp_path, "".join(f"===== Step {step}/8 =====\n  • Loss: 0.5\n" for step in range(1, steps + 1)))
    lines = "1, 3, 5, 7, 9, …" if steps > 5 else "1"
    with pytest.raises(UsageError, match=f"{said} cut off or torn apart: at line {lines}"):
        frame_of(path)


def test_zstd_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as packed:
        packed.write(log_samples.SAMPLES["skyrl"][1] * 50)
    data = stream.getvalue().to_pybytes()
    for damaged in (data[:-9], data[:30] + b"\xff" * 90):
        with pytest.raises(UsageError, match="the zstd data is damaged or cut off"):
            frame_of(write(tmp_path, damaged))


@pytest.mark.parametrize("name", log_samples.SAMPLES)
def test_where_the_blocks_are_cut_makes_no_difference(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, log_samples.SAMPLES[name][1])
    whole = frame_of(path)
    known = log_samples.SAMPLES[name][0]
    for size in (1, 7, 64):
        monkeypatch.setattr(log_source, "BLOCK_BYTES", size)
        assert frame_of(path, log_format=known).equals(whole)


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
    (clock,) = (flag.text for flag in read_run([write(tmp_path, text)]).flags if flag.name == "clock")
    assert clock == (
        "the log's clock shows 15.0 s a step, its step time is 34.5 s: steps overlap, or some time is counted twice"
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
    assert flags(run) == {"areal-no-step", "areal-rollout-wait", "no-tokens", "not-finite"}


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
    shown = side_of_logs([run]).launch_values.loc[1]
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
    flagged = set().union(*(flags(sample(tmp_path, name)) for name in log_samples.SAMPLES))
    rare = ("timing_s/gen,training/off_policy/lag", "timing/train/generation,ray/training_worker_idle_time_ratio")
    for names in rare:
        (tmp_path / "rare.csv").write_text(f"step,{names}\n1,2.0,0.0\n")
        flagged |= flags(read_run([tmp_path / "rare.csv"]))
    assert {trap.name for dialect in DIALECTS for trap in dialect.traps} <= flagged


def test_open_instruct_wide_and_wrapped_are_equal(tmp_path: Path) -> None:
    wide, wrapped = (sample(tmp_path, f"open-instruct, {shape}") for shape in ("wide", "wrapped"))
    assert wide.metrics.equals(wrapped.metrics)
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
    counted = read_run([logs.path for logs in run.logs], learner_ranks=4, devices=2).throughput
    assert counted["tokens"].tolist() == [300.0] * 3
    assert counted["tokens_per_s_per_device"].tolist()[0] == pytest.approx(300 / 9.19 / 2)


def test_prime_rl_trainer_and_orchestrator(tmp_path: Path) -> None:
    run = sample(tmp_path, "prime-rl")
    assert metrics(run, 2) | {"orchestrator/time/step": 125.0, "time/step": 16.2} == metrics(run, 2)
    assert metrics(run, 2)["perf/peak_memory"] == 12.5
    assert metrics(run, 2)["trainable"] == 16.0
    assert flags(run) == {"prime-rl-throughput", "no-tokens"}
    assert phases(sample(tmp_path, "prime-rl, metrics.jsonl"), 1)["update_actor"] == (6.0, Kind.PHASE)


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
