"""What a reader must know of the launches of a run: those that are missing, that failed, and gaps in their samples."""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from placebench.compare.measure.placements import GPM_LOAD, RunSide
from placebench.compare.metrics import LOAD, UNATTRIBUTED
from placebench.compare.read.run import Launch, Run
from placebench.logs.flags import LEARNING
from placebench.record.folder import Status, resuming
from placebench.record.job_record import JobRecord, LogFlag
from placebench.spec.devices import index_ranges, with_labels
from placebench.spec.text import few, format_seconds, listing, plural

MISSED_TICKS = 0.01
# So many of what launches say alike, but for numbers and places.
FLAGS_SHOWN = 3


def missing_launches(run: Run, placements: Sequence[RunSide]) -> Iterator[str]:
    """The launches of placements that cannot be read, with why, and how to go on where there is none to report on."""
    names = {side.placement.name for side in placements}
    missing = [launch for launch in run.missing if launch.placement in names]
    yield from (f"{one.label}: {one.fate}" for one in missing if one.status is not Status.PLANNED)
    # All of these in one line: there may be hundreds.
    if planned := [launch for launch in missing if launch.status is Status.PLANNED]:
        yield f"not started: {_by_rounds(planned)}"
    path = run.folder.path
    # A report is read elsewhere too: nothing above the folder that it was made in is named.
    resume = resuming(Path(path.name) if path.is_absolute() else path)
    if all(launch.status is Status.PLANNED for launch in run.launches):
        yield f"no launch was started, so nothing was measured; if the run is over, go on with {resume}"
    elif run.record.status == Status.INTERRUPTED and not any(side.launches for side in placements):
        yield f"the run was interrupted before a launch had ended: go on with {resume}"


def bad_end(launch: Launch) -> Iterator[str]:
    """That the command of a launch that counts did not end cleanly."""
    if launch.bad_end:
        yield f"{launch.label} did not end cleanly: {launch.bad_end}."


def not_finite(launch: Launch) -> Iterator[str]:
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


def beside_other_runs(run: Run, launches: Sequence[Launch]) -> Iterator[str]:
    """In which launches another run took time from this one, which need not be all of them alike."""
    if shared := [launch for launch in launches if run.other_runs(launch)]:
        which = "every launch" if len(shared) == len(launches) else _by_rounds(shared)
        yield f"Another run of placebench went on beside {which}: each slows the other down."


def launch_gaps(launch: Launch, run: Run) -> Iterator[str]:
    """Steps and samples that a launch lacks."""
    left_out = run.record.steps_before + run.record.warmup_steps
    planned = run.record.steps_in(launch.round) - left_out
    if launch.pauses:
        stopped = format_seconds(sum(end - start for start, end in launch.pauses))
        steps = listing(map(str, launch.paused_steps)) or "none"
        yield f"{launch.label}: stopped for {stopped} by Ctrl-Z; steps left out for that: {steps}"
    measured = int((launch.whole_steps["step"] > left_out).sum())
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


def load_gaps(placements: Sequence[RunSide]) -> Iterator[str]:
    """What the samples do not say of how busy the devices are."""
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


def job_caveats(job: JobRecord, launches: Sequence[Launch]) -> Iterator[str]:
    """What to mind of a job of the user's and of its log."""
    yield from job.notes
    if launches and not any(launch.has_phases for launch in launches):
        if any(not launch.logged_phases.columns.isin([UNATTRIBUTED.key]).all() for launch in launches):
            yield "Phase times come from the job's log, which does not say when or on which device a phase ran."
        else:
            yield "Only whole steps are compared: nothing says when each phase ran."
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


def _by_rounds(launches: Sequence[Launch]) -> str:
    """Launches by the rounds of each placement: `standard in rounds 1-3, split in round 1`."""
    rounds: dict[str, list[int]] = {}
    for launch in launches:
        rounds.setdefault(launch.placement, []).append(launch.round)
    texts = (f"{name} in {'round' if len(of) == 1 else 'rounds'} {index_ranges(of)}" for name, of in rounds.items())
    return ", ".join(texts)
