"""What a reader must know before trusting the numbers: launches that are missing, unequal work, gaps in the samples."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from placebench.compare.comparability import fact_text, has_other_lengths, has_other_work, has_unknown_work
from placebench.compare.comparison import Comparison
from placebench.compare.explain.gains import OverlapGain, overlap_gains
from placebench.compare.explain.hardware import hardware_warnings
from placebench.compare.explain.placing import misplacements
from placebench.compare.explain.work_figures import both_figures, more_tokens, work_figures
from placebench.compare.measure.placements import GPM_LOAD, RunSide
from placebench.compare.metrics import LOAD, STEP_TIME, TOKENS, TOKENS_PER_DEVICE, UNATTRIBUTED, phase_metric
from placebench.compare.read.run import Launch, Run
from placebench.compare.side import Side
from placebench.compare.statistics.estimates import Ratio
from placebench.logs.flags import LEARNING
from placebench.record.folder import Status, resuming
from placebench.record.job_record import JobRecord, LogFlag
from placebench.spec.devices import index_ranges, with_labels
from placebench.spec.phases import STEP, phase_order
from placebench.spec.text import few, format_seconds, listing, number, plural

ADVICE = " --ignore-eos makes work equal."
DRIFT = "if the machine changed in between, that shows as a difference"
UNKNOWN_DRIFT = "if they did not and the machine changed in between, that shows as a difference"
MISSED_TICKS = 0.01
# So many of what launches say alike, but for numbers and places.
FLAGS_SHOWN = 3


def caveats(comparison: Comparison) -> tuple[str, ...]:
    """Warnings in order of weight, one line each; none when there is nothing to say."""
    if comparison.run:
        return tuple(_of_run(comparison, comparison.run))
    return tuple(dict.fromkeys(_of_chosen_sides(comparison)))


def _of_run(comparison: Comparison, run: Run) -> Iterator[str]:
    """What to mind of a run's placements, or of those of them that are there."""
    first, *others = placements = comparison.placements
    names = {side.placement.name for side in placements}
    launches = [launch for side in placements for launch in side.launches]
    missing = [launch for launch in run.missing if launch.placement in names]
    yield from (f"{one.label}: {one.fate}" for one in missing if one.status is not Status.PLANNED)
    yield from _not_started([launch for launch in missing if launch.status is Status.PLANNED])
    path = run.folder.path
    # A report is read elsewhere too: nothing above the folder that it was made in is named.
    resume = resuming(Path(path.name) if path.is_absolute() else path)
    if all(launch.status is Status.PLANNED for launch in run.launches):
        yield f"no launch has come to its steps, for none was started; if the run is over, go on with {resume}"
    elif not launches and run.record.status == Status.INTERRUPTED:
        yield f"the run was interrupted before a launch had ended: go on with {resume}"
    yield from (f"{one.label} did not end in order: {one.bad_end}." for one in launches if one.bad_end)
    yield from (line for launch in launches for line in _not_finite(launch))
    yield from _few_launches(comparison)
    yield from _beside_other_runs(run, launches)
    yield from (line for other in others for line in _pairing(first, other))
    advice = "" if run.record.job else ADVICE
    yield from (line for other in others for line in _weak_scaling(first, other) or _unequal_work(first, other, advice))
    yield from _gains(overlap_gains(comparison), advice)
    yield from (line for other in others for line in _unequal_pools(first, other))
    yield from (line for side in placements for line in misplacements(side))
    yield from (line for launch in launches for line in _launch(run, launch))
    yield from _load(placements)
    if run.record.job:
        yield from _of_job(run.record.job, launches)
    yield from hardware_warnings(comparison)


def _of_chosen_sides(comparison: Comparison) -> Iterator[str]:
    """What to mind of placements of any runs and of logs."""
    first = comparison.first
    yield from (f"Compared by force: {doubt}." for doubt in comparison.doubts)
    yield from list(_few_launches(comparison)) or _not_interleaved(comparison)
    for other in comparison.others:
        yield from _pairing(first, other)
        yield from list(_unequal_work(first, other)) or _other_work(first, other)
        counts = [side.background.facts.get("devices") for side in (other, first)]
        if other.work and None in counts:
            yield "On how many devices each ran is not known: --devices A,B compares tokens/s/device."
        if None not in counts and counts[0] != counts[1]:
            what = "device" if str(counts[0]) == "1" else "devices"
            advice = ": compare tokens/s/device" if _both_count_tokens(first, other) else ""
            yield f"{other.name} has {counts[0]} {what} and {first.name} {counts[1]}{advice}."
    yield from _gains(overlap_gains(comparison))
    yield from (line for side in comparison.sides for line in _overlaps(side))
    told = dict(_told_of_runs(comparison))
    for side in comparison.sides:
        yield from side.background.flags
        yield from told.get(side.name, ())


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


def load_meaning(side: RunSide) -> str:
    """What 'device load' is in a placement's run."""
    if side.load_signal == GPM_LOAD:
        return "share of the SMs with work (GPM)"
    if any(device.kind == "gpu" for device in side.run.devices.values()):
        return "share of time in which any kernel ran (NVML), kernels that only wait included"
    return "busy share of the device's cores"


def _not_started(launches: Sequence[Launch]) -> Iterator[str]:
    """All of them in one line: there may be hundreds."""
    if launches:
        yield f"not started: {_by_rounds(launches)}"


def _by_rounds(launches: Sequence[Launch]) -> str:
    """Launches by the rounds of each placement: `standard in rounds 1-3, split in round 1`."""
    rounds: dict[str, list[int]] = {}
    for launch in launches:
        rounds.setdefault(launch.placement, []).append(launch.round)
    texts = (f"{name} in {'round' if len(of) == 1 else 'rounds'} {index_ranges(of)}" for name, of in rounds.items())
    return ", ".join(texts)


def _beside_other_runs(run: Run, launches: Sequence[Launch]) -> Iterator[str]:
    """In which launches another run took time from this one, which need not be all of them alike."""
    if shared := [launch for launch in launches if run.other_runs(launch)]:
        which = "every launch" if len(shared) == len(launches) else _by_rounds(shared)
        yield f"Another run of placebench went on beside {which}: each slows the other down."


def _not_finite(launch: Launch) -> Iterator[str]:
    """Training that has come apart: it takes its time, but computes nothing that a job would go on with.

    What a step does not have, such as what an actor logs that does not train yet, says nothing.
    """
    names = [name for words in LEARNING for name in launch.steps.columns if re.search(words, name)]
    measured = {line.step: line.metrics for line in launch.lines.steps if line.step > launch.last_warmup_step}
    wrong = {
        step: found[0]
        for step, metrics in sorted(measured.items())
        if (found := [name for name in names if not math.isfinite(metrics.get(name, 0.0))])
    }
    if not wrong:
        return
    first, name = next(iter(wrong.items()))
    also = f" and {plural(len(wrong) - 1, 'later step')}" if len(wrong) > 1 else ""
    advice = "" if launch.is_of_job else " Check data.reward, the learning rates and precision."
    failed = "training has failed" if max(wrong) == max(measured) else "training failed there"
    yield (
        f"{launch.label}: {name} is {measured[first][name]} in measured step {first}{also}: {failed}, although its"
        f" times were measured.{advice}"
    )


def _few_launches(comparison: Comparison) -> Iterator[str]:
    if not comparison.others or min(side.launch_count for side in comparison.sides) != 1:
        return
    what, advice = "an arm", "give several logs an arm."
    if comparison.run:
        planned = Counter(launch.placement for launch in comparison.run.launches)
        what = "a placement"
        advice = "use --rounds 3 or more." if min(planned.values()) == 1 else "--resume runs what is missing."
    yield f"Only 1 launch of {what}, so no interval and no verdict: {advice}"


def _not_interleaved(comparison: Comparison) -> Iterator[str]:
    first = comparison.first
    apart = [other for other in comparison.others if not first.shares_rounds(other)]
    # Logs do not say when their launches were: whoever has written them may have let them take turns.
    runs = [other.name for other in apart if first.home and other.home]
    if runs:
        yield f"The launches of {listing(runs)} did not take turns with those of {first.name}: {DRIFT}."
    if logs := [other.name for other in apart if other.name not in runs]:
        yield f"Whether launches of {listing(logs)} and {first.name} took turns is not known: {UNKNOWN_DRIFT}."


def _pairing(first: Side, other: Side) -> Iterator[str]:
    """What rounds that one of two placements of a run has lost mean for the comparison."""
    step = other.ratios.get(STEP_TIME.key)
    if step is None or not isinstance(first, RunSide) or not isinstance(other, RunSide):
        return
    if first.shares_rounds(other):
        if 0 < step.pairs < max(step.launches):
            yield (
                f"{other.name} against {first.name}: ratios, critical paths and the reason come from the"
                f" {plural(step.pairs, 'round')} that {'has' if step.pairs == 1 else 'have'} both. All other values"
                " come from all launches of each."
            )
        yield from _drift(first, other, step)


def _drift(first: RunSide, other: RunSide, step: Ratio, whose: str = "both") -> Iterator[str]:
    """That lost rounds let a drift of the machine into the ratio of two step times.

    Args:
        first: one placement.
        other: another of its run.
        step: the ratio, over the rounds that both have.
        whose: launches, in words, that each of these rounds has.
    """
    rounds = [number for number in first.measured_rounds if number in other.measured_rounds]
    if not step.pairs:
        if math.isnan(step.low):
            return
        common = f"only {plural(len(rounds), 'round')}" if rounds else "no round"
        yield (
            f"{other.name} and {first.name} have {common} in common, so their launches cannot be compared in pairs:"
            f" {DRIFT}. --resume runs what is missing."
        )
        return
    order = dict(enumerate(first.run.record.order, start=1))
    names = {side.placement.name: side.name for side in (first, other)}
    went_first = {min(names, key=order[number].index) for number in rounds if number in order}
    if len(rounds) > 1 and len(went_first) == 1:
        earlier = names.pop(went_first.pop())
        (later,) = names.values()
        yield (
            f"In every round that has {whose}, {earlier} ran before {later}: {DRIFT}. --resume runs what is missing."
        )


def _weak_scaling(first: RunSide, other: RunSide) -> list[str]:
    if not (first.grows or other.grows):
        return []
    return [
        f"Weak scaling: a step of {other.name} is {number(other.tokens)} tokens, one of {first.name}"
        f" {number(first.tokens)}; compare tokens/s, not the time of a step."
    ]


def _unequal_work(first: Side, other: Side, advice: str = "") -> Iterator[str]:
    step = other.ratios.get(STEP_TIME.key)
    if other.work and step:
        yield f"{_tokens_of_both(first, other)} {work_figures(step, other.work)}{advice}"


def _other_work(first: Side, other: Side) -> Iterator[str]:
    """What to mind where the steps of two sides do not tell whether they are the same work."""
    if has_other_work(first, other):
        texts = [fact_text(side.background.facts["tokens a step"]) for side in (other, first)]
        yield f"Unequal work: {other.name} had {texts[0]} tokens a step, {first.name} {texts[1]}: compare tokens/s."
    elif has_unknown_work(first, other) and has_other_lengths(first, other):
        texts = [fact_text(side.background.facts["mean response length"]) for side in (other, first)]
        yield (
            f"Unequal work: responses of {other.name} have {texts[0]} tokens on average, of {first.name} {texts[1]}:"
            " step times do not tell which is faster."
        )
    elif has_unknown_work(first, other):
        unknown = [side for side in (first, other) if "tokens a step" not in side.background.facts]
        silent = [side.name for side in unknown if not side.estimate(TOKENS.key).n]
        counts = f"{listing(silent)} {'does' if len(silent) == 1 else 'do'} not count tokens"
        if not silent:
            counts = f"of {listing(side.name for side in unknown)} the tokens of single steps are not known"
        yield f"A step may be more work for one than for the other: {counts}."


def _overlaps(side: Side) -> Iterator[str]:
    """That phases of a log do not add up."""
    overlapping = side.background.overlapping
    shown = [phase for phase in phase_order(overlapping) if phase not in (STEP, UNATTRIBUTED.key)]
    whole = side.estimate(STEP_TIME.key)
    total = float(np.nansum([side.value(phase_metric(phase).key) for phase in shown]))
    if overlapping and not (whole.n and total <= whole.value):
        overlap = "overlaps other work: it does" if len(shown) == 1 else "overlap: they do"
        yield f"{side.name}: {listing(shown)} {overlap} not add up to the step."


def _gains(gains: Iterable[OverlapGain], advice: str = "") -> Iterator[str]:
    """What lost rounds and unequal work mean for the factors of overlap; no pair has the first placement in it.

    Args:
        gains: the factors.
        advice: how to make work equal, behind every line about work that is not.
    """
    for gain in gains:
        # Every second round is reversed: where two of three placements keep their order, all three do.
        whose = "all three" if gain.split and gain.rounds else "both"
        yield from _drift(gain.base, gain.side, gain.overlap, whose)
        if gain.work:
            yield (
                f"{_tokens_of_both(gain.base, gain.side)} ({more_tokens(gain.work)}): the overlap's factor is"
                f" {both_figures(gain.overlap, gain.work)}.{advice}"
            )


def _tokens_of_both(first: Side, other: Side) -> str:
    return f"Unequal work: {other.name} had {number(other.tokens)} tokens a step, {first.name} {number(first.tokens)}"


def _unequal_pools(first: RunSide, other: RunSide) -> Iterator[str]:
    before, now = (side.placement.devices for side in (first, other))
    if len(now) != len(before):
        advice = ": compare tokens/s/device, not the time of a step" if _both_count_tokens(first, other) else ""
        yield f"{other.name} uses {plural(len(now), 'device')} and {first.name} {len(before)}{advice}."


def _both_count_tokens(first: Side, other: Side) -> bool:
    """Whether a throughput can be compared where the time of a step says little."""
    return all(side.estimate(TOKENS_PER_DEVICE.key).n for side in (first, other))


def _launch(run: Run, launch: Launch) -> Iterator[str]:
    left_out = run.record.steps_before + run.record.warmup_steps
    planned = run.record.steps_in(launch.round) - left_out
    if launch.pauses:
        stopped = format_seconds(sum(end - start for start, end in launch.pauses))
        steps = listing(map(str, launch.paused_steps)) or "none"
        yield f"{launch.label}: stopped for {stopped} by Ctrl-Z; steps left out for that: {steps}"
    measured = _measured_steps(launch, left_out)
    if measured < planned:
        yield f"{launch.label}: only {measured} of {planned} measured steps were recorded"
    sampling = launch.sampling
    if sampling.source is None:
        if run.record.sample_hz:
            yield f"{launch.label}: no device samples"
    elif sampling.ticks is None or sampling.missed is None:
        yield f"{launch.label}: the sampler ended before the launch, so samples of its end are missing"
    elif sampling.missed > MISSED_TICKS * (sampling.ticks + sampling.missed):
        due = sampling.ticks + sampling.missed
        yield f"{launch.label}: the sampler missed {sampling.missed} of {due} samples"
    yield from (f"{launch.label}: {with_labels(error, run.record.devices)}" for error in sampling.errors)


def _of_job(job: JobRecord, launches: Sequence[Launch]) -> Iterator[str]:
    """What to mind of a job of the user's and of its log."""
    yield from job.notes
    if launches and not any(launch.has_phases for launch in launches):
        if any(not launch.logged_phases.columns.isin([UNATTRIBUTED.key]).all() for launch in launches):
            yield "Phase times come from the job's log, which does not say when or on which device a phase ran."
        else:
            yield "Only whole steps are compared: nothing tells when which phase ran."
    yield from _flags([launch for launch in launches if launch.log])


def _flags(launches: Sequence[Launch]) -> Iterator[str]:
    """What the hooks and the logs of launches say, each text once, with whose it is where it is not that of all."""
    said: dict[LogFlag, list[Launch]] = {}
    for launch in launches:
        for flag in dict.fromkeys(launch.log.flags if launch.log else ()):
            said.setdefault(flag, []).append(launch)
    alike: dict[str, list[LogFlag]] = {}
    for flag in sorted(said, key=lambda flag: flag.name != LogFlag.SPANS):
        # Hooks name processes and files, whose numbers differ.
        kind = re.sub("[0-9]+", "0", flag.text) if flag.name == LogFlag.SPANS else flag.name
        alike.setdefault(kind, []).append(flag)
    for flags in alike.values():
        name = "" if flags[0].name == LogFlag.SPANS else f"{flags[0].name}: "
        for flag in flags[:FLAGS_SHOWN]:
            of = said[flag]
            where = of[0].label if len(of) == 1 else _by_rounds(of)
            yield f"{'' if len(of) == len(launches) else f'{where}: '}{name}{flag.text}"
        if rest := flags[FLAGS_SHOWN:]:
            whose = {launch.label: launch for flag in rest for launch in said[flag]}
            yield f"{name}and {len(rest)} more like these: see log.json of {_by_rounds(list(whose.values()))}"


def _measured_steps(launch: Launch, left_out: int) -> int:
    return int((launch.whole_steps["step"] > left_out).sum())


def _load(placements: Sequence[RunSide]) -> Iterator[str]:
    launches = [launch for side in placements for launch in side.launches]
    for side in placements:
        sampled = any(launch.sampling.source for launch in side.launches)
        if sampled and not side.estimate(LOAD.key).n:
            known = {*side.samples["device"][side.samples["load"].notna()]}
            without = few((side.run.labels[one] for one in side.placement.devices if one not in known), ", ")
            yield f"{side.name}: the samples have no device load{f' of {without}' if known else ''}"
    if placements[0].load_signal != GPM_LOAD and any(launch.sampling.source == "nvml" for launch in launches):
        yield "Device load comes from NVML: a GPU whose kernel only waits reads 100 %."
    # Devices without GPM, each once with the reason that the driver gave.
    absent = {device: reason for launch in launches for device, reason in launch.sampling.gpm_absent.items()}
    for device, reason in absent.items():
        label = placements[0].run.labels.get(device, device)
        yield f"No GPM on {label} ({reason}): how busy its SMs, tensor cores and memory are is not known."
