"""By how much the tokens of two sides differ, and what that does to a ratio, as phrases of warnings."""

from placebench.compare.statistics.estimates import Ratio
from placebench.compare.statistics.work import UnequalWork
from placebench.spec.text import factor


def work_figures(measured: Ratio, work: UnequalWork, label: str = "Step time") -> str:
    """By how much the tokens differ, and the ratio of a number as measured and with the tokens taken out."""
    return f"({more_tokens(work)}). {label}: {both_figures(measured, work)}; a verdict needs both to agree."


def more_tokens(work: UnequalWork) -> str:
    """By how much the tokens of a step differ, in percent."""
    return f"{100 * (work.tokens.value - 1):+.1f} %"


def both_figures(measured: Ratio, work: UnequalWork) -> str:
    """A ratio as measured, and with the tokens taken out."""
    return f"{_figure(measured)} as measured, {_figure(work.adjusted)} {_adjustment(work)}"


def _figure(found: Ratio) -> str:
    return factor(found.value, found.low, found.high)


def _adjustment(work: UnequalWork) -> str:
    if work.fitted:
        return f"at equal tokens (regression: 1 % more tokens, {work.exponent:.2f} % longer)"
    return "per token"
