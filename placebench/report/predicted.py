"""Predictions as users see them: on the terminal, and as a file for programs under a versioned schema."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.text import Text

from placebench.predict.interval import LEAST_CASES, LEVEL, PredictionClass
from placebench.predict.phases import Basis
from placebench.predict.prediction import Prediction, Predictions
from placebench.predict.step import HOST_BOUND
from placebench.record.writing import write_output
from placebench.report.deciding import DecidingRun, print_command
from placebench.report.placement_schema import Number
from placebench.report.tables import Grid
from placebench.report.terminal import grid_table
from placebench.spec.devices import Device, devices_per_node
from placebench.spec.text import MISSING, Scale, change, half_width, listing, percent, plural, quantity, row, scale
from placebench.spec.workload import Workload, step_text

# Phases below this share of every step have no row.
_SMALL = 0.005
# From this share on a step is told to be longer; below, that it takes as much time.
_TOLD = 0.005
# Of which held-out cases an error is.
_WAITING = {True: ", generation waits for the host", False: ", generation does not wait for the host", None: ""}


class PredictionModel(BaseModel):
    """A part of what a prediction or a search writes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PredictedPhase(PredictionModel):
    """A phase of a predicted step, seconds."""

    name: str
    total_s: float
    kernels_s: Number = Field(description="a kernel that computes is running; null where none was traced")
    exposed_s: Number = Field(description="collectives alone are running; likewise")
    host_s: Number = Field(description="nothing is running; likewise")
    basis: Basis = Field(description="what it rests on")
    start_s: Number = Field(description="from the start of the step")
    end_s: Number
    pool: str = Field(description="empty for the controller's own")


class PredictedPlacement(PredictionModel):
    """A predicted placement."""

    placement: str
    devices: int
    step_s: float
    low_s: Number = Field(description="lower end of the interval; null where there are too few held-out cases")
    high_s: Number
    ratio: float = Field(description="step over the fastest step of the placements with the least work in a step")
    ratio_low: Number = Field(description="lower end of the ratio's interval; null where a step has more work")
    ratio_high: Number
    is_tied: bool = Field(description="whether it cannot be told from the fastest")
    cannot_say: str | None = Field(description="the command that would decide it; null where the step can be predicted")
    prediction_class: PredictionClass
    held_out_cases: int = Field(
        description="of this class; if there are enough, only those where generation waits for the host, or does not,"
        " as here"
    )
    mean_error: Number = Field(description="of these cases, mean of the absolute errors, a fraction")
    worst_error: Number
    host_bound_share: Number = Field(
        description="share of generation in which no kernel runs; null where its kernels were not traced"
    )
    extrapolated: tuple[str, ...] = Field(description="phases that were not measured with this work")
    phases: tuple[PredictedPhase, ...]
    gaps_s: float
    waits_s: dict[str, float] = Field(description="seconds in which a pool has no phase")
    memory_bytes: dict[str, int] = Field(description="peak memory of a device, by pool")
    tokens_per_s_per_device: Number
    cost_per_million_tokens: Number


class PredictionFile(PredictionModel):
    """The content of what `placebench predict --json` writes."""

    schema_version: Literal[1] = 1
    job: str = Field(description="what was predicted, and on which devices, for people")
    workload: dict[str, Any] | None = Field(description="every key of the job; null of a job of the user's")
    level: float = Field(LEVEL, description="of all intervals")
    calibrations: tuple[str, ...]
    notes: tuple[str, ...]
    placements: tuple[PredictedPlacement, ...]
    deciding: str | None = Field(
        description="the command that decides what they leave open; null where nothing is open"
    )


@dataclass(frozen=True)
class Question:
    """What was asked, and by what it is answered."""

    sources: tuple[str, ...]
    """Of the calibrations."""
    workload: Workload | None
    """None of a job of the user's."""
    devices: Sequence[Device]
    notes: tuple[str, ...]
    """What the reader should know of the calibrations."""
    deciding: DecidingRun
    """How to run what is predicted."""

    @property
    def job(self) -> str:
        """The job and its devices, for people."""
        nodes = devices_per_node(self.devices)
        count = f"{len(nodes)} × {nodes[0]}" if len(nodes) > 1 and len(set(nodes)) == 1 else f"{len(self.devices)}"
        work = f"{self.workload.model}, {step_text(self.workload)}" if self.workload else "a job of yours"
        return f"{work}; on {count} × {self.devices[0].name}"


def prediction_file(found: Predictions, asked: Question) -> PredictionFile:
    """Put predictions into the form of the file."""
    choice = _deciding(found)
    return PredictionFile(
        job=asked.job,
        workload=asked.workload.model_dump(mode="json") if asked.workload else None,
        calibrations=asked.sources,
        notes=asked.notes,
        placements=tuple(prediction_rows(found, asked.deciding)),
        deciding=choice and shlex.join(asked.deciding.words(choice.names, choice.rounds, is_short=choice.is_short)),
    )


def prediction_rows(found: Predictions, deciding: DecidingRun) -> Iterator[PredictedPlacement]:
    """The placements of the file."""
    return (_placement(found, one, deciding) for one in found.placements)


def write_predictions(content: PredictionFile, path: Path) -> None:
    """Write the file."""
    write_output(path, content.model_dump_json(indent=1) + "\n")


def _placement(found: Predictions, one: Prediction, deciding: DecidingRun) -> PredictedPlacement:
    step, interval = one.step, one.interval
    ratio = step.seconds / found.fastest.step.seconds
    ends = found.interval_over_fastest(one) if one is not found.fastest else None
    times = {span.phase: span for span in step.spans}
    return PredictedPlacement(
        placement=one.placement.name,
        devices=one.placement.size,
        step_s=step.seconds,
        low_s=interval.low if interval else None,
        high_s=interval.high if interval else None,
        ratio=ratio,
        ratio_low=ends.low if ends else None,
        ratio_high=ends.high if ends else None,
        is_tied=one in found.tied,
        cannot_say=shlex.join(deciding.words([one.placement.name], 2, is_short=True)) if one.says_nothing else None,
        prediction_class=one.kind,
        held_out_cases=one.error.n,
        mean_error=one.error.mean,
        worst_error=one.error.worst,
        host_bound_share=step.host_bound_share,
        extrapolated=step.extrapolated,
        phases=tuple(
            PredictedPhase(
                name=name,
                total_s=phase.total,
                kernels_s=phase.kernels,
                exposed_s=phase.exposed,
                host_s=phase.host,
                basis=phase.basis,
                start_s=times[name].start if name in times else None,
                end_s=times[name].end if name in times else None,
                pool=times[name].pool if name in times else "",
            )
            for name, phase in step.phases.items()
        ),
        gaps_s=step.gaps,
        waits_s=dict(step.waits),
        memory_bytes=dict(one.memory),
        tokens_per_s_per_device=one.tokens_per_s_per_device,
        cost_per_million_tokens=one.cost,
    )


def print_predictions(found: Predictions, asked: Question, console: Console, *, verbose: bool) -> None:
    """Print which placement is the fastest, the table of all, and how far it is to be trusted.

    Args:
        found: the predictions.
        asked: what they answer.
        console: where to.
        verbose: the tables of their phases too.
    """
    print_job(asked, console)
    choice = list(about_choice(found))
    for line in choice:
        console.print(Text(line, "bold"))
    if choice:
        console.print()
    for grid in (step_grid(found), *(_phase_grids(found) if verbose else ())):
        console.print(grid_table(grid, 1, console.width))
        console.print()
    for line in about_trust(found, has_phases=verbose):
        console.print(Text(line))
    print_deciding(found, asked.deciding, console)
    for note in asked.notes:
        console.print(Text(f"Note: {note}."), style="dim")


def print_job(asked: Question, console: Console) -> None:
    """Print what was asked for, as one line."""
    console.print(Text.assemble(("Job: ", "bold"), asked.job, "."))
    console.print()


def step_grid(found: Predictions, more: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Grid:
    """The step of each placement, and columns of what else is known of them."""
    cost = {"cost/M": [f"{one.cost:.3g}" if one.cost is not None else MISSING for one in found.placements]}
    told = _steps_scale(found)
    columns = {
        "placement": [one.placement.name for one in found.placements],
        "step": [told.text(one.step.seconds) for one in found.placements],
        f"{100 * LEVEL:.0f} % interval": [
            told.ends(one.interval.low, one.interval.high) if one.interval else MISSING for one in found.placements
        ],
        "tokens/s/device": [quantity(one.tokens_per_s_per_device, "tokens/s") for one in found.placements],
        "peak memory": [quantity(max(one.memory.values()), "B") if one.memory else MISSING for one in found.placements],
        "waiting": [quantity(_waiting(one), "1") for one in found.placements],
        **(cost if any(one.cost is not None for one in found.placements) else {}),
        **more,
    }
    return Grid("Predicted steps", tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _steps_scale(found: Predictions) -> Scale:
    """How the steps are told: with what they are to each other, which is known better than what they take.

    Steps of which a sentence says that one is longer differ in the table, too, as far as three digits tell.
    """
    intervals = [one.interval for one in found.placements if one.interval]
    fastest = found.fastest.step.seconds
    others = [one for one in found.placements if one is not found.fastest]
    ratios = [found.interval_over_fastest(one) for one in others]
    halves = [half_width(one.low, one.high) for one in intervals]
    halves += [fastest * (one.high - one.low) / 2 for one in ratios if one]
    longer = [one.step.seconds - fastest for one in others]
    halves += [more for more in longer if more >= _TOLD * fastest]
    return scale("s", [one.step.seconds for one in found.placements], halves)


def _waiting(one: Prediction) -> float:
    """Share of the step that the devices wait, their mean."""
    sizes = {pool.name: pool.size for pool in one.placement.pools}
    waits = sum(sizes[pool] * seconds for pool, seconds in one.step.waits.items())
    return waits / sum(sizes.values()) / one.step.seconds


def _phase_grids(found: Predictions) -> Iterator[Grid]:
    """Seconds of each phase, the placements beside each other, a few at a time."""
    for first in range(0, len(found.placements), 4):
        shown = found.placements[first : first + 4]
        names = dict.fromkeys(name for one in shown for name in one.step.phases)
        rows = [(name, *_cells(shown, name)) for name in names if any(_share(one, name) >= _SMALL for one in shown)]
        rows.append(("gaps", *row("s", *(one.step.gaps for one in shown))))
        pools = dict.fromkeys(pool for one in shown for pool in one.step.waits)
        rows += [(f"{pool} waits", *row("s", *(one.step.waits.get(pool) for one in shown))) for pool in pools]
        rows += [(f"{pool} memory", *row("B", *(one.memory.get(pool) for one in shown))) for pool in pools]
        yield Grid("Phases", ("", *(one.placement.name for one in shown)), tuple(rows))


def _cells(shown: Sequence[Prediction], name: str) -> Iterator[str]:
    """Seconds of a phase, with a star where they are computed and not measured."""
    phases = [one.step.phases.get(name) for one in shown]
    cells = row("s", *(phase.total if phase else None for phase in phases))
    for phase, cell in zip(phases, cells, strict=True):
        yield f"{cell} *" if phase and phase.basis is Basis.MODELLED else cell


def _share(one: Prediction, name: str) -> float:
    phase = one.step.phases.get(name)
    return phase.total / one.step.seconds if phase else 0.0


def about_trust(found: Predictions, *, has_phases: bool = False) -> Iterator[str]:
    """The class of each prediction, its held-out cases, and what depends on the host."""
    for error in dict.fromkeys(one.error for one in found.placements):
        alike = [one for one in found.placements if one.error == error]
        names = "" if len(alike) == len(found.placements) else f": {listing(one.placement.name for one in alike)}"
        kind = f"{error.kind}{_WAITING[error.is_host_bound]}{names}"
        if error.n < LEAST_CASES:
            known = f"only {plural(error.n, 'prediction')}" if error.n else "no prediction"
            are = "were" if error.n > 1 else "was"
            yield f"How far to trust this ({kind}): unknown, as {known} of this kind {are} compared with runs."
        else:
            yield (
                f"How far to trust this ({kind}): {error.n} predictions of this kind, compared with runs, were"
                f" off by {percent(error.mean)} on average and {percent(error.worst)} at most."
            )
    if has_phases and any(one.step.extrapolated for one in found.placements):
        yield "* Not measured: scaled from other work by its operations and bytes."
    waiting = [one for one in found.placements if one.step.host_bound_share > HOST_BOUND]
    if waiting:
        shares = sorted(one.step.host_bound_share for one in waiting)
        share = "–".join(dict.fromkeys((f"{100 * shares[0]:.0f}", f"{100 * shares[-1]:.0f}"))) + " %"
        yield (
            f"Generation waits for the host {share} of its time ({listing(one.placement.name for one in waiting)})."
            " Another host, or another day, gives another time."
        )


def about_choice(found: Predictions) -> Iterator[str]:
    """Which is the fastest, and which are ties, of those that can be told."""
    telling = tuple(one for one in found.placements if not one.says_nothing)
    if len(telling) < 2:
        return
    told = Predictions(telling)
    yield from (_against_fastest(one, told) for one in telling if one is not told.fastest)


def _against_fastest(one: Prediction, found: Predictions) -> str:
    """Whether the fastest of several predictions is faster than another one of them, and by how much."""
    best = found.fastest
    if one.batches != best.batches:
        its, other = row("tokens/s/device", one.tokens_per_s_per_device, best.tokens_per_s_per_device)
        return (
            f"A step of {one.placement.name} does {one.batches / best.batches:g} times the work of"
            f" {best.placement.name}: compare tokens/s/device, {its} against {other}."
        )
    ratio = one.step.seconds / best.step.seconds
    ends = found.interval_over_fastest(one)
    more, interval = change(ratio, ends.low if ends else float("nan"), ends.high if ends else float("nan"))
    told = f"{more} time{f' ({interval})' if interval else ''}"
    if single := found.single_launches(one):
        return (
            f"Cannot say whether {best.placement.name} is faster than {one.placement.name}: a step of the latter"
            f" took {told}, by one launch of {'each' if single > 1 else 'one of them'}."
        )
    if one not in found.tied:
        return f"{best.placement.name} is faster: a step of {one.placement.name} takes {told}."
    if ends is None:
        return (
            f"Cannot say whether {best.placement.name} is faster than {one.placement.name}: a step of the latter is"
            f" predicted to take {told}, but too few predictions of this kind were compared with runs."
        )
    return f"Tie: {one.placement.name} may be as fast as {best.placement.name}; its step takes {told}."


@dataclass(frozen=True)
class _Open:
    """What predictions leave open, and which run decides it."""

    what: str
    names: list[str]
    """Of the placements that it has."""
    rounds: int
    is_short: bool
    """Whether few steps of each are enough."""


def _deciding(found: Predictions) -> _Open | None:
    """The run that decides what the predictions leave open; None where they leave nothing open."""
    silent = [one.placement.name for one in found.placements if one.says_nothing]
    if silent:
        what = f"Cannot say for sure what {listing(silent)} would take: it depends on a host that was not measured"
        how = "Measure it" if len(silent) == 1 else "Measuring one of them is enough"
        return _Open(f"{what}. {how}", silent[:1], 2, is_short=True)
    if found.tied:
        names = [one.placement.name for one in (found.fastest, *found.tied)]
        return _Open("To decide it", names, 3, is_short=False)
    return None


def print_deciding(found: Predictions, deciding: DecidingRun, console: Console) -> None:
    """Print the run that decides what the predictions leave open; nothing where they leave nothing open."""
    if one := _deciding(found):
        print_command(deciding, one.what, one.names, one.rounds, console, is_short=one.is_short)
