"""What is said of placements that do not fit into their devices' memory, or hardly do, and what would lower it."""

from collections.abc import Iterator, Sequence

from placebench.plan.memory_case import ROOMY, MemoryCase, Settings
from placebench.plan.other_devices import other_devices, other_splits
from placebench.plan.settings_search import (
    alternatives,
    least_missing,
    lower_shares,
    roomy_settings,
    smaller_batches,
)
from placebench.spec.bound import BoundPlacement
from placebench.spec.devices import Device
from placebench.spec.placed import placed_workload
from placebench.spec.shapes import job_shapes
from placebench.spec.text import format_bytes
from placebench.spec.workload import Workload


def too_large(workload: Workload, bound: Sequence[BoundPlacement], devices: Sequence[Device]) -> Iterator[str]:
    """One line for every placement that needs more memory than there is.

    Raises:
        UsageError: a model is not known.
    """
    shapes = job_shapes(workload)
    for one in bound:
        yield from _too_large(MemoryCase(workload, shapes, one, devices, [other.placement for other in bound]))


def _too_large(case: MemoryCase) -> Iterator[str]:
    """One line for a placement that cannot fit, with the settings nearest to those asked for that do.

    Before it one for a placement whose engines may take too little to generate, with the least share in which they can.
    """
    what = f"placement {case.bound.name!r}"
    engine = case.engine
    if engine and engine.is_starved:
        least = engine.hundredths(engine.least)
        share = least / 100 if least <= 100 else None
        yield (
            f"{what}: rollout.memory_share {case.workload.rollout.memory_share:g} is too little: an engine with room"
            f" for a sequence takes {format_bytes(engine.least)} of a device's {format_bytes(engine.device_bytes)}"
            + ("" if share is None else f"; use at least {share:g}")
        )
        case = case.changed({"rollout.memory_share": share})
        what += " without rollout.memory_share" if share is None else f" with rollout.memory_share={share:g}"
    if worst := case.short():
        yield f"{what}: {worst}; {_way_out(case)}"


def tight(case: MemoryCase) -> Iterator[str]:
    """One line for a placement that fits by so little that the estimate may be wrong about it."""
    if worst := case.short(ROOMY):
        settings = roomy_settings(case)
        more = "" if settings is None else f"; {_flags(settings)} needs about {_peak(case.changed(settings))} a device"
        who = f"each device of {worst.pool} needs"
        if worst.need != worst.estimate.peak:
            who = "its devices together need"
        yield (
            f"placement {case.bound.name!r} may run out of memory: {who} about {format_bytes(worst.need)},"
            f" {worst.place} has {format_bytes(worst.have)}, and estimates are known to within 10 %{more}"
        )


def _way_out(case: MemoryCase) -> str:
    settings = roomy_settings(case)
    if settings is not None:
        return f"{_flags(settings)} fits with about {_peak(case.changed(settings))} a device"
    for word, other in other_devices(case):
        for settings in alternatives(other):
            if other.is_roomy(settings):
                flags = f" with {_flags(settings)}" if settings else ""
                return f"no setting alone fits, {word}{flags} does, about {_peak(other.changed(settings))} a device"
    return (
        f"no setting fits, {format_bytes(least_missing(case))} are missing at the least: take a smaller model or"
        " shorter sequences"
    )


def _peak(case: MemoryCase) -> str:
    return format_bytes(case.fullest.peak)


def _flags(settings: Settings) -> str:
    return " ".join(f"--set {key}={str(value).lower()}" for key, value in settings.items())


def relief(case: MemoryCase) -> tuple[str, ...]:
    """What lowers the estimate of a placement most, with the peak that it then has: a few lines."""
    before = case.fullest
    batch = placed_workload(case.workload, case.bound.placement).batch
    length = case.length
    # A budget that its sequences do not fill is lowered from what they do.
    sequences = max(batch.mini_batch_size // len(devices) for devices in case.bound.devices.values())
    tokens = max(min(batch.micro_batch_tokens, sequences * length) // (2 * length), 1) * length
    alone: list[Settings] = [{"batch.micro_batch_tokens": tokens}, *_halved_cache(case), *_halved_batch(case)]
    changes = [(_flags(settings), case.changed(settings)) for settings in alone] + other_splits(case)[:1]
    changes = [change for change in changes if change[1].fullest.peak < before.peak]
    others: list[tuple[str, MemoryCase]] = []
    least = before.peak
    for settings in alternatives(case):
        changed = case.changed(settings)
        # More settings have to bring more.
        if changed.fullest.peak < least:
            others.append((_flags(settings), changed))
            least = changed.fullest.peak
    # Those between the cheapest and those that bring most say little more.
    shown = [*changes, *others[:1], *others[1:][-1:]]
    return tuple(f"{what}: about {_peak(after)} instead of {format_bytes(before.peak)}" for what, after in shown)


def _halved_cache(case: MemoryCase) -> list[Settings]:
    """The share of the memory that leaves about half the keys and values, where they are in what needs most."""
    if case.engine is None or "kv cache" not in case.fullest.parts:
        return []
    half = case.engine.hundredths(case.engine.with_half_the_cache)
    return [shares.settings(shares.sizes.index(half)) for shares in lower_shares(case) if half in shares.sizes]


def _halved_batch(case: MemoryCase) -> list[Settings]:
    """The largest batch of at most half the sequences, where generating is what needs most."""
    half = case.workload.batch.size // 2
    batches = smaller_batches(case) if case.fullest.moment == "gen" else ()
    halved = (one.largest(lambda settings: settings["batch.size"] <= half) for one in batches)
    return [settings for settings in halved if settings][:1]
