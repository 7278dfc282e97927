"""The thread that follows the agents of a launch's nodes, here made-up ones that answer at once."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from disks import small_disk
from launching import wait_for

from placebench.record.folder import Trial
from placebench.record.writing import read_jsonl
from placebench.sessions.ray_cluster import follower
from placebench.sessions.ray_cluster.follower import Follower
from placebench.telemetry.spans import SpanClock


class CallError(Exception):
    """What a call of these agents could raise."""


class AnsweredCalls:
    """Calls whose reference is the answer."""

    error = failed = died = CallError

    def get(self, answers: Sequence[Any], timeout_s: float | None = None) -> list[Any]:
        """They are there."""
        return [answer[0] for answer in answers]

    def wait(self, answers: Sequence[Any], count: int = 1, timeout_s: float | None = None) -> list[Any]:
        """All of them are there."""
        return list(answers)


class LateCalls(AnsweredCalls):
    """Calls whose answers are there when they are looked for the third time."""

    def __init__(self) -> None:
        self._looks = Counter[int]()

    def wait(self, answers: Sequence[Any], count: int = 1, timeout_s: float | None = None) -> list[Any]:
        """Some of them are there."""
        numbers = [answer[0][0][0]["number"] for answer in answers]
        self._looks.update(numbers)
        return [answer for number, answer in zip(numbers, answers, strict=True) if self._looks[number] > 2]


def agent(clock: SpanClock, drained: list[int]) -> Any:
    """An agent that has one sample of 1 KB and more whenever it is asked."""

    def drain() -> list[Any]:
        drained.append(len(drained))
        line = {"kind": "sample", "device": "cpu:0", "mono": clock.mono(), "number": drained[-1], "text": "x" * 1000}
        return [([line], None)]

    return SimpleNamespace(now=SimpleNamespace(remote=lambda: [clock.mono()]), drain=SimpleNamespace(remote=drain))


def test_a_node_that_answers_late_is_asked_again_when_it_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_FETCH_EVERY_S", 0.001)
    clock, drained, trial = SpanClock(), list[int](), Trial(tmp_path)
    followed = Follower(trial, {"a": agent(clock, drained)}, "a", clock, LateCalls())
    followed.start()
    wait_for(lambda: len(drained) > 10)
    followed.stop({"a": []})
    numbers = [line["number"] for line in read_jsonl(trial.device_samples)]
    assert len(numbers) >= 10
    assert numbers == drained[: len(numbers)], "what was drained in between is lost"


def test_what_cannot_be_written_is_told_and_the_nodes_are_followed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follower, "_FETCH_EVERY_S", 0.001)
    clock, drained = SpanClock(), list[int]()
    with small_disk(tmp_path / "trial", "16k") as disk:
        trial = Trial(disk)
        followed = Follower(trial, {"a": agent(clock, drained)}, "a", clock, AnsweredCalls())
        followed.start()
        wait_for(lambda: len(drained) > 50)
        followed.stop({"a": []})
        numbers = [line["number"] for line in read_jsonl(trial.device_samples)]
    assert numbers == list(range(len(numbers)))
    assert 0 < len(numbers) < 16
    assert capsys.readouterr().out == (
        f"not all samples could be written, so device figures are missing: {trial.device_samples}: No space left"
        " on device\n"
    )
