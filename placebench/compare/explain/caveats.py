"""What a reader must know before trusting the numbers, in order of weight."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypeVar

import numpy as np

from placebench.compare.comparison import Comparison
from placebench.compare.explain.gains import overlap_gains
from placebench.compare.explain.hardware import hardware_warnings
from placebench.compare.explain.launch_caveats import (
    bad_end,
    beside_other_runs,
    job_caveats,
    launch_gaps,
    load_gaps,
    missing_launches,
    not_finite,
)
from placebench.compare.explain.pair_caveats import (
    doubtful_gains,
    few_launches,
    not_interleaved,
    other_work,
    pairing,
    unequal_devices,
    unequal_pools,
    unequal_work,
    weak_scaling,
)
from placebench.compare.explain.placing import misplacements
from placebench.compare.measure.placements import GPM_LOAD, RunSide
from placebench.compare.metrics import STEP_TIME, UNATTRIBUTED, phase_metric
from placebench.compare.read.run import Run
from placebench.compare.side import Side
from placebench.spec.phases import STEP, phase_order
from placebench.spec.text import few, listing

ADVICE = " --ignore-eos makes work equal."

T = TypeVar("T")


def caveats(comparison: Comparison) -> tuple[str, ...]:
    """Warnings in order of weight, one line each; none when there is nothing to say."""
    if comparison.run:
        return tuple(_of_run(comparison, comparison.run))
    return tuple(dict.fromkeys(_of_chosen_sides(comparison)))


def load_meaning(side: RunSide) -> str:
    """What 'device load' is in a placement's run."""
    if side.load_signal == GPM_LOAD:
        return "share of the SMs with work (GPM)"
    if any(device.kind == "gpu" for device in side.run.devices.values()):
        return "share of time in which any kernel ran (NVML), kernels that only wait included"
    return "busy share of the device's cores"


def _of_run(comparison: Comparison, run: Run) -> Iterator[str]:
    """What to mind of a run's placements, or of those of them that are there."""
    placements = comparison.placements
    launches = [launch for side in placements for launch in side.launches]
    yield from missing_launches(run, placements)
    yield from _each(bad_end, launches)
    yield from _each(not_finite, launches)
    yield from few_launches(comparison)
    yield from beside_other_runs(run, launches)
    yield from _of_pairs(comparison, advice="" if run.record.job else ADVICE)
    yield from _each(misplacements, placements)
    yield from _each(partial(launch_gaps, run=run), launches)
    yield from load_gaps(placements)
    if run.record.job:
        yield from job_caveats(run.record.job, launches)
    yield from hardware_warnings(comparison)


def _of_pairs(comparison: Comparison, advice: str) -> Iterator[str]:
    """What to mind where a placement of a run is compared with its first one, by kind and then by placement."""
    first, *others = comparison.placements
    yield from _each(partial(pairing, first), others)
    for other in others:
        yield from list(weak_scaling(first, other)) or unequal_work(first, other, advice)
    yield from doubtful_gains(overlap_gains(comparison), advice)
    yield from _each(partial(unequal_pools, first), others)


def _each(caveats_of: Callable[[T], Iterable[str]], ones: Iterable[T]) -> Iterator[str]:
    return chain.from_iterable(map(caveats_of, ones))


def _of_chosen_sides(comparison: Comparison) -> Iterator[str]:
    """What to mind of placements of any runs and of logs."""
    first = comparison.first
    yield from (f"Compared by force: {doubt}." for doubt in comparison.doubts)
    yield from list(few_launches(comparison)) or not_interleaved(comparison)
    for other in comparison.others:
        yield from pairing(first, other)
        yield from list(unequal_work(first, other)) or other_work(first, other)
        yield from unequal_devices(first, other)
    yield from doubtful_gains(overlap_gains(comparison))
    yield from _each(_overlaps, comparison.sides)
    told = dict(_told_of_runs(comparison))
    for side in comparison.sides:
        yield from side.background.flags
        yield from told.get(side.name, ())


def _overlaps(side: Side) -> Iterator[str]:
    """That phases of a log do not add up."""
    overlapping = side.background.overlapping
    shown = [phase for phase in phase_order(overlapping) if phase not in (STEP, UNATTRIBUTED.key)]
    whole = side.estimate(STEP_TIME.key)
    total = float(np.nansum([side.value(phase_metric(phase).key) for phase in shown]))
    if overlapping and not (whole.n and total <= whole.value):
        overlap = "overlaps other work: it does" if len(shown) == 1 else "overlap: they do"
        yield f"{side.name}: {listing(shown)} {overlap} not add up to the step."


def _told_of_runs(comparison: Comparison) -> Iterator[tuple[str, list[str]]]:
    """By a side's name, what to mind of the chosen placements in their own runs, and whose it is if these are several.

    What all sides share is said without, unless it names a placement or a launch: each run has its own of that name.
    """
    said: dict[str, list[RunSide]] = {}
    for side in comparison.placements:
        as_in_run = replace(side, name=side.placement.name)
        for line in caveats(Comparison((as_in_run,), comparison.min_effect, side.run)):
            said.setdefault(line, []).append(side)
    of_several = len({side.home for side in comparison.placements}) > 1
    lines: dict[str, list[str]] = {}
    for line, sides in said.items():
        is_shared = len(sides) == len(comparison.sides) and not any(side.placement.name in line for side in sides)
        whose = f"{few(dict.fromkeys(map(_name_with_run, sides)), ', ')}: " if of_several and not is_shared else ""
        lines.setdefault(sides[0].name, []).append(f"{whose}{line}")
    yield from lines.items()


def _name_with_run(side: RunSide) -> str:
    """What tells a chosen placement from that of another run: the name that it goes by, or else its run's."""
    return side.run.folder.path.name if side.name == side.placement.name else side.name
