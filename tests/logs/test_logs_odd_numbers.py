"""Timings that no step can take: dropped, told with their line, and never averaged; and any numbers in any format."""

import json
import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import log_samples
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from log_reading import SHARED_FOLDER, write
from rich.console import Console

from placebench.cli import main
from placebench.compare.comparison import compare_sides
from placebench.compare.measure.log_sides import side_of_logs
from placebench.compare.statistics.estimates import estimate
from placebench.errors import UsageError
from placebench.logs.flags import NOT_FINITE
from placebench.logs.read import is_timing, scan_log
from placebench.logs.run import read_run
from placebench.report.summary import summarize
from placebench.report.terminal import print_summary

Steps = list[tuple[str, str]]


def verl(numbers: Steps) -> str:
    lines = (
        f"step:{step} - timing_s/gen:{gen} - timing_s/step:{whole}\n" for step, (gen, whole) in enumerate(numbers, 1)
    )
    return "".join(lines)


def verl_jsonl(numbers: Steps) -> str:
    return "".join(
        f'{{"step": {step}, "data": {{"timing_s/gen": {plain(gen)}, "timing_s/step": {plain(whole)}}}}}\n'
        for step, (gen, whole) in enumerate(numbers, 1)
    )


def plain(number: str) -> str:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(number, number)


def flat_jsonl(numbers: Steps) -> str:
    return "".join(
        f'{{"step": {step}, "time/step": {plain(whole)}, "time/forward_backward": {plain(gen)}}}\n'
        for step, (gen, whole) in enumerate(numbers, 1)
    )


def openrlhf(numbers: Steps) -> str:
    return "".join(
        f"Global step {step}: {{'timing/generation': {gen}, 'timing/step_total': {whole}}}\n"
        for step, (gen, whole) in enumerate(numbers, 1)
    )


def slime(numbers: Steps) -> str:
    return "".join(
        f"perf {step}: {{'perf/rollout_time': {gen}, 'perf/step_time': {whole}}}\n"
        for step, (gen, whole) in enumerate(numbers, 1)
    )


def skyrl(numbers: Steps) -> str:
    return "".join(
        f" - Step {step}: \n{{'timing/generate': '{gen}',\n 'timing/step': '{whole}'}}\n"
        for step, (gen, whole) in enumerate(numbers, 1)
    )


def areal(numbers: Steps) -> str:
    return "".join(
        f"Train step {step}/9 done.\n╒═══╕\n│ timeperf/rollout │ {gen} │ timeperf/train_step │ {whole} │\n╘═══╛\n"
        for step, (gen, whole) in enumerate(numbers, 1)
    )


def nemo_rl(numbers: Steps) -> str:
    return "".join(
        f"===== Step {step}/9 =====\n  • Total step time: {whole}s\n  • generation: {gen}s (1.0%)\n"
        for step, (gen, whole) in enumerate(numbers, 1)
    )


def open_instruct(numbers: Steps) -> str:
    return "".join(
        f"╭─ Metrics ─╮\n│  other  training_step: {step} | x: 1 │\n│  time  total: {whole} | training: {gen} │\n╰─╯\n"
        for step, (gen, whole) in enumerate(numbers, 1)
    )


def trl(numbers: Steps) -> str:
    return "".join(f"{{'loss': 0.1, 'step_time': {whole}, 'num_tokens': 9.0}}\n" for _, whole in numbers)


def trl_state(numbers: Steps) -> str:
    history = ", ".join(
        f'{{"step": {step}, "step_time": {plain(whole)}}}' for step, (_, whole) in enumerate(numbers, 1)
    )
    return f'{{"log_history": [{history}]}}'


def csv_table(numbers: Steps) -> str:
    rows = (f"{step},{gen},{whole}\n" for step, (gen, whole) in enumerate(numbers, 1))
    return "step,timing_s/gen,timing_s/step\n" + "".join(rows)


def tensorboard(numbers: Steps) -> bytes:
    return log_samples.FILE_VERSION + b"".join(
        log_samples.event(step, {"timing_s/gen": single(gen), "timing_s/step": single(whole)})
        for step, (gen, whole) in enumerate(numbers, 1)
    )


def single(number: str) -> float:
    """The number, where single precision has it."""
    value = float(number)
    return value if not math.isfinite(value) or abs(value) < 3e38 else math.copysign(math.inf, value)


WRITERS: dict[str, Callable[[Steps], str | bytes]] = {
    "verl": verl,
    "verl-jsonl": verl_jsonl,
    "jsonl": flat_jsonl,
    "openrlhf": openrlhf,
    "slime": slime,
    "skyrl": skyrl,
    "areal": areal,
    "nemo-rl": nemo_rl,
    "open-instruct": open_instruct,
    "trl": trl,
    "trl-state": trl_state,
    "csv": csv_table,
    "tensorboard": tensorboard,
}
USUAL: Steps = [("1.5", "4.0")] * 6
ODD = ("nan", "inf", "-inf", "-2.0", "1e300", "1000000000.0")
odd_or_usual = st.sampled_from(ODD) | st.floats(0.001, 1e6).map(repr)
any_number = odd_or_usual | st.floats().map(repr) | st.integers(-(10**30), 10**30).map(str)


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_step_is_dropped_and_told(tmp_path: Path, name: str, odd: str) -> None:
    numbers = [*USUAL, ("1.5", odd), *USUAL]
    path = write(tmp_path, WRITERS[name](numbers))
    run = read_run([path])
    assert run.logs[0].format.name == name
    assert run.timings is not None
    told = [flag.text for flag in run.flags if flag.name == "no-seconds"]
    where = run.timings.seconds.index.tolist()
    seconds = run.timings.seconds.to_numpy()
    assert 0 <= np.nanmin(seconds) <= np.nanmax(seconds) <= 1e7
    side = side_of_logs([run])
    assert side.value("step_time" if name != "areal" else "phase/update_actor") == pytest.approx(4.0)
    assert set(where) >= {*range(1, 7), *range(8, 14)}
    assert len(told) == 1
    assert f"{path}" in told[0]
    assert "step 7, " in told[0]
    assert told[0].endswith(f" {float(single(odd) if name == 'tensorboard' else float(odd)):g}")


def test_its_line_is_told_and_only_a_few_of_many(tmp_path: Path) -> None:
    path = write(
        tmp_path, "starting\n" + verl([("1.5", "-2")] * 9) + verl_line(10, "1.5", "4") + verl_line(11, "inf", "4")
    )
    (flag,) = (flag for flag in scan_log(path, keep=is_timing).flags if flag.name == "no-seconds")
    assert flag.text == (
        f"10 timings cannot be times of a step, and are left out: {path}:2: step 1, timing_s/step -2; {path}:3: step"
        f" 2, timing_s/step -2; {path}:4: step 3, timing_s/step -2; …"
    )


def verl_line(step: int, gen: str, whole: str) -> str:
    return f"step:{step} - timing_s/gen:{gen} - timing_s/step:{whole}\n"


@pytest.mark.parametrize("digits", ["2.5", "2.5000000000001"])
def test_lines_are_counted_through_every_way_of_reading(tmp_path: Path, digits: str) -> None:
    # The second is read many at once.
    text = "".join(f"text\n{verl_line(step, digits, '-1' if step == 777 else digits)}" for step in range(1, 1001))
    (flag,) = (flag for flag in scan_log(write(tmp_path, text)).flags if flag.name == "no-seconds")
    assert f":{2 * 777}: step 777, timing_s/step -1" in flag.text


def test_where_nothing_else_is_left_the_message_says_why(tmp_path: Path) -> None:
    path = write(tmp_path, verl([("-2", "-2")] * 6))
    result = CliRunner().invoke(main, ["compare", str(path)])
    assert result.exit_code == 2
    assert "there is nothing to compare: 12 timings cannot be times of a step, and are left out: " in result.stderr
    assert f"{path}:1: step 1, timing_s/gen -2" in result.stderr


@SHARED_FOLDER
@given(
    name=st.sampled_from(list(WRITERS)),
    numbers=st.lists(st.tuples(any_number, any_number), min_size=1, max_size=8),
    other=st.lists(st.tuples(odd_or_usual, odd_or_usual), min_size=1, max_size=8),
)
@example(name="verl", numbers=[(1.387e-303, 1.387e-303)], other=[(249502.0, 249502.0)])
@example(name="verl", numbers=[(1e-303, 1e-303)] * 2, other=[(1e300, 1e300), (1e5, 1e5)])
def test_any_numbers_in_any_format_are_compared_or_refused(
    tmp_path: Path, name: str, numbers: Steps, other: Steps
) -> None:
    paths = [write(tmp_path, WRITERS[name](steps), f"{place}.log") for place, steps in enumerate((numbers, other))]
    output = StringIO()
    try:
        sides = [side_of_logs([read_run([path])], warmup_steps=0) for path in paths]
        comparison = compare_sides(sides)
    except UsageError:
        return
    summary = summarize(comparison)
    json.loads(summary.model_dump_json())
    print_summary(summary, Console(file=output, width=200))
    assert all(not side.value("step_time") < 0 for side in sides)


def test_launches_of_one_side_may_lie_further_apart_than_numbers_reach(tmp_path: Path) -> None:
    # The ends of the interval are exp(-69 ± 878).
    step = estimate([1e-60, 1.0])
    assert step.value == pytest.approx(1e-30)
    assert (step.low, step.high) == (0.0, math.inf)
    numbers = ("1e-60", "1.0", "2.0", "2.5")
    a, b, *other = (str(write(tmp_path, verl([(one, one)] * 6), f"{one}.log")) for one in numbers)
    result = CliRunner().invoke(main, ["compare", f"a={a},{b}", f"b={','.join(other)}", "--out", str(tmp_path / "out")])
    assert (result.exit_code, result.exception) == (0, None)
    assert "4 launches compared" in result.output


def test_training_that_came_apart_is_no_number_in_more_than_one_step(tmp_path: Path) -> None:
    lines = [f"step:{step} - timing_s/step:2.0 - actor/pg_loss:{{}} - actor/lr:0.1" for step in range(1, 5)]
    once, twice = (tmp_path / name for name in ("once.log", "twice.log"))
    once.write_text("\n".join(line.format("nan" if at == 0 else "0.1") for at, line in enumerate(lines)) + "\n")
    twice.write_text("\n".join(line.format("nan" if at > 1 else "0.1") for at, line in enumerate(lines)) + "\n")
    assert [flag.text for flag in read_run([once]).flags if flag.name == NOT_FINITE] == []
    (found,) = (flag.text for flag in read_run([twice]).flags if flag.name == NOT_FINITE)
    assert found == (
        f"{twice}:3: actor/pg_loss is nan in step 3 and 1 later step: training failed there, although its times were"
        " measured"
    )


@pytest.mark.parametrize(
    ("timing", "tokens", "why"),
    [
        ("timing_s/step:1.5", "", "the log lacks perf/total_num_tokens"),
        ("timing_s/step:1.5", " - perf/total_num_tokens:nan", "is not a number of tokens in any step with a time"),
        ("timing_s/step:1.5", " - perf/total_num_tokens:-1", "is not a number of tokens in any step with a time"),
        ("timing_s/gen:0.5", " - perf/total_num_tokens:9", "has perf/total_num_tokens, but no step has a time"),
    ],
)
def test_why_there_is_no_throughput_is_what_the_log_shows(tmp_path: Path, timing: str, tokens: str, why: str) -> None:
    path = tmp_path / "verl.log"
    path.write_text("".join(f"step:{step} - {timing} - actor/pg_loss:0.1{tokens}\n" for step in range(1, 6)))
    (told,) = (flag.text for flag in read_run([path]).flags if flag.name == "no-tokens")
    assert told.startswith("no throughput: ")
    assert told.endswith(why)


def test_a_negative_count_of_tokens_is_none_and_a_phase_longer_than_its_step_does_not_add_up(tmp_path: Path) -> None:
    lines = (f"step:{step} - timing_s/ref:0.7 - timing_s/step:0.3 - perf/total_num_tokens:-5\n" for step in range(1, 6))
    run = read_run([write(tmp_path, "".join(lines), "odd.log")])
    why = "no throughput: perf/total_num_tokens is not a number of tokens in any step with a time"
    assert why in [one.text for one in run.flags]
    warnings = summarize(compare_sides([side_of_logs([run])])).warnings
    assert "odd: ref overlaps other work: it does not add up to the step." in warnings
