"""verl's console log: every shape of line, and what must not be taken for one."""

import math
import pprint
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from log_reading import frame_of

from placebench.errors import UsageError
from placebench.logs import source as log_source
from placebench.logs.read import scan_log

Metrics = Mapping[str, float]
SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)

PREFIXES = {
    "none": "",
    "ray": "(TaskRunner pid=7) ",
    "ray with address": "(TaskRunner pid=7, ip=10.0.0.2) ",
    "ray with color": "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m ",
    "ray with two colors": "\x1b[2m\x1b[36m(main_task pid=7)\x1b[0m ",
    "ray without a blank": "\x1b[36m(main_task pid=7)\x1b[0m",
    "progress bar": "Training Progress:  33%|███▎      | 1/3 [00:31<01:02, 31.03s/it]\r",
    "progress bar of a local run": "Training Progress:  33%|███▎      | 1/3 [00:31<01:02, 31.03s/it]",
}
SUFFIXES = {
    "none": "",
    "blanks": "   ",
    "carriage return": "\r",
    "repeated": "\x1b[32m [repeated 2x across cluster]\x1b[0m",
    "repeated without color": " [repeated 12x across cluster]",
    "another actor": "(WorkerDict pid=1) INFO:2026-09-11 22:29:04,437:pending: 0",
    "another actor's list": "(WorkerDict pid=1) 2026-09-11 - INFO - loss:3",
    "an address": "INFO at http://127.0.0.1:8265",
    "progress bar": "Training Progress:  33%|███▎      | 1/3 [00:31<01:02, 31.03s/it]",
}
NOISE = (
    "",
    "(WorkerDict pid=1) step by step:2 - we add 3:4",
    "timing/step:1.25",
    "timing_s/step:8 - timing_s/gen:99",
    "saved checkpoints/global_step:9 - done:1",
    "Let us think, step: 1 - first:2",
    "\x1b[36m(WorkerDict pid=1)\x1b[0m \rLoading:  50%|█████     | 1/2 [00:00<00:00, 50.2it/s]",
    "step:5",
    "step:5 - ",
    "step:5 - no number here",
    "(main_task pid=1) step:7 - then add:5 apples",
    "not text: \udcff\udcfe \x00",
)


def print_fixed(value: float) -> str:
    """As verl up to 0.4 prints."""
    return f"{value:.3f}"


def print_repr(value: float) -> str:
    """As verl from 0.5 on prints Python numbers."""
    return pprint.pformat(value)


def print_numpy(value: float) -> str:
    """As verl from 0.5 on prints numpy 2 scalars."""
    return pprint.pformat(np.float64(value))


def step_line(step: int, metrics: Metrics, show: Callable[[float], str] = print_repr) -> str:
    return " - ".join([f"step:{step}", *(f"{name}:{show(value)}" for name, value in metrics.items())])


def read(folder: Path, text: str) -> dict[int, dict[str, float]]:
    path = folder / "log.txt"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    frame = frame_of(path)
    assert [str(frame[name].dtype) for name in ("step", "value")] == ["int64", "float64"]
    steps: dict[int, dict[str, float]] = {}
    for step, metric, value in zip(frame["step"], frame["metric"], frame["value"], strict=True):
        assert metric not in steps.setdefault(step, {})
        steps[step][metric] = value
    return steps


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("suffix", SUFFIXES.values(), ids=SUFFIXES)
def test_text_around_a_step_line_is_not_part_of_it(tmp_path: Path, prefix: str, suffix: str) -> None:
    line = "actor/lr:1e-06 - training/off_policy/min:np.int64(0)"
    text = "".join(f"{prefix}step:{step} - {line}{suffix}\n" for step in (1, 2, 3, 4))
    assert read(tmp_path, text) == {step: {"actor/lr": 1e-06, "training/off_policy/min": 0.0} for step in (1, 2, 3, 4)}


@pytest.mark.parametrize("suffix", SUFFIXES.values(), ids=SUFFIXES)
def test_text_behind_a_plain_number_is_not_part_of_it(tmp_path: Path, suffix: str) -> None:
    text = f"step:1 - perf/throughput:1220.5{suffix}\n"
    assert read(tmp_path, text) == {1: {"perf/throughput": 1220.5}}


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("0.123", 0.123),
        ("-.5", -0.5),
        ("575", 575.0),
        ("1e-06", 1e-06),
        ("1.5E+300", 1.5e300),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("True", 1.0),
        ("False", 0.0),
        ("np.float64(0.25)", 0.25),
        ("np.float32(-0.5)", -0.5),
        ("np.int64(2)", 2.0),
        ("np.int32(2)", 2.0),
        ("np.float64(-inf)", -math.inf),
        ("9" * 400, math.inf),
    ],
)
def test_every_form_of_a_number(tmp_path: Path, printed: str, value: float) -> None:
    lines = "".join(f"step:{step} - a/x:{printed} - a/y:1.0 - a/z:{printed}\n" for step in (1, 2, 3, 4))
    assert read(tmp_path, lines) == {step: {"a/x": value, "a/y": 1.0, "a/z": value} for step in (1, 2, 3, 4)}


@pytest.mark.parametrize("printed", ["nan", "np.float64(nan)"])
def test_nan_is_a_value(tmp_path: Path, printed: str) -> None:
    lines = "".join(f"step:{step} - a/x:{printed} - a/y:1.0\n" for step in (1, 2, 3))
    steps = read(tmp_path, lines)
    assert all(math.isnan(steps[step]["a/x"]) and steps[step]["a/y"] == 1.0 for step in (1, 2, 3))


@pytest.mark.parametrize("printed", ["None", "tensor(0.5)", "1_000", "1.2.3", "0x10", "", "np.float64(0.5"])
def test_what_is_no_number_is_passed_over(tmp_path: Path, printed: str) -> None:
    text = f"step:1 - a/x:1.0 - a/odd:{printed} - a/y:2.0\n"
    assert read(tmp_path, text) == {1: {"a/x": 1.0, "a/y": 2.0}}


@pytest.mark.parametrize(
    "name",
    ["critic/lr(1e-4)", "reward/mean@1", "val-core/my data/acc/mean@8", "val-core/hub:name/acc", "val/a:1b/acc", "a"],
)
def test_names_with_odd_letters(tmp_path: Path, name: str) -> None:
    for order in ((name, "a/z"), ("a/z", name)):
        text = "".join(f"step:{step} - {order[0]}:0.5 - {order[1]}:0.5\n" for step in (1, 2, 3))
        assert read(tmp_path, text) == {step: {name: 0.5, "a/z": 0.5} for step in (1, 2, 3)}


def test_a_name_that_stands_twice_has_its_last_value(tmp_path: Path) -> None:
    text = "".join(f"step:{step} - a/x:1.0 - a/y:2.0 - a/x:3.0\n" for step in (1, 2, 3))
    assert read(tmp_path, text) == {step: {"a/x": 3.0, "a/y": 2.0} for step in (1, 2, 3)}


def test_two_step_lines_in_one_line(tmp_path: Path) -> None:
    text = "step:1 - a/x:1.0(TaskRunner pid=3) step:2 - a/x:2.0\n" * 3
    assert read(tmp_path, text) == {1: {"a/x": 1.0}, 2: {"a/x": 2.0}}


def test_a_restart_undoes_the_steps_that_are_done_again(tmp_path: Path) -> None:
    text = (
        "step:0 - val-core/acc:0.1\n"
        "step:1 - a/x:1.0 - a/y:1.0\n"
        "step:2 - a/x:2.0 - a/y:2.0\n"
        "step:2 - val-core/acc:0.2\n"
        "step:9 - a/x:9.0 - a/y:9.0\n"
        "restarted from global_step_1\n"
        "step:2 - a/x:7.0 - a/z:7.0\n"
        "step:3 - a/x:3.0 - a/y:3.0\n"
    )
    assert read(tmp_path, text) == {
        0: {"val-core/acc": 0.1},
        1: {"a/x": 1.0, "a/y": 1.0},
        2: {"a/x": 7.0, "a/z": 7.0},
        3: {"a/x": 3.0, "a/y": 3.0},
    }


@pytest.mark.parametrize("digits", ["5", "500000000000001"])
def test_a_restart_is_told_with_its_line(tmp_path: Path, digits: str) -> None:
    path = tmp_path / "log.txt"
    steps = [*range(1, 31), *range(21, 41)]
    path.write_text("".join(f"noise\nstep:{step} - a/x:{at}.{digits}\n" for at, step in enumerate(steps)))
    table = scan_log(path).table
    assert [(restart.step, restart.line) for restart in table.restarts] == [(21, 62)]
    frame = table.frame("a")
    last = {step: float(f"{at}.{digits}") for at, step in enumerate(steps)}
    assert dict(zip(frame["step"], frame["value"], strict=True)) == last


def test_steps_out_of_order_are_sorted(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(f"step:{step} - a/x:{step}.0\n" for step in (1, 3, 2, 5, 4)))
    table = scan_log(path).table
    assert (table.out_of_order, table.restarts) == (2, [])
    assert table.frame("a")["value"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("lag", [0, 1, 2, 4, 9])
def test_two_runs_in_one_file_are_refused_with_the_line(tmp_path: Path, lag: int) -> None:
    path = tmp_path / "log.txt"
    ahead = {step: f"step:{step + lag} - a/x:1.5\n" for step in range(1, 20)}
    behind = {step: f"step:{step} - a/x:2.5\n" for step in range(1, 20)}
    path.write_text("".join(f"step:{step} - a/x:1.5\n" for step in range(1, lag + 1)))
    with path.open("a") as stream:
        stream.writelines(ahead[step] + behind[step] for step in range(1, 20))
    with pytest.raises(UsageError, match=r"log\.txt: console log of verl: line \d+: step \d+ appears with different"):
        frame_of(path)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_run_that_crashes_again_and_again_is_one_run(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "log.txt"
    steps = [*range(1, 11), *[*range(11, 11 + kept)] * 5, *range(11, 31)]
    path.write_text("".join(f"step:{step} - a/x:{at}.5\n" for at, step in enumerate(steps)))
    log = scan_log(path)
    assert [restart.step for restart in log.table.restarts] == [11] * 5
    (restart,) = (flag.text for flag in log.flags)
    lines = ", ".join(str(11 + kept * crash) for crash in range(1, 6))
    assert restart.startswith(f"lines {lines}: the run was restarted at step 11, 5 times; ")
    last = {step: at + 0.5 for at, step in enumerate(steps)}
    frame = log.table.frame("a")
    assert dict(zip(frame["step"], frame["value"], strict=True)) == last


def test_a_second_restart_may_go_back_further_than_the_first(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    steps = [*range(1, 13), *range(11, 16), *range(6, 31), *range(21, 26)]
    path.write_text("".join(f"step:{step} - a/x:{at}.5\n" for at, step in enumerate(steps)))
    table = scan_log(path).table
    assert [(restart.step, restart.line) for restart in table.restarts] == [(11, 13), (6, 18), (21, 43)]
    last = {step: at + 0.5 for at, step in enumerate(steps) if step <= 25}
    frame = table.frame("a")
    assert dict(zip(frame["step"], frame["value"], strict=True)) == last


def test_three_runs_in_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(f"step:{step} - a/x:{run}.5\n" for step in range(1, 20) for run in range(3)))
    with pytest.raises(UsageError, match="the steps of several runs in turn"):
        frame_of(path)


@SHARED_FOLDER
@given(
    ends=st.lists(st.tuples(st.integers(0, 30), st.integers(4, 12)), min_size=1, max_size=12),
)
def test_of_every_step_the_last_run_of_it_counts(tmp_path: Path, ends: list[tuple[int, int]]) -> None:
    """Restarts from any checkpoint that the run had: what is behind the last one at or before a step stays."""
    path, done = tmp_path / "log.txt", list[tuple[int, int]]()
    lines: list[str] = []
    for checkpoint, count in ends:
        done = done[: min(checkpoint, len(done))]
        for step in range(len(done) + 1, len(done) + 1 + count):
            done.append((step, len(lines)))
            lines.append(f"step:{step} - a/x:{len(lines)}.5\n")
    path.write_text("".join(lines))
    frame = frame_of(path)
    assert list(zip(frame["step"], frame["value"], strict=True)) == [(step, at + 0.5) for step, at in done]


def test_replaced_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("step:1 - a/x:1.0\n" * 3 + "step:2 - a/x:1.0\n")
    table = scan_log(path).table
    assert (table.lines, table.replaced) == (4, 2)


def test_more_layouts_than_are_compiled(tmp_path: Path) -> None:
    metrics = {step: {f"a/{step % 40}": float(step), "a/x": 0.5} for step in range(200)}
    text = "\n".join(step_line(step, values) for step, values in metrics.items())
    assert read(tmp_path, text) == metrics


TORN_BY = {
    "another actor": "(WorkerDict pid=7) INFO something\n",
    "another actor with color": "\x1b[36m(WorkerDict pid=7)\x1b[0m INFO something\n\x1b[36m(TaskRunner pid=3)\x1b[0m ",
    "a line end": "\n",
    "a line end and more": "\n(WorkerDict pid=7) step by step\n(TaskRunner pid=3) ",
}
WHOLE = {"timing_s/gen": 5.25, "timing_s/update_actor": 13.5, "timing_s/step": 110.125, "perf/x": 1.5}


@SHARED_FOLDER
@given(
    torn=st.integers(1, 5),
    show=st.sampled_from([print_repr, print_numpy, print_fixed]),
    by=st.sampled_from(sorted(TORN_BY)),
    data=st.data(),
    block=st.sampled_from([16, 300, 1 << 20]),
)
def test_a_torn_step_line_is_left_out_and_told(
    tmp_path: Path, torn: int, show: Callable[[float], str], by: str, data: st.DataObject, block: int
) -> None:
    lines = {step: step_line(step, WHOLE, show) for step in range(1, 6)}
    # In the first metric nothing is left of the step, in the number of the last one nothing shows it.
    first, last = lines[torn].index(" - timing_s/update_actor"), lines[torn].index("perf/x:") + len("perf/x:")
    place = data.draw(st.integers(first, last))
    log = "".join(
        (line[:place] + TORN_BY[by] + line[place:] if step == torn else line) + "\nsome text\n"
        for step, line in lines.items()
    )
    path = tmp_path / "log.txt"
    path.write_text(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_source, "BLOCK_BYTES", block)
        table = scan_log(path).table
    frame = table.frame("a")
    whole = sorted(set(lines) - {torn})
    assert sorted(set(frame["step"])) == whole
    assert (table.damages, table.damaged, table.restarts) == (1, [2 * torn - 1], [])
    assert frame["value"].tolist() == list(WHOLE.values()) * len(whole)


def test_step_lines_with_fewer_metrics_are_whole(tmp_path: Path) -> None:
    """Where nothing behind them is the rest of a line: validation adds to the end of some lines."""
    more = {step: " - val/acc:0.5" if step % 3 == 0 else "" for step in range(1, 20)}
    noise = "(WorkerDict pid=7) 'val/acc': 0.5\n"
    path = tmp_path / "log.txt"
    path.write_text("".join(f"step:{step} - a/x:1.5 - a/y:2.5{text}\n{noise}" for step, text in more.items()))
    table = scan_log(path).table
    assert (table.damages, len(table.frame("a"))) == (0, 19 * 2 + 6)


names = st.from_regex(r"[a-z]{1,6}/[a-z_]{1,9}(?:[:@( ][a-z)]{1,6}){0,2}", fullmatch=True)
finite = st.floats(allow_nan=False, allow_infinity=False)
metric_sets = st.dictionaries(names, finite, min_size=1, max_size=8)
logs = st.dictionaries(st.integers(0, 10**6), metric_sets, min_size=1, max_size=8)
printers: st.SearchStrategy[Callable[[float], str]] = st.sampled_from([print_repr, print_numpy])


@SHARED_FOLDER
@given(log=logs, show=printers, ending=st.sampled_from(["\n", "\r\n"]), closed=st.booleans(), times=st.integers(1, 3))
def test_what_verl_prints_is_read_back(
    tmp_path: Path, log: dict[int, Metrics], show: Callable[[float], str], ending: str, closed: bool, times: int
) -> None:
    lines = [step_line(step, metrics, show) for step, metrics in log.items()] * times
    assert read(tmp_path, ending.join(lines) + ending * closed) == log


@SHARED_FOLDER
@given(log=logs)
def test_three_decimals_are_read_as_printed(tmp_path: Path, log: dict[int, Metrics]) -> None:
    text = "\n".join(step_line(step, metrics, print_fixed) for step, metrics in log.items())
    rounded = {step: {name: float(f"{value:.3f}") for name, value in metrics.items()} for step, metrics in log.items()}
    assert read(tmp_path, text) == rounded


@SHARED_FOLDER
@given(data=st.data(), log=logs, show=printers)
def test_noise_changes_no_value(
    tmp_path: Path, data: st.DataObject, log: dict[int, Metrics], show: Callable[[float], str]
) -> None:
    def draw(choices: Mapping[str, str]) -> str:
        return choices[data.draw(st.sampled_from(sorted(choices)))]

    text = ""
    for step, metrics in log.items():
        text += "".join(f"{noise}\n" for noise in data.draw(st.lists(st.sampled_from(NOISE), max_size=3)))
        text += f"{draw(PREFIXES)}{step_line(step, metrics, show)}{draw(SUFFIXES)}\n"
    assert read(tmp_path, text) == log
