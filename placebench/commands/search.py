"""The fastest placements on given devices, from what was measured."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from placebench.commands.completion import complete_placements
from placebench.commands.console import open_console
from placebench.commands.group import readers_may_leave
from placebench.commands.options import GroupedCommand, WholeRange, option, option_group
from placebench.commands.outputs import OutputPath, writing
from placebench.commands.predicting import AskedPrediction, prediction_options, read_asked
from placebench.errors import UsageError
from placebench.spec.legible import shown
from placebench.spec.text import few

if TYPE_CHECKING:
    from placebench.spec.placement import Placement

_EXAMPLES = """\b
Examples:
  placebench search --gpu H200 --model qwen2.5-7b --devices gpu:8x2
  placebench search --from latest --devices gpu:8x128@141GiB --write layouts
"""
_MOST_STALENESS = 16


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Find the fastest placements on any devices.")
@option_group(
    "Placements",
    option(
        "--now",
        metavar="WORD",
        shell_complete=complete_placements,
        help="The placement that you use now, from which devices move; it is shown too.  [default: the first measured]",
    ),
    option(
        "--max-staleness",
        type=WholeRange(0, _MOST_STALENESS),
        default=0,
        metavar="K",
        help="Also generate ahead, on weights up to K updates old.  [default: 0]",
    ),
    option(
        "--most",
        type=WholeRange(1, 100),
        default=4,
        metavar="N",
        help="Layouts to show, of those that are equally fast as far as can be told.  [default: 4]",
    ),
)
@prediction_options
@option_group(
    "Files",
    option("--json", "json_path", type=OutputPath(), metavar="FILE", help="Write every number."),
    option(
        "--write",
        type=OutputPath(is_folder=True),
        metavar="DIR",
        help="Write the placements that no word names, for --placements.",
    ),
)
def search(
    now: str | None, max_staleness: int, most: int, json_path: Path | None, write: Path | None, **given: Any
) -> None:
    """Find the fastest placements among all that can be on the devices.

    Looks at every way to put roles together, with every number of devices that shares the batch and fits into memory,
    engines of every size, and every overlap; not at replicas (ddp:N). What cannot be told from the fastest is shown
    with it, of each layout what moves fewest devices, that is gives them roles that they did not have. Neither torch,
    ray nor a GPU is needed.
    """
    from placebench.plan.catalogue import look_up
    from placebench.predict.asking import explain_lookups, uncounted_log_probs
    from placebench.predict.finding import find_placements
    from placebench.record.writing import write_output
    from placebench.report.found import print_found, search_file

    if write is not None and "," in str(write):
        raise UsageError(f"--write {shown(str(write))}: --placements is split at commas: name a folder without one")
    asked = read_asked(given)
    if asked.workload is None:
        raise UsageError(
            "the calibration is of a job of yours, whose batch and memory are not known, so placements cannot be"
            " searched: name some with placebench predict --placements"
        )
    with explain_lookups(asked.devices[0].name):
        found = find_placements(
            asked.steps,
            now=_now(now, asked),
            most=most,
            most_staleness=max_staleness,
            elsewhere=asked.elsewhere,
            price=given.get("price"),
        )
    if not found.groups:
        # Why the one that takes least memory cannot be, with what would let it; those of the others are much the same.
        why = next(iter(look_up("standard", asked.devices, asked.workload).reasons), "")
        raise UsageError(
            f"no placement is possible on {len(asked.devices)} × {asked.devices[0].name} with"
            f" {asked.devices[0].memory_bytes >> 30} GiB: none of any size divides the batch evenly and fits into"
            f" memory; {why}"
        )
    if write is not None and found.files:
        with writing("--write", write):
            _refuse_others(write, found.files)
            write.mkdir(parents=True, exist_ok=True)
            for name, text in found.files.items():
                write_output(write / name, text)
    spelled = {name: str((write or Path("DIR")) / name) for name in found.files}
    deciding = replace(asked.question.deciding, spelled=spelled, is_unwritten=write is None)
    found_placements = [one.placement for group in found.groups for one in group.predictions.placements]
    log_probs = uncounted_log_probs(asked.steps, found_placements)
    question = replace(asked.question, deciding=deciding, notes=(*asked.question.notes, *log_probs))
    with readers_may_leave():
        print_found(found, question, open_console())
    if json_path is not None:
        with writing("--json", json_path):
            write_output(json_path, search_file(found, question).model_dump_json(indent=1) + "\n")


def _refuse_others(folder: Path, files: Mapping[str, str]) -> None:
    """Keep what is in a folder under the names of files that are to be written to it.

    Raises:
        UsageError: some of them are there with another content.
    """
    there = {name: folder / name for name in files if (folder / name).exists()}
    others = [name for name, path in there.items() if not path.is_file() or path.read_bytes() != files[name].encode()]
    if others:
        is_one = len(others) == 1
        raise UsageError(
            f"--write {folder}: {few(others, ', ')} {'is' if is_one else 'are'} there with other content: remove"
            f" {'it' if is_one else 'them'}, or name another folder"
        )


def _now(word: str | None, asked: AskedPrediction) -> "Placement | None":
    """The placement that there is: the one named, else the first of the calibration that can be on the devices."""
    from placebench.plan.catalogue import look_up

    assert asked.workload is not None
    names = [case.name for file in asked.calibrations for case in file.cases]
    for one in names if word is None else [word]:
        entry = look_up(one, asked.devices, asked.workload)
        if entry.bound and not entry.reasons:
            return replace(entry.bound.placement, name=one)
        if word is not None:
            raise UsageError(*(f"--now {shown(word)}: {reason}" for reason in entry.reasons))
    return None
