"""Whether the launches of a run and of its baseline took turns, without which they are no pairs."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from placebench.compare.explain.pair_caveats import DRIFT, UNKNOWN_DRIFT
from placebench.gate.baseline import MeasuredPlacement
from placebench.spec.text import listing


def turns_missed(sides: Mapping[str, tuple[MeasuredPlacement, MeasuredPlacement]]) -> Iterator[str]:
    """What speaks against comparing pair by pair, one line each.

    Args:
        sides: of every placement, by name, the baseline's and the run's.
    """
    took = {name: _took_turns(*both) for name, both in sides.items()}
    if apart := [name for name, known in took.items() if known is False]:
        yield (
            f"warning: launches of {listing(apart)} did not take turns with the baseline's: they are not pairs as"
            f" --paired needs them, and {DRIFT}."
        )
    if unknown := [name for name, known in took.items() if known is None]:
        yield (
            f"warning: it is not known whether launches of {listing(unknown)} took turns with the baseline's, as"
            f" --paired says: {UNKNOWN_DRIFT}."
        )


def _took_turns(before: MeasuredPlacement, now: MeasuredPlacement) -> bool | None:
    """Whether no launch of another pair was between the two of a pair; None where it is not known when they were."""
    pairs = [pair for pair in zip(before.launches, now.launches, strict=False) if all(pair)]
    times = zip(before.launches, now.launches, before.first_steps, now.first_steps, strict=False)
    known = [
        (min(first, other), max(first, other))
        for launch, beside, first, other in times
        if launch and beside and first is not None and other is not None
    ]
    if len(known) < len(pairs):
        return None
    return all(end < start for (_, end), (start, _) in pairwise(sorted(known)))
