"""What the words of `placebench compare` stand for: run folders, their placements, and logs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placebench.errors import UsageError
from placebench.logs.read import launch_names
from placebench.record.folder import is_run_or_report
from placebench.spec.legible import shown
from placebench.spec.reading import exists
from placebench.spec.text import plural


@dataclass(frozen=True)
class Source:
    """One word of the command line."""

    name: str | None
    """What the user calls the arm; None without a name."""
    run: Path | None = None
    """The run's folder; None for logs."""
    placement: str | None = None
    """The one that was chosen of it; None for all."""
    launches: tuple[tuple[Path, ...], ...] = ()
    """The files of each launch; empty for a run."""


@dataclass(frozen=True)
class ReadingOptions:
    """How logs are read."""

    log_format: str | None = None
    """Name of the format of all files; None tells each by its content."""
    devices: tuple[int, ...] = ()
    """All devices allocated to the run: one number for all words, or one each."""
    learner_ranks: tuple[int, ...] = ()
    """Number of learner ranks, likewise."""
    warmup_steps: int = 2
    """First steps of each launch that are left out of the numbers in any case."""


def parse_source(text: str) -> Source:
    """Read one word: `[NAME=]RUN[:PLACEMENT]` or `[NAME=]LOG[+LOG…][,LOG…]`.

    Launches of an arm are set apart by commas, files of one launch by `+`. A file that is there under the whole word
    is that file, whatever signs its name has.
    """
    name, rest = None, text
    before, equals, after = text.partition("=")
    if equals and before and after and "/" not in before and not exists(Path(text)):
        name, rest = before, after
    if is_run_or_report(Path(rest)):
        return Source(name, run=Path(rest))
    for end, sign in enumerate(rest):
        if sign == ":" and is_run_or_report(Path(rest[:end])):
            return Source(name, run=Path(rest[:end]), placement=rest[end + 1 :])
    return Source(name, launches=tuple(_files(launch) for launch in _split(rest, ",")))


def each(numbers: Sequence[int], place: int) -> int | None:
    """The number for one word of the command line: its own, or the one for all."""
    if not numbers:
        return None
    return numbers[0] if len(numbers) == 1 else numbers[place]


def check_sources(sources: Sequence[Source], options: ReadingOptions) -> None:
    """See that the words go together with each other and with the options.

    Raises:
        UsageError: they do not.
    """
    for option, numbers in (("--devices", options.devices), ("--learner-ranks", options.learner_ranks)):
        if len(numbers) > 1 and len(numbers) != len(sources):
            raise UsageError(
                f"{option} {','.join(map(str, numbers))}: {len(numbers)} numbers for"
                f" {plural(len(sources), 'argument')}: give one for all, or one each"
            )
    seen: set[object] = set()
    for source in sources:
        for part in source.launches or [(source.run, source.placement)]:
            if part in seen:
                raise UsageError(
                    f"{'+'.join(str(one) for one in part if one is not None)} is given twice: name it once"
                )
            seen.add(part)


def log_names(sources: Sequence[Source]) -> dict[int, str]:
    """A name for each word that stands for logs: the user's, or what tells its first file from the others'."""
    unnamed = {place: source.launches[0][0] for place, source in enumerate(sources) if source.launches}
    short = dict(zip(unnamed, launch_names(list(unnamed.values())), strict=True))
    return {place: sources[place].name or name for place, name in short.items()}


def _split(text: str, sign: str) -> list[str]:
    """Parts of a word; a file that is there under the whole word is one part."""
    parts = [text] if exists(Path(text)) else text.split(sign)
    if not all(parts):
        raise UsageError(f"{shown(text)}: there is an empty entry: name a log before and after each {shown(sign)}")
    return parts


def _files(launch: str) -> tuple[Path, ...]:
    return tuple(Path(file) for file in _split(launch, "+"))
