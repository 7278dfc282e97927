"""A placement beside the first one, number by number: the same cells on the terminal, in Markdown and in HTML."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from placebench.report.placement_schema import FactorSummary, PlacementSummary, QuantitySummary
from placebench.spec.text import MISSING, interval, ratio, scale_of


class Judged(Protocol):
    """Something with a verdict on a ratio."""

    @property
    def verdict(self) -> str:
        """The word; empty where there is no ratio."""

    @property
    def corrected_for(self) -> int | None:
        """See `RatioSummary.corrected_for`."""


@dataclass(frozen=True)
class Row:
    """One number of the placements side by side."""

    label: str
    """Its name; phases are set off from the step that they are part of."""
    is_phase: bool
    """Whether it is a part of the step."""
    first: str
    """The first placement's value."""
    other: str
    """The other placement's."""
    ratio: str
    """Other / first."""
    interval: str
    """The ratio's 95 % interval."""
    verdict: str
    """The word; empty where there is no ratio."""
    corrected_for: int | None = None
    """See `RatioSummary.corrected_for`."""

    @property
    def marked_verdict(self) -> str:
        """The word, with the mark of `note_on` where the interval beside it says something else."""
        return marked_verdict(self)


def comparison_rows(first: PlacementSummary, other: PlacementSummary) -> tuple[Row, ...]:
    """The numbers of a placement beside the first's, without those that neither of them has."""
    pairs = zip(first.quantities, other.quantities, strict=True)
    return tuple(_row(*pair) for pair in pairs if any(found.value is not None for found in pair))


def rows_of(first: Sequence[QuantitySummary], other: Sequence[QuantitySummary]) -> tuple[Row, ...]:
    """All of the same numbers of two placements beside each other."""
    return tuple(_row(*pair) for pair in zip(first, other, strict=True))


def controller_rows(first: PlacementSummary, other: PlacementSummary) -> tuple[Row, ...]:
    """The controller's view of the phases; none where it is all that is known, and the numbers have it already."""
    views = [(one.controller_view, {found.key: found.value for found in one.quantities}) for one in (first, other)]
    is_all = all(
        found.value == numbers.get(found.key.replace("controller/", "phase/", 1))
        for view, numbers in views
        for found in view
    )
    return () if is_all else rows_of(first.controller_view, other.controller_view)


def marked_verdict(found: Judged) -> str:
    """The word of a verdict, with the mark of `note_on` where the interval beside it says something else."""
    return f"{found.verdict}*" if found.corrected_for else found.verdict


def note_on(rows: Iterable[Judged], what: str = "numbers") -> str | None:
    """Why verdicts of a table or a figure, whose rows are `what`, are marked; None where none is."""
    if not (counts := [row.corrected_for for row in rows if row.corrected_for]):
        return None
    return f"* its interval alone would decide, but of {max(counts)} {what} compared at once, some decide by chance"


def _row(first: QuantitySummary, other: QuantitySummary) -> Row:
    found, told = other.ratio, scale_of(first.unit, first, other, ratio=other.ratio)
    return Row(
        first.label,
        first.key.startswith(("phase/", "controller/")) or first.key == "unattributed",
        told.text(first.value),
        told.text(other.value),
        *ratio_cells(found),
        "" if found is None else found.verdict.value,
        None if found is None else found.corrected_for,
    )


def ratio_cells(found: FactorSummary | None) -> tuple[str, str]:
    """A ratio and its interval."""
    if found is None:
        return MISSING, MISSING
    return ratio(found.value, found.low, found.high), interval(found.low, found.high)


def text_of(found: QuantitySummary) -> str:
    """A number with its unit, and the digits that its interval supports."""
    return scale_of(found.unit, found).text(found.value)
