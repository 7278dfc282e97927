"""Console logs that print a step's metrics over several lines: a format's table, and the one reader of them all."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from placebench.logs.console import CleanLines, StepClock
from placebench.logs.table import STEP_LIMIT, StepTable

Collected = TypeVar("Collected")


# What a line below a title is: a row of the step's block, the block's last line, or another process's.
BlockLine = Literal["row", "end", "other"]


@dataclass(frozen=True)
class StepBlocks(Generic[Collected]):
    """How a console log prints the metrics of a step, in a block of lines."""

    title: str
    """Regular expression of the line above the metrics; its group is the step, where it names it."""
    collect: Callable[[], Collected]
    """Makes what the lines of one block are collected in."""
    take: Callable[[str, Collected], BlockLine]
    """Puts a line below a title into what is collected, and says what the line is."""
    metrics: Callable[[Collected], Mapping[str, float]]
    """Gives the metrics of what was collected."""
    begins_below: bool = False
    """Whether a block begins with its first row, and one title may have several."""
    step_metric: str | None = None
    """The metric that is the step, where the title does not name it; a block without it is of the step before."""
    total_metric: str | None = None
    """The metric that a whole block has, where no line ends it but the next title."""
    is_clocked: bool = False
    """Whether steps are timed by the stamps before their titles."""
    is_placed_at_end: bool = False
    """Whether the line that a block is found at is its last one, and not its first."""

    def read(self, blocks: Iterator[bytes], table: StepTable) -> None:
        """Put the steps of blocks of whole lines into a table; one without its end is cut off."""
        lines, clock = CleanLines(blocks), StepClock()
        search, take = re.compile(self.title).search, self.take
        step, began, block, stamped = -1, 0, self.collect(), dict[str, float]()
        table.where = lambda: lines.number if self.is_placed_at_end else began

        def leave() -> None:
            metrics = self.metrics(block) if self.total_metric else {}
            if self.total_metric in metrics:
                table.add(step, metrics)
            elif began:
                table.damage(began)

        for line in lines:
            if found := search(line):
                leave()
                step = step if self.step_metric else int(found[1])
                began, block = 0 if self.begins_below else lines.number, self.collect()
                stamped = clock.since_last(step, line) if self.is_clocked else {}
            elif began or (self.begins_below and step >= 0):
                part = take(line, block)
                if part == "row":
                    began = began or lines.number
                elif part == "end" and began:
                    metrics = self.metrics(block)
                    number = self._step(metrics, step)
                    if number is not None:
                        step = number
                        table.add(step, {**metrics, **stamped})
                    began, block, stamped = 0, self.collect(), {}
        leave()

    def _step(self, metrics: Mapping[str, float], before: int) -> int | None:
        """The step of a block; None where it has none."""
        if self.step_metric is None:
            return before
        number = metrics.get(self.step_metric, before) if metrics else math.nan
        return int(number) if 0 <= number < STEP_LIMIT else None
