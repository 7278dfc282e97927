"""TRL's logs: how many steps a line stands for, and what its counts of tokens mean."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import log_samples
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from log_reading import SHARED_FOLDER, flags, phases, sample, write

from placebench.compare.measure.log_sides import side_of_logs
from placebench.logs.read import scan_log
from placebench.logs.run import logged_facts, read_run
from placebench.logs.timing import Kind
from placebench.logs.trl import steps_per_line


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
    shown = side_of_logs([run]).launch_values.loc[1, "tokens_per_s"]
    assert shown == pytest.approx(tokens / 4, rel=2e-3)
    assert logged_facts(run)["tokens a step"] == pytest.approx(tokens, rel=2e-3)


def test_trl_after_a_restart_goes_on_where_the_epoch_does(tmp_path: Path) -> None:
    epochs = enumerate([1, 2, 3, 2, 3])
    text = "".join(f"{{'loss': {at}.0, 'step_time': 1.0, 'epoch': {epoch}}}\n" for at, epoch in epochs)
    log = scan_log(write(tmp_path, text))
    frame = log.table.frame("a")
    assert frame.loc[frame["metric"] == "loss", "value"].tolist() == [0.0, 3.0, 4.0]
    assert [(restart.step, restart.line) for restart in log.table.restarts] == [(2, 4)]
