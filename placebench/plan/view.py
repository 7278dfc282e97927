"""A plan for people: what would run where, how much memory it needs and how long it takes."""

from collections.abc import Iterator, Sequence
from textwrap import indent

import yaml
from rich.console import Console
from rich.text import Text

from placebench.plan.plan import Plan
from placebench.predict.memory.fitting import describe_memory
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.launchers import RAY
from placebench.spec.placed import placed_workload
from placebench.spec.placement import Placement, Role
from placebench.spec.text import format_bytes, format_seconds
from placebench.spec.workload import Workload


def show_plan(plan: Plan, console: Console) -> None:
    """Print a plan: run, placements with devices and memory, rounds, expected duration, workload."""

    def line(name: str, value: str) -> None:
        console.print(Text.assemble((f"{name:<9} ", "bold"), value), soft_wrap=True)

    for name, value in _head(plan):
        line(name, value)
    for bound in plan.placements:
        line("placement", f"{bound.name}, {', '.join(_settings(bound.placement, plan.workload))}")
        for pool, devices in bound.members.items():
            roles = ", ".join(working_roles(bound.placement, pool, plan.workload))
            line("", f"{pool}: {roles} on {', '.join(device.id for device in devices)}")
            line("", f"  memory a device: {_describe_memory(plan, bound, pool)}")
    for note in plan.notes:
        line("note", note)
    line("workload", "")
    text = yaml.safe_dump(plan.workload.model_dump(mode="json"), sort_keys=False)
    console.print(Text(indent(text.rstrip(), "  ")), soft_wrap=True)


def _settings(placement: Placement, workload: Workload) -> Iterator[str]:
    """What a placement says beside its pools, and what it makes of the workload."""
    yield f"overlap {placement.overlap}"
    if placement.staleness:
        yield f"staleness {placement.staleness}"
    if placement.inflight_updates:
        yield "in-flight updates"
    if (placement.tensor_parallel or 1) > 1:
        yield f"engines of {placement.tensor_parallel} devices"
    if placement.scaling is not None:
        size = placed_workload(workload, placement).batch.size
        yield f"full replicas, {placement.scaling} scaling: {size} sequences per step"


def working_roles(placement: Placement, pool: str, workload: Workload) -> Iterator[Role]:
    """The roles of a pool that the algorithm has."""
    return (role for role in placement.roles_in(pool) if role is not Role.CRITIC or workload.algorithm.has_critic)


def _head(plan: Plan) -> Iterator[tuple[str, str]]:
    parameters = f", {plan.shapes.actor.parameters / 1e6:,.1f} M parameters"
    batch, epochs = plan.workload.batch, plan.workload.algorithm.epochs
    expected = plan.expectation
    to_do = len(plan.launches)
    yield "run", str(plan.folder.path)
    yield "devices", describe_devices(plan.devices)
    if plan.launcher != RAY:
        yield "launcher", plan.launcher
    yield "model", f"{plan.workload.model}{parameters}, {plan.workload.precision}, {plan.workload.sharding}"
    groups = (
        f" ({batch.size // batch.group_size} prompts × {batch.group_size} responses)" if batch.group_size > 1 else ""
    )
    yield (
        "step",
        f"{plan.workload.algorithm.name}, {batch.size} sequences{groups} of up to"
        f" {batch.max_prompt_length} + {batch.max_response_length} tokens,"
        f" {batch.size // batch.mini_batch_size} mini-batches × {epochs} epoch{'s' * (epochs > 1)}",
    )
    yield "steps", f"{plan.workload.steps} a launch, the first {plan.workload.warmup_steps} left out of the numbers"
    for number, names in enumerate(plan.order, start=1):
        done = [name for name in names if (number, name) in plan.done]
        yield f"round {number}", ", ".join(f"{name} (done)" if name in done else name for name in names)
    if plan.auto:
        limit = "" if plan.auto.max_time_s is None else f" and {format_seconds(plan.auto.max_time_s)}"
        yield (
            "more",
            f"until every headline interval is narrower than {plan.auto.precision:.1%}, up to {plan.auto.max_rounds}"
            f" rounds{limit}",
        )
    seconds = f"about {format_seconds(expected.seconds)}"
    most = ""
    if plan.auto and to_do:
        whole = expected.seconds * (to_do + (plan.auto.max_rounds - plan.rounds) * len(plan.placements)) / to_do
        most = f", about {format_seconds(whole)} for {plan.auto.max_rounds} rounds"
    yield "expected", f"{seconds} for {to_do} launch{'' if to_do == 1 else 'es'}{most} ({expected.source})"


def describe_devices(devices: Sequence[Device]) -> str:
    """Devices that are alike together, with their number, memory and node."""
    kinds = dict.fromkeys((device.kind, device.name, device.memory_bytes, device.node) for device in devices)
    counts = [sum((d.kind, d.name, d.memory_bytes, d.node) == kind for d in devices) for kind in kinds]
    return "; ".join(
        f"{count} × {name if name.lower() == kind else f'{kind} {name}'}, {format_bytes(memory)} each, on {node}"
        for count, (kind, name, memory, node) in zip(counts, kinds, strict=True)
    )


def _describe_memory(plan: Plan, bound: RunPlacement, pool: str) -> str:
    return f"about {describe_memory(plan.memory[bound.name, pool])} at most"
