"""Who held a device's memory when a launch ran out of it: samples, the allocator's figures, the estimate."""

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from placebench.plan.plan import Plan
from placebench.predict.memory.fitting import describe_memory
from placebench.record.end_file import EndFile
from placebench.record.folder import HELD, Trial
from placebench.record.writing import read_jsonl
from placebench.spec.bound import RunPlacement
from placebench.spec.text import format_bytes


def describe_use(trial: Trial, end: EndFile | None, plan: Plan, bound: RunPlacement) -> Iterator[str]:
    """Lines on what every device's memory held, and on what would lower it.

    Args:
        trial: the launch.
        end: how its job ended; None where it was killed.
        plan: knows how much memory each pool was estimated to use, and what would lower it.
        bound: the launch's placement.
    """
    memory = plan.memory  # of a job of the user's there is none
    estimates = {
        device.id: memory[bound.name, pool]
        for pool, devices in bound.members.items()
        for device in devices
        if (bound.name, pool) in memory
    }
    samples = (row for row in read_jsonl(trial.device_samples) if row["kind"] == "sample")
    in_use = _known(samples, "memory_bytes")
    last, highest = dict(in_use), _highest(in_use)
    # What finished phases have seen.
    spans = list(read_jsonl(trial.spans))
    allocated, reserved = (_highest(_known(spans, f"memory_{what}_bytes")) for what in ("peak", "reserved"))
    for device in dict.fromkeys((*estimates, *last, *allocated)):
        parts: list[str] = []
        if device in last:
            parts.append(
                f"in use {format_bytes(last[device])} at the last sample, {format_bytes(highest[device])} at most"
            )
        if device in allocated:
            torch = f"torch allocated {format_bytes(allocated[device])} and reserved {format_bytes(reserved[device])}"
            parts.append(f"{torch} at most in a finished phase")
        if device in estimates:
            parts.append(f"estimated {describe_memory(estimates[device])}")
        yield f"{device}: {'; '.join(parts)}"
    if end and (torch_had := end.allocator):
        process = f"the process held {torch_had.process}, " if torch_had.process else ""
        yield (
            f"when memory was refused: {process}torch had {torch_had.allocated} allocated and {torch_had.reserved}"
            " reserved but free; the rest is the engine's, NCCL's and the driver's"
        )
    if end and end.held:
        yield f"{HELD}{end.held}"
    yield from (f"would lower the estimate: {line}" for line in plan.relief(bound))


def _known(rows: Iterable[Mapping[str, Any]], key: str) -> list[tuple[str, int]]:
    """Device and value of a key, for every row where that is known."""
    return [(row["device"], row[key]) for row in rows if row.get(key) is not None]


def _highest(values: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The highest value of each device: the last one of it, as they are sorted."""
    return dict(sorted(values, key=itemgetter(1)))
