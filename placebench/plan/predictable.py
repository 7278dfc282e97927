"""Of which placements a step is to be predicted: those that are named, else those that were measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from placebench.errors import Reasons, UsageError
from placebench.jobs.job import Job
from placebench.plan.catalogue import look_up
from placebench.record.calibration_file import CalibrationFile
from placebench.spec.devices import Device, devices_per_node
from placebench.spec.legible import shown
from placebench.spec.placement import Placement
from placebench.spec.text import few
from placebench.spec.words import given_twice, read_placement, split_words
from placebench.spec.workload import Workload

# Of placements that are left out; of more it is the first one's, and the names of the others.
_MOST_REASONS = 2


@dataclass(frozen=True)
class Predictable:
    """Placements of which a step can be predicted."""

    placements: Mapping[str, Placement]
    """Each by the word that it was read from."""
    notes: tuple[str, ...] = ()
    """What to know of those that are left out."""


def named_placements(
    words: str, files: Sequence[CalibrationFile], devices: Sequence[Device], workload: Workload | None, job: Job | None
) -> Predictable:
    """The placements of a list of words.

    Args:
        words: as the user writes them.
        files: the calibrations.
        devices: those that they are to be on.
        workload: the job; None for one of the user's.
        job: that of the user's, whose framework may have no such placement; None where it is not known.

    Raises:
        UsageError: one line for every reason why one of them cannot be.
    """
    asked = split_words(words)
    if "" in asked:
        raise UsageError(f"--placements {shown(words)} has an empty entry: write for example standard,split")
    reasons, found = Reasons(), list[tuple[str, Placement]]()
    for word in asked:
        placement, against = _look_up(word, devices, workload, _to_ask(job, word, files, devices))
        found += [(word, placement)] if placement else []
        reasons.add(against)
    reasons.add(given_twice([placement.name for _, placement in found], words))
    reasons.raise_any()
    return Predictable(dict(found))


def measured_placements(
    files: Sequence[CalibrationFile], devices: Sequence[Device], workload: Workload | None, job: Job | None
) -> Predictable:
    """The placements of calibrations, and the usual two, as far as they can be on other devices or of other work.

    Args: as of `named_placements`.

    Raises:
        UsageError: none of them can; the first one's reasons, as the others are in many words the same.
    """
    # A point of a benchmark is no placement.
    names = [case.name for file in files for case in file.cases if case.step_s is not None]
    found, refused = dict[str, Placement](), dict[str, Sequence[str]]()
    for word in dict.fromkeys([*names, "standard", "split"]):
        placement, against = _look_up(word, devices, workload, _to_ask(job, word, files, devices))
        if placement and not against:
            found[word] = placement
        else:
            refused[word] = against
    if not found:
        none = "none of the measured placements is possible on these devices: name others with --placements"
        raise UsageError(*next(iter(refused.values()), ()), none)
    notes = [f"left out: {against[0]}" for against in refused.values()]
    if len(notes) > _MOST_REASONS:
        others = few([*refused][1:], ", ")
        notes[1:] = [f"left out, too: {others}; give one of them to --placements to see why"]
    return Predictable(found, tuple(notes))


def _to_ask(job: Job | None, word: str, files: Sequence[CalibrationFile], devices: Sequence[Device]) -> Job | None:
    """The job that is asked whether it can have a placement; None where it had it, as its scripts may not be here."""
    size = len(devices), len(devices_per_node(devices))
    cases = [case for file in files if (file.device_count, file.nodes) == size for case in file.cases]
    return None if any(case.name == word and case.step_s is not None for case in cases) else job


def _look_up(
    word: str, devices: Sequence[Device], workload: Workload | None, job: Job | None
) -> tuple[Placement | None, Sequence[str]]:
    """The placement that a word means, if it can be read, and why it cannot be."""
    if workload is not None:
        entry = look_up(word, devices, workload)
        return entry.bound.placement if entry.bound else None, entry.reasons
    nodes, reasons = devices_per_node(devices), Reasons()
    if job is None or job.is_own(word):  # of a name of the job's no role is known
        return read_placement(word, nodes, reasons), reasons.lines
    return reasons.attempt(partial(job.placement, word, nodes, devices[0].kind)), reasons.lines
