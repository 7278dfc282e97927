"""Pairs of what took place with the sampler and without: their file, and the ratio of times that they give."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import click
import numpy as np
from scipy.stats import t

from placebench.errors import UsageError
from placebench.record.writing import read_jsonl
from placebench.spec.text import plural

Timings: TypeAlias = dict[str, list[float]]
"""Seconds of the step and of each phase, a number a measured step."""

Pair: TypeAlias = dict[str, Any]
"""The timings of two launches, or blocks of steps, by `with` and `without`, and which of them was `first`.

Of blocks also their pair's `number` in the launch, from 1.
"""


def keep_pair(file: TextIO, pair: Pair) -> None:
    """Add a pair to a file, and tell it."""
    means = (f"{side} {statistics.fmean(pair[side]['step']):.4f} s a step" for side in ("with", "without"))
    click.echo(f"{', '.join(means)}; first: {pair['first']}")
    file.write(json.dumps(pair) + "\n")
    file.flush()


def read_pairs(file: Path) -> list[Pair]:
    """The pairs that `--file` kept.

    Raises:
        UsageError: the file holds something else.
    """
    refused = UsageError(f"{file}: not pairs as --file keeps them")
    try:
        pairs = list(read_jsonl(file))
        first = {pair["first"] for pair in pairs}
        totals = [sum(pair[side]["step"]) for pair in pairs for side in ("with", "without")]
        phases = [sum(times) for pair in pairs for side in ("with", "without") for times in pair[side].values()]
        numbers = [int(pair.get("number", 1)) for pair in pairs]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise refused from None
    if first - {"with", "without"} or min(totals, default=1.0) <= 0 or min(phases + numbers, default=0) < 0:
        raise refused
    return pairs


def next_order(pairs: Sequence[Pair]) -> tuple[str, str]:
    """With which side the next launch begins: with the other one than the last, of which these are the pairs."""
    if not pairs:
        return ("with", "without")
    begins_with = (pairs[-1]["first"] == "with") == (pairs[-1].get("number", 1) % 2 == 1)
    return ("without", "with") if begins_with else ("with", "without")


def print_ratios(series: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Print the ratio of each phase that has one.

    Args:
        series: pairs as `--file` keeps them, by the file that keeps them.

    Raises:
        UsageError: the pairs are of different work, or too few.
    """
    pairs = [pair for measured in series for pair in measured]
    phases = {tuple(pair[side]) for pair in pairs for side in ("with", "without")}
    if len(phases) > 1:
        raise UsageError("the pairs have different phases: they are not of one work")
    click.echo(f"time with the sampler / without, {plural(len(pairs), 'pair')}:")
    for phase in phases.pop() if phases else ("step",):
        if any(sum(pair[side][phase]) <= 0 for pair in pairs for side in ("with", "without")):
            continue  # what is unattributed may be nothing
        ratio, low, high = effect(series, phase)
        click.echo(f"{phase:15} {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}")


def effect(series: Sequence[Sequence[Mapping[str, Any]]], phase: str) -> tuple[float, float, float]:
    """The ratio of a phase's time with the sampler to that without, and the ends of its 95 % interval.

    Args:
        series: pairs as `--file` keeps them, by the file that keeps them.
        phase: of their timings.

    Raises:
        UsageError: the pairs are too few to tell the effect from the places and from noise.
    """
    terms, ratios = [], []
    for number, measured in enumerate(series):
        for pair in measured:
            places = [0.0] * len(series)
            places[number] = 1.0 if pair["first"] == "with" else -1.0
            terms.append([1.0, *places])
            ratios.append(math.log(sum(pair["with"][phase]) / sum(pair["without"][phase])))
    design, observed = np.array(terms), np.array(ratios)
    free = len(ratios) - len(series) - 1
    if free < 1 or np.linalg.matrix_rank(design) <= len(series):
        found = plural(len(ratios), "pair")
        raise UsageError(f"{found} cannot tell the sampler from the places: measure more, in both orders")
    fitted, *_ = np.linalg.lstsq(design, observed)
    variance = float(np.sum((observed - design @ fitted) ** 2)) / free
    half = float(t.ppf(0.975, free)) * math.sqrt(variance * np.linalg.inv(design.T @ design)[0, 0])
    return math.exp(fitted[0]), math.exp(fitted[0] - half), math.exp(fitted[0] + half)
