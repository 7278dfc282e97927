import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import sampler_overhead
import sampler_pairs
from click.testing import CliRunner, Result
from launching import assert_nothing_left, processes_of, running, wait_for

from placebench.errors import LaunchError
from placebench.host.devices import discover
from placebench.record.folder import Trial
from placebench.record.writing import append_jsonl, read_jsonl, write_json
from placebench.run.watch import TrialWatch
from placebench.spec.devices import device_to_dict, parse_devices

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "sampler_overhead.py"


def pairs(ratios: list[float]) -> list[dict[str, Any]]:
    """Pairs of launches of two steps each, with these ratios of their times in all; who is first alternates."""
    return [
        {
            "first": "without" if number % 2 else "with",
            "with": {"step": [3.0 * ratio, 1.0 * ratio]},
            "without": {"step": [2.5, 1.5]},
        }
        for number, ratio in enumerate(ratios)
    ]


def test_what_a_place_is_worth_is_no_effect_of_the_sampler() -> None:
    effect, place = 1.002, 1.05
    measured = pairs([effect * place, effect / place, effect * place, effect / place])
    assert sampler_pairs.effect([measured], "step") == pytest.approx((effect, effect, effect))


def test_each_series_has_places_of_its_own() -> None:
    effect, place, other = 1.002, 1.05, 0.97
    series = [pairs([effect * place, effect / place] * 2), pairs([effect * other, effect / other, effect * other])]
    assert sampler_pairs.effect(series, "step") == pytest.approx((effect, effect, effect))


def test_the_interval_covers_the_effect_with_an_odd_number_of_pairs_too() -> None:
    random = np.random.default_rng(0)
    for count in (3, 8, 11):
        covered = 0
        for _ in range(2000):
            noise = random.normal(0.001, 0.003, count) + 0.01 * (-1.0) ** np.arange(count)
            _, low, high = sampler_pairs.effect([pairs([float(np.exp(value)) for value in noise])], "step")
            covered += low <= np.exp(0.001) <= high
        assert 0.93 <= covered / 2000 <= 0.97


def run(*words: str) -> Result:
    before = signal.getsignal(signal.SIGTERM)  # which the program takes over
    try:
        return CliRunner().invoke(sampler_overhead.main, words, prog_name="sampler_overhead.py")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_devices_without_halves_are_refused() -> None:
    refused = run("steps", "--side-by-side", "--devices", "cpu:3")
    assert refused.exit_code == 1
    assert refused.stderr == "Error: --side-by-side: 3 devices have no two halves; give an even number by --devices\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "0 pairs cannot tell the sampler from the places: measure more, in both orders"),
        (
            json.dumps(pairs([1.0])[0]) + "\n",
            "1 pair cannot tell the sampler from the places: measure more, in both orders",
        ),
        (
            3 * (json.dumps(pairs([1.0])[0]) + "\n"),
            "3 pairs cannot tell the sampler from the places: measure more, in both orders",
        ),
        ("step 1\n", "{file}: not pairs as --file keeps them"),
        ('{"first": "with"}\n', "{file}: not pairs as --file keeps them"),
        ('{"first": "with", "with": [], "without": {}}\n', "{file}: not pairs as --file keeps them"),
    ],
)
def test_files_that_give_no_ratio_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(content)
    refused = run("pairs", str(file))
    assert (refused.exit_code, refused.stderr) == (1, f"Error: {reason.format(file=file)}\n")


def test_a_file_of_something_else_is_refused_before_a_launch_starts(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("step 1\n")
    refused = run("steps", "--devices", "cpu:1", "--file", str(file))
    assert (refused.exit_code, file.read_text()) == (1, "step 1\n")
    assert refused.stderr == f"Error: {file}: not pairs as --file keeps them\n"


@pytest.mark.parametrize(("pairs", "files"), [("4x-h200/sampler/*.jsonl", 2), ("*/sampler/switched*.jsonl", 4)])
def test_the_published_pairs_give_the_published_interval(pairs: str, files: int) -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert f"`python benchmarks/sampler_overhead.py pairs runs/reference/{pairs}`" in page
    found = sorted(map(str, (ROOT / "runs" / "reference").glob(pairs)))
    assert len(found) == files
    ratio = run("pairs", *found).stdout.splitlines()[1].removeprefix("step").strip()
    assert ratio in page
    low, high = map(float, re.findall(r"interval (\S+) to (\S+)", ratio)[0])
    assert 0.997 < low < high < 1.003


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--set", "steps=24"), "--set steps=24: 3 pairs of blocks need at least 36"),
        (("--set", "steps=24", "--launches", "2"), "--set steps=24: 2 pairs of blocks need at least 25"),
        (("--set", "steps=13", "--launches", "3"), "--set steps=13: 1 pair of blocks need at least 14"),
        (
            ("--devices", "cpu:2", "--placement", "standard/staleness=1"),
            "--placement standard/staleness=1: its steps overlap, so that none is of one side alone",
        ),
    ],
)
def test_a_switch_that_can_give_no_ratio_is_refused(words: tuple[str, ...], reason: str) -> None:
    refused = run("switch", "--devices", "cpu:1", "--set", "warmup_steps=2", *words)
    assert (refused.exit_code, refused.stderr) == (1, f"Error: {reason}\n")


@pytest.mark.parametrize("command", ["share", "steps", "switch"])
def test_a_rate_that_the_sampler_does_not_have_is_refused(command: str) -> None:
    refused = run(command, "--hz", "60")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("Error: Invalid value for '--hz': 60.0 is not in the range 0<x<=50.0.\n")


@pytest.mark.parametrize(
    ("kept", "order"),
    [
        ([], ("with", "without")),
        ([("with", 1)], ("without", "with")),
        ([("with", 1), ("without", 2)], ("without", "with")),
        ([("with", 1), ("without", 1)], ("with", "without")),
        ([("with", 1), ("without", 1), ("with", 2), ("without", 3)], ("with", "without")),
        ([("with", None), ("without", None)], ("with", "without")),
    ],
)
def test_a_measurement_goes_on_in_the_order_that_its_last_launch_did_not_have(
    kept: list[tuple[str, int | None]], order: tuple[str, str]
) -> None:
    lines = [{"first": first} | ({"number": number} if number else {}) for first, number in kept]
    assert sampler_pairs.next_order(lines) == order


def test_a_phase_without_time_is_left_out_of_the_table(tmp_path: Path) -> None:
    lines = pairs([1.01, 1.0, 0.99])
    for line in lines:
        line["with"]["unattributed"], line["without"]["unattributed"] = [0.0, 0.1], [0.1, 0.1]
    lines[1]["with"]["unattributed"] = [0.0, 0.0]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = run("pairs", str(file))
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:]] == ["step"]


class Launched:
    """A launch that ends its steps when the test says so, its n-th after n seconds; two warm it up, two are a block."""

    def __init__(self, folder: Path, first: str, second: str) -> None:
        self.trial = Trial(folder)
        (device,) = discover(parse_devices("cpu:1"))
        write_json(self.trial.launch_file, {"devices": [device_to_dict(device)]})
        self.trial.processes.write_text(json.dumps({"pid": os.getpid(), "device": device.id}) + "\n")
        self.kept: list[dict[str, Any]] = []
        self.switch = sampler_overhead._Switch(self.trial, 2, 2, 20.0, (first, second), self.kept.append)
        self._watch = TrialWatch(self.trial)

    def end(self, *steps: int) -> None:
        """End steps; the switch sees them all at once."""
        with self.trial.steps.open("a") as stream:
            for step in steps:
                append_jsonl(stream, {"step": step, "metrics": {"timing_s/step": float(step)}})
        self.look()

    def look(self) -> None:
        self.switch.follow(self._watch.read())

    def samplers(self) -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if str(self.trial.path / "sampler") in child.cmdline()]

    def one_sampler(self) -> psutil.Process:
        """The sampler that has just been started; for a moment its process is not yet known by its command."""
        wait_for(self.samplers)
        (sampler,) = self.samplers()
        return sampler

    def wait_for_sampler(self) -> None:
        """Until it samples; the switch does not see it yet."""
        wait_for(lambda: list(read_jsonl(self.trial.path / "sampler" / "devices.jsonl")))


def has_status(process: psutil.Process, status: str) -> bool:
    return process.status() == status


def test_pairs_are_made_of_the_steps_that_saw_nothing_of_a_switch(tmp_path: Path) -> None:
    launch = Launched(tmp_path, "with", "without")
    with launch.switch:
        launch.end(1)
        assert launch.samplers() == []
        launch.end(2)
        first = launch.one_sampler()
        launch.wait_for_sampler()
        for step in (3, 4, 5, 6):  # it started during 3, was seen to sample during 4
            launch.end(step)
        first.suspend()
        wait_for(lambda: has_status(first, psutil.STATUS_STOPPED))
        launch.look()  # asks it to end
        launch.end(7)
        first.resume()
        wait_for(lambda: has_status(first, psutil.STATUS_ZOMBIE))
        launch.look()  # sees that it ended, during 8
        assert launch.samplers() == []
        launch.end(8)
        launch.end(9)
        launch.end(10, 11)  # the next block has begun with 11
        assert len(launch.kept) == 1
        launch.end(12)
        launch.look()
        second = launch.one_sampler()
        launch.wait_for_sampler()
        launch.look()  # sees that it samples, during 13
        for step in (13, 14, 15, 16, 17):
            launch.end(step)
            assert launch.samplers() == [second]
        launch.look()
        wait_for(lambda: has_status(second, psutil.STATUS_ZOMBIE))
        for step in (18, 19, 20, 21):
            launch.end(step)
    assert launch.kept == [
        {"number": 1, "first": "with", "with": {"step": [5.0, 6.0]}, "without": {"step": [9.0, 10.0]}},
        {"number": 2, "first": "without", "without": {"step": [11.0, 12.0]}, "with": {"step": [14.0, 15.0]}},
        {"number": 3, "first": "with", "with": {"step": [16.0, 17.0]}, "without": {"step": [20.0, 21.0]}},
    ]


def test_as_many_steps_are_left_out_at_an_end_as_at_the_start(tmp_path: Path) -> None:
    launch = Launched(tmp_path, "with", "without")
    with launch.switch:
        launch.end(1, 2)  # starts it
        launch.end(3)
        launch.wait_for_sampler()
        for step in (4, 5, 6, 7):  # it was seen to sample during 5
            launch.end(step)
        sampler = launch.one_sampler()
        launch.look()  # asks it to end
        wait_for(lambda: has_status(sampler, psutil.STATUS_ZOMBIE))
        launch.look()  # sees that it ended, during 8
        for step in range(8, 13):
            launch.end(step)
    assert launch.kept == [
        {"number": 1, "first": "with", "with": {"step": [6.0, 7.0]}, "without": {"step": [11.0, 12.0]}}
    ]


@pytest.mark.parametrize(("on", "does"), [(True, "start"), (False, "end")])
def test_a_sampler_that_hangs_is_an_error_and_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool, does: str
) -> None:
    launch = Launched(tmp_path, "with", "without")
    monkeypatch.setattr(sampler_overhead, "_GRACE_S", 0.1)
    with launch.switch:
        if on:
            monkeypatch.setattr(sampler_overhead, "SAMPLER", [sys.executable, "-c", "import time; time.sleep(600)"])
        launch.end(1, 2)
        if not on:
            launch.wait_for_sampler()
            launch.look()
            sampler = launch.one_sampler()
            sampler.suspend()
            launch.end(3, 4, 5)
        # From here on: a start that is slow does not hang.
        monkeypatch.setattr(sampler_overhead, "_SWITCH_S", 1.0)
        with pytest.raises(LaunchError, match=f"^the sampler did not {does} within 1 s$"):
            wait_for(launch.look)
    assert launch.samplers() == []


@pytest.mark.parametrize("steps", [2, 5], ids=["while it starts", "in the middle of a block"])
def test_no_sampler_is_left_when_the_launch_is_cut_short(tmp_path: Path, steps: int) -> None:
    launch = Launched(tmp_path, "with", "without")

    def cut_short() -> None:
        with launch.switch:
            launch.end(1)
            launch.end(2)
            for step in range(3, steps + 1):
                launch.wait_for_sampler()
                launch.end(step)
            assert len(launch.samplers()) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut_short()
    assert launch.samplers() == []
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("steps", "kept"), [(5, 0), (7, 0), (9, 1)], ids=["while it starts", "in a block", "in the next block"]
)
def test_a_sampler_that_ends_by_itself_is_an_error(tmp_path: Path, steps: int, kept: int) -> None:
    launch = Launched(tmp_path, "without", "with")
    with launch.switch:
        for step in range(1, steps + 1):
            launch.end(step)
            if step == 5:
                launch.look()  # starts it
            if step == 5 < steps:
                launch.wait_for_sampler()
                launch.look()
        sampler = launch.one_sampler()
        sampler.kill()
        wait_for(lambda: has_status(sampler, psutil.STATUS_ZOMBIE))
        with pytest.raises(LaunchError, match=r"^the sampler ended by itself, with exit code -9$"):
            launch.end(steps + 1)  # of a block the last one
    assert len(launch.kept) == kept


# Small steps: how long they take matters to none of the tests.
SMALL = ["--set", "trace_kernels=false", "--set", "batch.size=16", "--set", "batch.mini_batch_size=8"]
SWITCH = [sys.executable, str(SCRIPT), "switch", "--devices", "cpu:1", *SMALL]


def three_pairs(temp: Path, *command: str) -> list[dict[str, Any]]:
    """What a measurement keeps of three pairs; it leaves nothing behind."""
    kept = temp / "pairs.jsonl"
    measured = subprocess.run(
        [*command, "--file", str(kept)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "TMPDIR": str(temp)},
    )
    assert measured.returncode == 0, measured.stderr
    assert "standard on 1 cpu devices, 5 Hz:\ntime with the sampler / without, 3 pairs:\nstep " in measured.stdout
    assert list(temp.iterdir()) == [kept]
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["first"] for line in lines] == ["with", "without", "with"]
    return lines


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pairs_run_side_by_side_and_exchange_their_places(temp: Path) -> None:
    steps = [sys.executable, str(SCRIPT), "steps", "--pairs", "3", "--side-by-side", "--devices", "cpu:2"]
    lines = three_pairs(temp, *steps, *SMALL, "--set", "steps=3")
    assert all(len(line[side]["step"]) == 1 for line in lines for side in ("with", "without"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sampler_is_switched_within_launches(temp: Path) -> None:
    # A pair takes 2 + 2 · (1 + 2) steps, and two pairs five more.
    lines = three_pairs(temp, *SWITCH, "--block", "2", "--launches", "3", "--set", "steps=11")
    assert all(len(line[side][phase]) == 2 for line in lines for side in ("with", "without") for phase in line[side])
    assert {"step", "gen", "update_actor"} <= set(lines[0]["with"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_stopped_switch_leaves_the_kept_pairs_and_nothing_else(tmp_path: Path, temp: Path) -> None:
    kept = tmp_path / "pairs.jsonl"
    command = [*SWITCH, "--block", "1", "--set", "steps=100", "--file", str(kept)]
    with running(command, temp) as process:
        wait_for(lambda: kept.exists() and kept.read_text().endswith("\n"), 300)
        wait_for(lambda: any("telemetry.sampler" in found for found in processes_of(temp)), 120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
        assert_nothing_left(temp)
    assert list(temp.iterdir()) == []
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["first"] for line in lines[:1]] == ["with"]
    assert all(len(line[side]["step"]) == 1 for line in lines for side in ("with", "without"))
