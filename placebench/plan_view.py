"""A plan for people: what would run where, how much memory it needs and how long it takes."""

from collections.abc import Iterator

import yaml
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from placebench.devices import Device
from placebench.plan import BoundPlacement, Plan
from placebench.progress import format_bytes, format_seconds


def show_plan(plan: Plan, console: Console) -> None:
    """Print a plan: run, placements with devices and memory, rounds, expected duration, workload."""
    head = Table.grid(padding=(0, 2))
    for name, value in _head(plan):
        head.add_row(Text(name, "bold"), Text(value))
    console.print(head)
    for bound in plan.placements:
        console.print(_placement_table(plan, bound))
    for note in plan.notes:
        console.print(Text(f"note: {note}", "yellow"))
    console.print(Text("workload", "bold"))
    console.print(Text(yaml.safe_dump(plan.workload.model_dump(mode="json"), sort_keys=False).rstrip()))


def _head(plan: Plan) -> Iterator[tuple[str, str]]:
    shape = plan.shapes[0]
    parameters = "" if shape is None else f", {shape.parameters / 1e6:,.1f} M parameters"
    batch = plan.workload.batch
    expected = plan.expectation
    to_do = len(plan.launches)
    yield "run", str(plan.folder.path)
    yield "devices", _describe_devices(plan.devices)
    yield "model", f"{plan.workload.model}{parameters}, {plan.workload.precision}, {plan.workload.sharding}"
    yield (
        "step",
        f"{batch.size} sequences of up to {batch.max_prompt_length} + {batch.max_response_length} tokens,"
        f" {batch.size // batch.mini_batch_size} mini-batches × {plan.workload.algorithm.epochs} epochs",
    )
    yield "steps", f"{plan.workload.steps} a launch, the first {plan.workload.warmup_steps} left out of the numbers"
    for number, names in enumerate(plan.order, start=1):
        done = [name for name in names if (number, name) in plan.done]
        yield f"round {number}", ", ".join(f"{name} (done)" if name in done else name for name in names)
    seconds = "unknown" if expected.seconds is None else f"about {format_seconds(expected.seconds)}"
    yield "expected", f"{seconds} for {to_do} launch{'' if to_do == 1 else 'es'} ({expected.source})"


def _describe_devices(devices: tuple[Device, ...]) -> str:
    kinds = dict.fromkeys((device.kind, device.name, device.memory_bytes, device.node) for device in devices)
    counts = [sum((d.kind, d.name, d.memory_bytes, d.node) == kind for d in devices) for kind in kinds]
    return "; ".join(
        f"{count} × {kind} {name}, {format_bytes(memory)} each, on {node}"
        for count, (kind, name, memory, node) in zip(counts, kinds, strict=True)
    )


def _placement_table(plan: Plan, bound: BoundPlacement) -> Table:
    table = Table(
        title=f"{bound.name} (overlap: {bound.placement.overlap})", title_justify="left", box=box.SIMPLE_HEAD
    )
    for column in ("pool", "devices", "roles", "memory a device", "of which"):
        table.add_column(column, overflow="fold")
    for pool, devices in bound.devices.items():
        estimate = plan.memory.get((bound.name, pool))
        table.add_row(
            pool,
            ", ".join(device.id for device in devices),
            ", ".join(bound.placement.roles_in(pool)),
            "unknown" if estimate is None else f"about {format_bytes(estimate.peak)}",
            "" if estimate is None else ", ".join(f"{part} {format_bytes(n)}" for part, n in estimate.parts.items()),
        )
    return table
