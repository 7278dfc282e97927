"""What `placebench check` is asked in words, and its answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from placebench.errors import BaselineError, UsageError
from placebench.gate.baseline import Baseline, load_baseline, measured_run
from placebench.gate.checking import BaselineCheck, Mismatch, as_chosen, check, join
from placebench.gate.sources import read_sources, refuse_itself, refuse_missing, refuse_twice
from placebench.record.named_runs import with_run
from placebench.record.writing import refuse_same


@dataclass(frozen=True)
class AskedCheck:
    """A check as it is asked for: which runs, against what, and by which rules."""

    runs: str
    """Runs, or one placement of each, set apart by commas."""
    baseline: str
    """Baseline files or runs, likewise."""
    max_regression: float
    """What is allowed, as a fraction."""
    metrics: tuple[str, ...]
    """Labels or keys of the numbers; the step time where none are given."""
    min_launches: int
    """Finished launches that each placement needs on both sides."""
    allow: tuple[Mismatch, ...]
    """Kinds of difference that do not make the two incomparable."""
    paired: bool
    """Whether the launches of both were interleaved."""
    outputs: Mapping[str, Path | None]
    """The files to which the answer is written, by option: none of them may be the baseline."""


def answer(asked: AskedCheck) -> BaselineCheck:
    """Compare the runs with their baseline; where nothing is there to compare with, the answer says that.

    Raises:
        UsageError: what is asked for cannot be.
    """
    sources = read_sources(asked.runs, with_run)
    for source in sources:
        refuse_missing(source)
    measured = [measured_run(source.path, source.placement) for source in sources]
    refuse_twice(sources, measured)
    try:
        return _against_baseline(asked, measured, sources[0].placement)
    except BaselineError as error:
        # Whoever reads the outputs must see that nothing was compared.
        return BaselineCheck(
            run=asked.runs, baseline=asked.baseline, max_regression=asked.max_regression, missing=str(error)
        )


def _against_baseline(asked: AskedCheck, measured: list[Baseline], chosen: str | None) -> BaselineCheck:
    """What was measured, of all placements or of the chosen one, against the baseline."""
    sources = read_sources(asked.baseline, _baseline_with_run)
    for source in sources:
        refuse_same({"--baseline": source.path, **asked.outputs})
    before = [load_baseline(source.path, source.placement) for source in sources]
    refuse_twice(sources, before)
    refuse_itself(measured, before, asked.baseline)
    against = sources[0].placement
    return check(
        *as_chosen(join(measured), chosen, join(before), against),
        max_regression=asked.max_regression,
        metrics=asked.metrics,
        min_launches=asked.min_launches,
        allow=asked.allow,
        paired=asked.paired,
        against=against,
    )


def _baseline_with_run(text: str) -> str:
    try:
        return with_run(text)
    except UsageError as error:
        raise BaselineError(*error.args) from None
