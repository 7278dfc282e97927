"""The sides that the words of `placebench compare` stand for: placements of runs, and logs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from placebench.compare.measure.background import with_background
from placebench.compare.measure.log_sides import log_side
from placebench.compare.measure.placements import RunSide, measure_run
from placebench.compare.read.run_reading import load_run
from placebench.compare.read.sources import ReadingOptions, Source, check_sources, each, log_names
from placebench.compare.side import Side
from placebench.errors import UsageError
from placebench.record.folder import RunFolder
from placebench.spec.legible import shown


def read_sides(
    sources: Sequence[Source],
    options: ReadingOptions,
    shared_sides: Callable[[Path, str | None], tuple[Side, ...]] | None = None,
) -> list[Side]:
    """The sides that the words stand for, in their order.

    Args:
        sources: the words.
        options: how logs are read.
        shared_sides: the placements, or one, of a run that was shared without its raw files; None refuses these.

    Raises:
        UsageError: a word stands for nothing that can be read, or for the same as another; a list of devices or ranks
            has another length than that of the words.
    """
    check_sources(sources, options)
    names = log_names(sources)
    sides: list[Side] = []
    for place, source in enumerate(sources):
        if source.run is not None:
            found: tuple[Side, ...]
            if shared_sides and RunFolder(source.run).lacks_raw_files:
                found = shared_sides(source.run, source.placement)
            else:
                found = run_sides(source.run, source.placement)
            if source.name is not None:
                if len(found) > 1:
                    listed = ", ".join(side.name for side in found)
                    raise UsageError(
                        f"{source.name}={source.run}: the run has the placements {listed}: choose one, as"
                        f" {source.name}={source.run}:{found[0].name}"
                    )
                found = (replace(found[0], name=source.name),)
            sides += found
        else:
            sides.append(
                log_side(
                    source.launches,
                    name=names[place],
                    log_format=options.log_format,
                    devices=each(options.devices, place),
                    learner_ranks=each(options.learner_ranks, place),
                    warmup_steps=options.warmup_steps,
                )
            )
    return sides


def run_sides(path: Path, placement: str | None = None) -> tuple[RunSide, ...]:
    """The placements of a run folder, or one of them.

    Raises:
        UsageError: the folder is not a run's, it has no such placement, or no launch is done.
    """
    run = load_run(path)
    names = [known.name for known in run.placements]
    if placement is not None and placement not in names:
        hint = "; commas separate the logs of an arm, but runs are separate arguments" if "," in placement else ""
        raise UsageError(f"{path} has no placement {shown(placement)}: it has {', '.join(names)}{hint}")
    sides = measure_run(run, placement)
    for side in sides:
        if not side.launches:
            why = run.why_unreadable(side.placement.name)
            lacks = f"cannot be read: {why}" if why else "has no finished launch: there is nothing to compare"
            raise UsageError(f"{path}: {side.name} {lacks}")
    return tuple(map(with_background, sides))
