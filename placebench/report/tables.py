"""The tables of the report as plain text cells, the same on the terminal, in Markdown and in HTML."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placebench.compare.metrics import STEP_TIME, TOKENS_PER_DEVICE, Metric
from placebench.compare.read.host_facts import host_facts
from placebench.report.comparison_table import marked_verdict, note_on, ratio_cells, text_of
from placebench.report.placement_schema import (
    PlacementSummary,
    QuantitySummary,
    RoleOnDeviceSummary,
    SampledSummary,
)
from placebench.report.schema import FactSummary, Summary
from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.devices import index_ranges, label_ranges
from placebench.spec.nested import flatten
from placebench.spec.text import MISSING, Scale, listing, plural, quantity, row, scale_of


@dataclass(frozen=True)
class Grid:
    """A table of plain cells."""

    title: str
    """Its heading."""
    header: tuple[str, ...]
    """Headings of the columns."""
    rows: tuple[tuple[str, ...], ...]
    """Cells of each row, as many as columns."""
    notes: tuple[str, ...] = ()
    """Formulas and footnotes, which stand below it."""


def overview_grid(summary: Summary) -> Grid:
    """The step of all placements in one table, where there are more than two."""
    first, *others = summary.placements
    numbers = [one for placement in summary.placements for one in placement.quantities]
    steps, tokens = (_overview_scale(metric, numbers) for metric in (STEP_TIME, TOKENS_PER_DEVICE))
    rows = [_overview_cells(placement, steps, tokens) for placement in (first, *others)]
    ratios = [one.ratio for one in numbers if one.key == STEP_TIME.key and one.ratio]
    # Short, for the terminal's 80 columns.
    header = ("placement", "devices", "step", "ratio", "95 %", "verdict", "tokens/s/device")
    notes = filter(None, [note_on(ratios, "placements")])
    return Grid("All placements", *_without_empty_columns(header, rows if len(others) > 1 else ()), tuple(notes))


def _overview_scale(metric: Metric, numbers: Sequence[QuantitySummary]) -> Scale:
    """How a number of all placements is told: what is told apart where one stands beside the first is so here, too."""
    found = [one for one in numbers if one.key == metric.key]
    pairs = [scale_of(metric.unit, found[0], other, ratio=other.ratio) for other in found[1:]]
    return scale_of(metric.unit, *found).as_fine_as(pairs)


def _overview_cells(placement: PlacementSummary, steps: Scale, tokens: Scale) -> tuple[str, ...]:
    found = {quantity.key: quantity for quantity in placement.quantities}
    step, throughput = found.get(STEP_TIME.key), found.get(TOKENS_PER_DEVICE.key)
    ratio = step.ratio if step else None
    return (
        placement.name,
        str(sum(map(len, placement.pools.values())) or MISSING),
        steps.text(step.value) if step else MISSING,
        *ratio_cells(ratio),
        marked_verdict(ratio) if ratio else MISSING,
        tokens.text(throughput.value) if throughput else MISSING,
    )


def single_grid(placement: PlacementSummary) -> Grid:
    """The numbers of a placement that is compared with nothing."""
    rows = tuple((found.label, text_of(found)) for found in placement.quantities)
    return Grid(placement.name, ("", "value"), rows)


def scaling_grid(summary: Summary) -> Grid:
    """Speed-up and parallel efficiency of replicas."""
    rows = tuple(
        (found.placement, found.base, found.scaling, *speedup, *efficiency)
        for found in summary.scaling
        for speedup, efficiency in [(ratio_cells(found.speedup), ratio_cells(found.efficiency))]
    )
    # Short, for the terminal's 80 columns.
    return Grid(
        "Scaling of replicas",
        ("placement", "against", "scaling", "speed-up", "95 %", "efficiency", "95 %"),
        rows,
    )


def gain_grid(summary: Summary) -> Grid:
    """What a step takes by the split and by the overlap of placements that were run with less overlap, too."""
    ends = "95 % interval"
    header = ("placement", "with less overlap", "split", ends, "overlap", ends, "together", ends)
    rows = [
        (found.placement, found.base, *(cell for one in factors for cell in ratio_cells(one)))
        for found in summary.overlap_gains
        for factors in [(found.split, found.overlap, found.together)]
    ]
    return Grid("Gain of the split and of the overlap", *_without_empty_columns(header, rows))


def calibration_grid(summary: Summary) -> Grid:
    """How much launches of a placement differ from each other, and what so much noise lets rounds tell."""
    found = summary.calibration
    noise = found.noise if found else ()
    rounds = list(noise[0].detectable) if noise else []
    header = ("", "noise floor", "within", "between", *(f"{count} rounds tell" for count in rounds))
    rows = tuple(
        (
            one.label,
            *(MISSING if share is None else f"{share:.1%}" for share in (one.pair, one.within, one.between)),
            *(_effect(one.detectable[count]) for count in rounds),
        )
        for one in noise
    )
    title = f"Noise of {plural(found.pairs if found else 0, 'pair')} of launches: within launches and between them"
    return Grid(title, header, rows)


def _effect(share: float) -> str:
    """An effect that rounds can tell; what is no use has no digits."""
    return f"{share:.1%}" if share < 1 else "> 100%"


_ESTIMATED = "estimated"


def device_grid(summary: Summary, *, whole: bool = False) -> Grid:
    """Load, peak memory, idle time and energy of every device in every placement.

    Where launches of a placement had a pool on different devices, or roles on different ones, a row is of a pool in the
    rounds in which they were the same: a mean over all would be of one pool here and of another there.

    Args:
        summary: of the run.
        whole: whether the memory that the plan expected stands beside the peak.
    """
    keys = ("load", "peak_memory", _ESTIMATED, "idle", "energy") if whole else ("load", "peak_memory", "idle", "energy")
    cells: list[tuple[str, str, str, dict[str, str]]] = []
    headings: dict[str, str] = {_ESTIMATED: _ESTIMATED}

    def texts_of(quantities: Sequence[QuantitySummary]) -> dict[str, str]:
        found = {one.key.partition("/")[0].removesuffix("_in"): one for one in quantities}
        headings.update({key: one.label for key, one in found.items()})
        return {key: text_of(one) for key, one in found.items()}

    for placement in summary.placements:
        labels = {device.id: device.label for device in placement.devices}
        places = [(one.rounds, place) for one in placement.observed for place in one.pools]
        for rounds, place in places:
            name = f"{placement.name} ({_rounds(rounds)})"
            cells.append((name, label_ranges(place.devices, labels), place.pool, texts_of(place.quantities)))
        for device in placement.devices if placement.launches and not places else ():
            texts = texts_of(device.quantities)
            if device.estimated_memory_bytes is not None:
                texts[_ESTIMATED] = quantity(device.estimated_memory_bytes, "B")
            cells.append((placement.name, device.label, device.pool, texts))
    shown = [key for key in keys if any(key in texts for *_, texts in cells)]
    rows = tuple(
        (placement, device, pool, *(texts.get(key, MISSING) for key in shown))
        for placement, device, pool, texts in cells
    )
    return Grid("Devices", ("placement", "device", "pool", *(headings[key] for key in shown)), rows, _notes(summary))


def _notes(summary: Summary) -> tuple[str, ...]:
    if not any(one.pools for placement in summary.placements for one in placement.observed):
        return ()
    return (
        "Where launches differ in which devices the roles were on, a row is for all devices of a pool in these rounds:"
        " mean load and idle time, the highest memory of a device, the energy of all.",
    )


_OF_ROLES = {
    "asked": "Asked: pool and its devices.",
    "observed": "Observed: share of the measured steps in which a phase of the role ran on a device.",
    "memory": "Memory: the most that its processes had on one of them; 'with' names roles in the same processes.",
}


# More roles than these are counted where they share a process.
MOST_NAMED = 3


def observed_grid(summary: Summary) -> Grid:
    """Where each role of a placement was asked to be and where it was seen; a row for each way in which it was."""
    rows = []
    for placement in summary.placements:
        labels = {device.id: device.label for device in placement.devices}
        for one in placement.observed:
            rounds = f" ({_rounds(one.rounds)})" if len(placement.observed) > 1 else ""
            for role in dict.fromkeys(found.role for found in one.roles):
                seen = [found for found in one.roles if found.role == role]
                pool = placement.roles.get(role)
                asked = f"{pool} ({len(placement.pools[pool])})" if pool else MISSING
                on = _shares(seen, labels)
                by_ray = label_ranges([found.device for found in seen if found.allotted], labels) or MISSING
                rows.append((f"{placement.name}{rounds}", role, asked, on, _memory_of(seen), by_ray))
    header = ("placement", "role", "asked", "observed", "memory", "allotted by Ray")
    shown, cells = _without_empty_columns(header, rows)
    notes = " ".join(note for column, note in _OF_ROLES.items() if column in shown)
    return Grid("Roles on devices: asked and observed", shown, cells, (notes,))


def _memory_of(seen: Sequence[RoleOnDeviceSummary]) -> str:
    """The most that a role has on a device, and with whom."""
    known = [(found.memory_bytes, found.memory_with) for found in seen if found.memory_bytes is not None]
    size, others = max(known, default=(None, ()))
    named = listing(others) if len(others) < MOST_NAMED else f"{len(others)} others"
    return quantity(size, "B") + (f" with {named}" if others else "")


def _rounds(rounds: Sequence[int]) -> str:
    return f"{'round' if len(rounds) == 1 else 'rounds'} {index_ranges(rounds)}"


def _shares(seen: Sequence[RoleOnDeviceSummary], labels: Mapping[str, str]) -> str:
    """Devices with the share of each, those that are alike together: `gpu:0–2 41 %, gpu:3 12 %`."""
    alike: dict[str, list[str]] = {}
    for found in seen:
        share = "" if found.share is None else f" {quantity(found.share, '1')}"
        alike.setdefault(share, []).append(found.device)
    return ", ".join(f"{label_ranges(devices, labels)}{share}" for share, devices in alike.items())


def phase_pool_grid(summary: Summary) -> Grid:
    """What the samples say of every phase on its pool."""
    rows = [
        (placement.name, f"{found.pool} ({found.devices})", found.phase, *_sampled_cells(found))
        for placement in summary.placements
        for found in placement.phases_in_pools
    ]
    header = ("placement", "pool", "phase", *_SAMPLED_HEADER)
    return Grid("Phases on the devices of a pool", *_without_empty_columns(header, _sampled(rows)))


def phase_device_grid(summary: Summary) -> Grid:
    """What the samples say of every phase on every device."""
    rows = [
        (
            placement.name,
            labels[found.device],
            found.phase,
            *_sampled_cells(found),
            f"{quantity(found.seconds, 's')} ({found.samples})",
        )
        for placement in summary.placements
        for labels in [{device.id: device.label for device in placement.devices}]
        for found in placement.phases_on_devices
    ]
    header = ("placement", "device", "phase", *_SAMPLED_HEADER, "sampled")
    return Grid("Phases on devices", *_without_empty_columns(header, _sampled(rows)))


# Columns of what the samples say of a phase: heading, the attribute of `SampledSummary`, its unit.
_SAMPLED = (
    ("load", "load", "1"),
    ("tensor cores", "tensor_activity", "1"),
    ("memory traffic", "dram_activity", "1"),
    ("peak memory", "peak_memory_bytes", "B"),
    ("in tensors", "allocated_bytes", "B"),
    ("power", "power_w", "W"),
    ("SM clock", "clock_sm_mhz", "MHz"),
    ("energy per step", "energy_j", "J"),
)
_SAMPLED_HEADER = tuple(heading for heading, _, _ in _SAMPLED)


def _sampled(rows: Sequence[tuple[str, ...]]) -> Sequence[tuple[str, ...]]:
    """Rows of placement, place, phase and what the samples say; none where they say nothing of any."""
    says = any(cell != MISSING for row in rows for cell in row[3 : 3 + len(_SAMPLED)])
    return rows if says else ()


def _sampled_cells(found: SampledSummary) -> tuple[str, ...]:
    return tuple(quantity(getattr(found, attribute), unit) for _, attribute, unit in _SAMPLED)


def kernel_grid(summary: Summary) -> Grid:
    """What the traced step's phases spent their time on."""
    rows = tuple(
        (
            placement.name,
            found.phase,
            quantity(found.span_s, "s"),
            *(
                quantity(seconds / found.span_s if found.span_s else None, "1")
                for seconds in (found.kernel_s, found.collective_s, found.copy_s, found.no_kernel_s)
            ),
        )
        for placement in summary.placements
        for found in placement.kernels
    )
    header = ("placement", "phase", "traced", "computing", "collectives alone", "copies alone", "waiting for the host")
    note = "Tracing slows the host, not kernels: a measured step waits less for the host."
    return Grid("What the phases of a traced step spent their time on", header, rows, (note,) if rows else ())


def launch_grid(summary: Summary) -> Grid:
    """Every launch: how far it came and where its time went."""
    rows = tuple(
        (
            str(launch.round),
            launch.placement,
            launch.status.value,
            str(launch.steps),
            MISSING if launch.warmup_steps is None else str(launch.warmup_steps),
            *row("s", launch.startup_s, launch.steps_s, launch.trace_s or None, launch.stop_s),
        )
        for launch in summary.launches
    )
    times = ("start-up", "in steps", "tracing", "stopping")
    return Grid("Launches", *_without_empty_columns(("round", "placement", "status", "steps", "warm-up", *times), rows))


def difference_grid(summary: Summary) -> Grid:
    """What else differs between the runs of a comparison."""
    return _fact_grid("What else differs", summary, [fact for fact in summary.facts if fact.differs])


def fact_grid(summary: Summary) -> Grid:
    """What else is known of the runs of a comparison."""
    return _fact_grid("Runs", summary, [fact for fact in summary.facts if not fact.differs])


def _fact_grid(title: str, summary: Summary, facts: Sequence[FactSummary]) -> Grid:
    header = ("", *(placement.name for placement in summary.placements))
    return Grid(title, header, tuple((fact.name, *(value or MISSING for value in fact.values)) for fact in facts))


def source_grid(summary: Summary) -> Grid:
    """What the numbers of a comparison come from."""
    rows = tuple(
        (found.arm, found.source, found.format, f"{found.measured} of {found.steps}") for found in summary.sources
    )
    return Grid("Launches", ("arm", "from", "format", "steps measured"), rows)


def _without_empty_columns(
    header: tuple[str, ...], rows: Sequence[tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Leave out what no source of the run measures."""
    kept = [index for index in range(len(header)) if any(row[index] != MISSING for row in rows)]
    return tuple(header[index] for index in kept), tuple(tuple(row[index] for index in kept) for row in rows)


def environment_grid(summary: Summary) -> Grid:
    """What the run ran on and with: host, software, workload, one line a fact."""
    facts = {"command": shlex.join(summary.command)}
    for number, resumption in enumerate(summary.resumptions, start=1):
        facts[f"resumption {number}, {resumption.started}"] = shlex.join(resumption.command)
    facts |= host_facts(summary.host)
    facts |= {f"{package} version": str(version) for package, version in summary.versions.items() if version}
    if summary.git:
        facts["git commit"] = f"{summary.git.get('commit')}{' with changes' if summary.git.get('dirty') else ''}"
    facts |= {f"workload {key}": _fact(value) for key, value in flatten(summary.workload).items()}
    for key, value in flatten(summary.job).items():
        if key == "steps" and value == MOST_STEPS:  # whose end is that of the command
            continue
        is_command = key in ("command", "before", "after") and isinstance(value, list)
        facts["job" if key == "job" else f"job {key}"] = shlex.join(value) if is_command else _fact(value)
    return Grid("Host, software and workload", ("", "value"), tuple((key, fact) for key, fact in facts.items() if fact))


def _fact(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_fact(part) for part in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_fact(part)}" for key, part in value.items())
    return "" if value is None else str(value)
