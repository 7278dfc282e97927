"""The words of a comparison: which side of a number is better, and what a ratio says."""

from enum import StrEnum

MIN_EFFECT = 0.02


class Better(StrEnum):
    """What a larger value of a metric means."""

    LESS = "less"
    """Smaller is better: times."""
    MORE = "more"
    """Larger is better: throughput."""
    NEITHER = "neither"
    """Neither is better in itself: load, memory, idle time."""


class Verdict(StrEnum):
    """One word on a ratio."""

    FASTER = "faster"
    SLOWER = "slower"
    HIGHER = "higher"
    """Above the smallest effect of interest, for a metric of which neither side is better."""
    LOWER = "lower"
    SAME = "same"
    UNDECIDED = "undecided"
