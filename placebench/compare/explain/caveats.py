"""What a reader must know before trusting the numbers: launches that are missing, unequal work, gaps in the samples."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from placebench.compare.comparison import GPM_LOAD, Comparison, PlacementResult
from placebench.compare.explain.gains import OverlapGain, overlap_gains
from placebench.compare.explain.hardware import hardware_warnings
from placebench.compare.measure.metrics import LOAD, STEP_TIME
from placebench.compare.read.run import Launch, Run, is_whole_step
from placebench.compare.statistics.estimates import Ratio
from placebench.compare.statistics.work import UnequalWork
from placebench.record.folder import Status
from placebench.spec.placement import Scaling
from placebench.spec.text import factor, number, plural

MISSED_TICKS = 0.01
# Metrics that are numbers as long as training works, in the order in which one spoils the next.
LEARNING = (r"^critic/score/mean$", r"^critic/rewards/mean$", r"_loss$", r"/grad_norm$")

_NOT_DONE = {
    Status.PLANNED: "not started",
    Status.RUNNING: "still running, or stopped without a word",
    Status.OOM: "out of memory",
    Status.DEVICE_LOST: "lost a device",
}


def caveats(comparison: Comparison) -> tuple[str, ...]:
    """Warnings in order of weight, one line each; none when there is nothing to say."""
    return (
        *(_missing(launch) for launch in comparison.run.missing),
        *(line for result in comparison.results for launch in result.launches for line in _not_finite(launch)),
        *_few_launches(comparison),
        *_pairing(comparison),
        *_unequal_work(comparison),
        *gain_caveats(comparison.run, overlap_gains(comparison), " --ignore-eos makes work equal."),
        *_unequal_devices(comparison),
        *(line for result in comparison.results for launch in result.launches for line in _launch(comparison, launch)),
        *_load(comparison),
        *hardware_warnings(comparison),
    )


def load_meaning(comparison: Comparison) -> str:
    """What 'device load' is in this run."""
    if comparison.load_signal == GPM_LOAD:
        return "share of the SMs with work (GPM)"
    if any(device.kind == "gpu" for device in comparison.run.devices.values()):
        return "share of time in which any kernel ran (NVML), kernels that only wait included"
    return "busy share of the device's cores"


def _samples_gpus(comparison: Comparison) -> bool:
    """Whether any launch was sampled by NVML."""
    return any(launch.sampling.source == "nvml" for result in comparison.results for launch in result.launches)


def _missing(launch: Launch) -> str:
    return f"{launch.label}: {status_words(launch.status)}{f': {launch.error}' if launch.error else ''}"


def status_words(status: Status) -> str:
    """What became of a launch that is not done."""
    return _NOT_DONE.get(status, status.value)


def _not_finite(launch: Launch) -> Iterator[str]:
    """Training that has come apart: it takes its time, but computes nothing that a job would go on with."""
    steps = launch.steps
    names = [name for words in LEARNING for name in steps.columns if re.search(words, name)]
    values = steps.loc[steps.index > launch.last_warmup_step, names].apply(pd.to_numeric, errors="coerce").sort_index()
    wrong = values[~np.isfinite(values).all(axis="columns")]
    if wrong.empty:
        return
    first = wrong.index[0]
    name, value = next((name, value) for name, value in wrong.loc[first].items() if not math.isfinite(value))
    also = f" and {plural(len(wrong) - 1, 'later step')}" if len(wrong) > 1 else ""
    yield (
        f"{launch.label}: {name} is {value} in measured step {first}{also}: what it trained is of no use; look at"
        " data.reward, the learning rates and precision."
    )


def _few_launches(comparison: Comparison) -> Iterator[str]:
    launches = [len(result.launches) for result in comparison.results]
    if len(launches) > 1 and min(launches) == 1:
        planned = Counter(launch.placement for launch in comparison.run.launches)
        advice = "use --rounds 3 or more." if min(planned.values()) == 1 else "--resume runs what is missing."
        yield f"With 1 launch of a placement there is no interval and no verdict: {advice}"


def _pairing(comparison: Comparison) -> Iterator[str]:
    for other in comparison.results[1:]:
        yield from pairing_caveats(comparison.run, comparison.first, other)


def pairing_caveats(run: Run, first: PlacementResult, other: PlacementResult) -> Iterator[str]:
    """What rounds that one of two placements of a run has lost mean for the comparison."""
    step = other.ratios.get(STEP_TIME.key)
    if step is None:
        return
    if 0 < step.pairs < max(step.launches):
        yield (
            f"{other.name} against {first.name}: ratios, critical paths and reason are over the"
            f" {plural(step.pairs, 'round')} with both, all other values over all launches of each."
        )
    yield from _drift(run, first, other, step)


def _drift(run: Run, first: PlacementResult, other: PlacementResult, step: Ratio, whose: str = "both") -> Iterator[str]:
    """That lost rounds let a drift of the machine into the ratio of two step times.

    Args:
        run: the run.
        first: one placement.
        other: the other.
        step: the ratio, over the rounds that both have.
        whose: launches, in words, that each of these rounds has.
    """
    rounds = [number for number in first.measured_rounds if number in other.measured_rounds]
    if not step.pairs:
        if math.isnan(step.low):
            return
        common = f"only {plural(len(rounds), 'round')}" if rounds else "no round"
        yield (
            f"{other.name} and {first.name} have {common} in common, so that their launches are not paired: a drift of"
            " the machine between them shows as a difference. --resume runs what is missing."
        )
        return
    order = dict(enumerate(run.record.order, start=1))
    # An arm may bear another name than its placement has in the run.
    names = {side.launches[0].placement: side.name for side in (first, other)}
    went_first = {min(names, key=order[number].index) for number in rounds if number in order}
    if len(rounds) > 1 and len(went_first) == 1:
        earlier = names.pop(went_first.pop())
        (later,) = names.values()
        yield (
            f"In every round that has {whose}, {earlier} ran before {later}: a drift of the machine shows as a"
            " difference. --resume runs what is missing."
        )


def _unequal_work(comparison: Comparison) -> Iterator[str]:
    first = comparison.first
    for other in comparison.results[1:]:
        if Scaling.WEAK in (first.placement.scaling, other.placement.scaling):
            yield (
                f"Weak scaling: a step of {other.name} is {number(_tokens(other))} tokens, one of {first.name}"
                f" {number(_tokens(first))}; compare tokens/s, not the time of a step."
            )
            continue
        step = other.ratios.get(STEP_TIME.key)
        if other.work is None or step is None:
            continue
        yield f"{_tokens_of_both(first, other)} {work_figures(step, other.work)} --ignore-eos makes work equal."


def gain_caveats(run: Run, gains: Iterable[OverlapGain], advice: str = "") -> Iterator[str]:
    """What lost rounds and unequal work mean for the factors of overlap; no pair has the first placement in it.

    Args:
        run: the run.
        gains: the factors.
        advice: how to make work equal, behind every line about work that is not.
    """
    for gain in gains:
        # Every second round is reversed: where two of three placements keep their order, all three do.
        whose = "all three" if gain.split and gain.rounds else "both"
        yield from _drift(run, gain.base, gain.result, gain.overlap, whose)
        if gain.work:
            yield (
                f"{_tokens_of_both(gain.base, gain.result)} ({_more_tokens(gain.work)}): the overlap's factor is"
                f" {_both_figures(gain.overlap, gain.work)}.{advice}"
            )


def _tokens_of_both(first: PlacementResult, other: PlacementResult) -> str:
    return (
        f"Unequal work: {other.name} had {number(_tokens(other))} tokens a step, {first.name} {number(_tokens(first))}"
    )


def work_figures(measured: Ratio, work: UnequalWork, label: str = "Step time") -> str:
    """By how much the tokens differ, and the ratio of a number as measured and with the tokens taken out."""
    return f"({_more_tokens(work)}). {label}: {_both_figures(measured, work)}; a verdict needs both to agree."


def _more_tokens(work: UnequalWork) -> str:
    return f"{100 * (work.tokens.value - 1):+.1f} %"


def _both_figures(measured: Ratio, work: UnequalWork) -> str:
    return f"{_figure(measured)} as measured, {_figure(work.adjusted)} {_adjustment(work)}"


def _figure(found: Ratio) -> str:
    return factor(found.value, found.low, found.high)


def _adjustment(work: UnequalWork) -> str:
    if work.fitted:
        return f"at equal tokens (regression: 1 % more tokens, {work.exponent:.2f} % longer)"
    return "per token"


def _tokens(result: PlacementResult) -> float:
    return float(result.steps["tokens"].mean()) if len(result.steps) else float("nan")


def _unequal_devices(comparison: Comparison) -> Iterator[str]:
    first = comparison.first.placement
    for other in (result.placement for result in comparison.results[1:]):
        if len(other.devices) != len(first.devices):
            yield (
                f"{other.name} uses {plural(len(other.devices), 'device')}, {first.name} {len(first.devices)}:"
                " compare tokens/s/device."
            )


def _launch(comparison: Comparison, launch: Launch) -> Iterator[str]:
    left_out = comparison.run.record.steps_before + comparison.run.record.warmup_steps
    planned = comparison.run.record.steps - left_out
    measured = _measured_steps(launch, left_out)
    if measured < planned:
        yield f"{launch.label}: {measured} of {planned} measured steps on record"
    sampling = launch.sampling
    if sampling.source is None:
        yield f"{launch.label}: no device samples"
    elif sampling.ticks is None or sampling.missed is None:
        yield f"{launch.label}: the sampler ended before the launch; its samples are incomplete"
    elif sampling.missed > MISSED_TICKS * (sampling.ticks + sampling.missed):
        due = sampling.ticks + sampling.missed
        yield f"{launch.label}: the sampler missed {sampling.missed} of {due} samples"
    yield from (f"{launch.label}: {error}" for error in sampling.errors)


def _measured_steps(launch: Launch, left_out: int) -> int:
    steps: pd.Series[int] = launch.spans.loc[is_whole_step(launch.spans), "step"]
    return int((steps > left_out).sum())


def _load(comparison: Comparison) -> Iterator[str]:
    for result in comparison.results:
        sampled = any(launch.sampling.source for launch in result.launches)
        if sampled and not result.estimate(LOAD.key).n:
            yield f"{result.name}: the samples have no device load"
    if comparison.load_signal != GPM_LOAD and _samples_gpus(comparison):
        yield "Device load is NVML's: a device that spins in a waiting kernel reads 100 %."
    yield from _without_gpm(comparison)


def _without_gpm(comparison: Comparison) -> Iterator[str]:
    """Devices without GPM, each once with the reason that the driver gave."""
    absent = {
        device: reason
        for result in comparison.results
        for launch in result.launches
        for device, reason in launch.sampling.gpm_absent.items()
    }
    for device, reason in absent.items():
        label = comparison.run.labels.get(device, device)
        yield f"No GPM on {label} ({reason}): its activity of SMs, tensor cores and memory is not known."
