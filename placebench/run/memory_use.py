"""Who held a device's memory when a launch ran out of it: samples, the allocator's figures, the estimate."""

from collections.abc import Iterator

from placebench.plan.plan import Plan
from placebench.predict.memory.fitting import describe_memory
from placebench.record.end_file import EndFile
from placebench.record.folder import HELD, Trial, read_jsonl
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
    estimates = {
        device.id: plan.memory[bound.name, pool] for pool, devices in bound.members.items() for device in devices
    }
    last: dict[str, int] = {}
    highest: dict[str, int] = {}
    for row in read_jsonl(trial.device_samples):
        if row["kind"] == "sample" and row["memory_bytes"] is not None:
            last[row["device"]] = row["memory_bytes"]
            highest[row["device"]] = max(highest.get(row["device"], 0), row["memory_bytes"])
    allocated, reserved = _allocator_peaks(trial)
    for device in dict.fromkeys((*estimates, *last)):
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
            f"when it was refused: {process}torch had {torch_had.allocated} allocated and {torch_had.reserved} reserved"
            " but free; the rest is the engine's, NCCL's and the driver's"
        )
    if end and end.held:
        yield f"{HELD}{end.held}"
    yield from (f"would lower the estimate: {line}" for line in plan.relief(bound))


def _allocator_peaks(trial: Trial) -> tuple[dict[str, int], dict[str, int]]:
    """The highest allocated and reserved bytes of each device that finished phases have seen."""
    allocated: dict[str, int] = {}
    reserved: dict[str, int] = {}
    for span in read_jsonl(trial.spans):
        for key, peaks in (("memory_peak_bytes", allocated), ("memory_reserved_bytes", reserved)):
            if span.get(key) is not None:
                peaks[span["device"]] = max(peaks.get(span["device"], 0), span[key])
    return allocated, reserved
