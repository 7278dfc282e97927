"""What a log of a user's job says of its steps: how long they took, and their tokens and metrics."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from placebench.logs.run import LoggedRun
from placebench.logs.timing import Kind
from placebench.spec.phases import STEP

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LogFigures:
    """What a log says of its steps, by their numbers."""

    work: Mapping[int | None, float]
    """Seconds without the validation and checkpoints in a step, where the log times it."""
    apart: Mapping[int | None, float]
    """Seconds of these."""
    tokens: Mapping[int | None, float]
    metrics_of: Callable[[int], Mapping[str, float]]

    @classmethod
    def of(cls, run: LoggedRun | None) -> Self:
        """Those of a launch's log; without one, none of any step."""
        if run is None:
            return cls({}, {}, {}, lambda number: {})
        return cls(*_step_seconds(run), _tokens(run), run.logs[0].table.metrics_of)


def _step_seconds(run: LoggedRun) -> tuple[dict[int | None, float], dict[int | None, float]]:
    """Of each step, as far as the log has it: its time without the validation and checkpoints in it, and theirs."""
    if run.timings is None or STEP not in run.timings.seconds:
        return {}, {}
    seconds, kinds = run.timings.seconds, run.timings.kinds
    apart = seconds[[phase for phase in run.dialect.timing.movable if kinds.get(phase) is Kind.PHASE]].sum(axis=1)
    work = (seconds[STEP] - apart).dropna()
    # One that a log rounds to nothing is not timed.
    return _by_step(work[work > 0]), _by_step(apart)


def _by_step(seconds: "pd.Series[float]") -> dict[int | None, float]:
    return dict(zip(seconds.index.tolist(), seconds.tolist(), strict=True))


def _tokens(run: LoggedRun) -> dict[int | None, float]:
    """Tokens of each step, as far as the log counts them."""
    rows: Iterator[tuple[int | None, float]] = zip(
        run.throughput["step"].tolist(), (run.throughput["tokens"] / run.throughput["steps"]).tolist(), strict=True
    )
    return dict(rows)
