"""Plan and catalogue for people: what would run where and how long it takes; which placements there are."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from textwrap import indent

import yaml
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from placebench.plan.catalogue import Catalogue, Entry
from placebench.plan.job_views import job_lines
from placebench.plan.plan import Plan
from placebench.predict.memory.fitting import describe_memory
from placebench.predict.prediction import Prediction
from placebench.spec.auto_rounds import MOST_STEPS, PILOT_ROUNDS
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device, by_node, device_ranges, devices_per_node, node_ranges
from placebench.spec.launchers import RAY
from placebench.spec.legible import shown
from placebench.spec.placement import Placement, Role
from placebench.spec.presets import PRESETS
from placebench.spec.text import few, format_bytes, format_seconds, half_width, plural, scale
from placebench.spec.words import SETTINGS, names_file, preset_of
from placebench.spec.workload import Workload, placed_workload, step_text

_MOST_ROUNDS = 4


def show_plan(plan: Plan, console: Console, *, verbose: bool = True) -> None:
    """Print a plan: run, placements with devices and memory, rounds, duration, workload; or a job's commands.

    Args:
        plan: the plan.
        console: where to.
        verbose: with every workload key, and what the memory is for.
    """

    def line(name: str, value: str) -> None:
        console.print(Text.assemble((f"{name:<9} ", "bold"), value), soft_wrap=True)

    for name, value in _head(plan):
        line(name, value)
    if plan.job:
        for name, value in job_lines(plan, plan.job):
            line(name, value)
        return
    for bound in plan.placements:
        line("placement", f"{bound.name}, {', '.join(_settings(bound.placement, plan.workload))}")
        for pool, text in _pools(bound, plan.devices, plan.workload):
            line("", text)
            memory = describe_memory(plan.memory[bound.name, pool])
            line("", f"  memory a device: at most about {memory if verbose else memory.partition(' in ')[0]}")
        for one in plan.predictions:
            if one.placement.name == bound.name:
                line("", f"step: about {_predicted(one)}")
    if plan.left_out:
        line("left out", f"{', '.join(plan.left_out)}: not possible, see below")
    for note in plan.notes:
        line("note", note)
    if not verbose:
        line("workload", "--verbose prints every key, and what the memory is for")
        return
    line("workload", "")
    text = yaml.safe_dump(plan.workload.model_dump(mode="json"), sort_keys=False)
    console.print(Text(indent(text.rstrip(), "  ")), soft_wrap=True)


def _predicted(one: Prediction) -> str:
    """The step of a placement as it is predicted, its interval, and what lies between it and what was measured."""
    ends = one.interval
    told = scale("s", [one.step.seconds], [half_width(ends.low, ends.high) if ends else None])
    interval = f" ({told.ends(ends.low, ends.high)})" if ends else ""
    return f"{told.text(one.step.seconds)}{interval}, predicted, {one.kind}; placebench predict tells more"


def _settings(placement: Placement, workload: Workload) -> Iterator[str]:
    """What a placement says beside its pools, and what it makes of the workload."""
    yield f"overlap {placement.overlap}"
    if placement.staleness:
        yield f"staleness {placement.staleness}"
    if placement.inflight_updates:
        yield "in-flight updates"
    if workload.rollout.backend == "vllm" and (placement.staleness or workload.rollout.log_probs == "always"):
        yield "log-probabilities from engines in every step"
    if (placement.tensor_parallel or 1) > 1:
        yield f"engines of {placement.tensor_parallel} devices"
    if placement.scaling is not None:
        size = placed_workload(workload, placement).batch.size
        yield f"full replicas, {placement.scaling} scaling: {size} sequences per step"


def _working_roles(placement: Placement, pool: str, workload: Workload) -> Iterator[Role]:
    """The roles of a pool that the algorithm has."""
    return (role for role in placement.roles_in(pool) if role is not Role.CRITIC or workload.algorithm.has_critic)


def _head(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "run", str(plan.folder.path)
    yield "devices", _describe_devices(plan.devices)
    if plan.launcher != RAY:
        yield "launcher", plan.launcher
    yield from [("job", f"{plan.job.spec.job}, {plan.job.adapter.reading}")] if plan.job else _training(plan)
    count = "as many as the command has" if plan.steps >= MOST_STEPS else f"{plan.steps - plan.steps_before} a launch"
    if plan.start:
        yield "start", f"every launch from checkpoint {plan.start.path}, after step {plan.start.step}"
        count += f", up to number {plan.steps}"
    yield "steps", f"{count}, the first {plan.warmup_steps} left out of the numbers"
    if plan.auto and plan.auto.chooses_steps and plan.auto.max_rounds > PILOT_ROUNDS:
        later = f"from round {PILOT_ROUNDS + 1} on, the number that reaches the precision soonest"
        yield "", plan.auto.choice.sentence if plan.auto.choice else later
    yield from _rounds(plan)
    yield from _expected(plan)


def _training(plan: Plan) -> Iterator[tuple[str, str]]:
    """What placebench's own job trains."""
    parameters = f", {plan.shapes.actor.parameters / 1e6:,.1f} M parameters"
    yield "model", f"{plan.workload.model}{parameters}, {plan.workload.precision}, {plan.workload.sharding}"
    yield "step", step_text(plan.workload)


def _rounds(plan: Plan) -> Iterator[tuple[str, str]]:
    """The launches of each round, and until when rounds are added."""
    shown = plan.order if plan.done else plan.order[:_MOST_ROUNDS]
    for number, names in enumerate(shown, start=1):
        yield f"round {number}", ", ".join(f"{name} (done)" if (number, name) in plan.done else name for name in names)
    if len(shown) < plan.rounds:
        yield "…", f"and so on in turn, up to round {plan.rounds}"
    if plan.auto:
        limit = "" if plan.auto.max_time_s is None else f" and {format_seconds(plan.auto.max_time_s)}"
        yield (
            "more",
            f"until every headline interval is narrower than {plan.auto.precision:.1%}, up to {plan.auto.max_rounds}"
            f" rounds{limit}",
        )


def _expected(plan: Plan) -> Iterator[tuple[str, str]]:
    """How long the launches to come are expected to take, where anything tells."""
    expected, to_do = plan.expectation, len(plan.launches)
    if expected is None:
        return
    seconds = f"about {format_seconds(expected.seconds)}"
    most = ""
    if plan.auto and to_do:
        whole = expected.seconds * (to_do + (plan.auto.max_rounds - plan.rounds) * len(plan.placements)) / to_do
        most = f", about {format_seconds(whole)} for {plan.auto.max_rounds} rounds"
    yield "expected", f"{seconds} for {to_do} launch{'' if to_do == 1 else 'es'}{most} ({expected.source})"


def _describe_devices(devices: Sequence[Device]) -> str:
    """Nodes whose devices are alike together, with their number, memory and names: `64 × 8 GPU, 141 GiB each`."""
    nodes: dict[tuple[int, str, str], list[str]] = {}
    for group in by_node(devices):
        for (kind, name, memory), count in Counter((one.kind, one.name, one.memory_bytes) for one in group).items():
            what = name if name.lower() == kind else f"{kind} {name}"
            size = format_bytes(memory).replace(".0 GiB", " GiB")
            nodes.setdefault((count, what, size), []).append(group[0].node)
    return few(
        f"{f'{len(names)} × {count} {what}' if len(names) > 1 else f'{count} × {what}'}, {size} each,"
        f" on {node_ranges(names)}"
        for (count, what, size), names in nodes.items()
    )


def show_catalogue(catalogue: Catalogue, console: Console, *, verbose: bool) -> None:
    """Print which words are possible, and of named ones, or with `verbose` of all, where each role goes."""
    console.print(Text.assemble(("devices  ", "bold"), _describe_devices(catalogue.devices)), soft_wrap=True)
    if catalogue.is_usual and not verbose:
        _show_answers(catalogue, console)
        return
    for form, reading, members in _by_preset(catalogue.entries):
        console.print()
        console.print(Text.assemble((form, "bold"), f"  {reading}"), soft_wrap=True)
        for entry in members:
            _show_entry(entry, catalogue, console)
    if catalogue.is_usual:
        console.print()
        console.print(Text("Settings, after a word or a file's name", "bold"), soft_wrap=True)
        for name, setting in SETTINGS.items():
            console.print(f"  /{name}={setting.form}  {setting.reading}", markup=False, soft_wrap=True)


def _show_answers(catalogue: Catalogue, console: Console) -> None:
    """Which of the usual words are possible, and the first reason why others are not."""
    possible = ", ".join(entry.word for entry in catalogue.entries if not entry.reasons)
    console.print()
    console.print(Text("Possible on these devices", "bold"))
    console.print(Padding(Text(possible or "none", "green"), (0, 0, 0, 2)))
    others = [entry for entry in catalogue.entries if entry.reasons]
    if others:
        console.print()
        console.print(Text("Not possible", "bold"))
    for entry in others:
        reason, *more = map(partial(_without_word, entry.word), entry.reasons)
        rest = f" (and {plural(len(more), 'more reason')})" if more else ""
        console.print(Padding(Text.assemble((entry.word, "red"), f": {reason}{rest}"), (0, 0, 0, 2)))
    console.print()
    console.print(Text("Where each role goes, and all words: --verbose. One placement: placebench placements WORD."))


def _without_word(word: str, reason: str) -> str:
    """A reason without the word with which it begins, as that stands above it."""
    return reason.removeprefix(f"placement {shown(word)}").removeprefix(":").lstrip()


def _by_preset(entries: Sequence[Entry]) -> Iterator[tuple[str, str, list[Entry]]]:
    for preset in PRESETS:
        if members := [entry for entry in entries if preset_of(entry.word) is preset]:
            yield preset.form, preset.reading, members
    no_form = [entry for entry in entries if preset_of(entry.word) is None]
    for is_file, form, reading in (
        (True, "FILE.yaml", "any pools, given by node, and the pool of each role"),
        (False, "unknown", "no placement"),
    ):
        if others := [entry for entry in no_form if names_file(entry.word) is is_file]:
            yield form, reading, others


def _show_entry(entry: Entry, catalogue: Catalogue, console: Console) -> None:
    can = not entry.reasons
    console.print(
        Text.assemble("  ", (entry.word, "green" if can else "red"), "" if can else "  not possible"), soft_wrap=True
    )
    pools = _pools(entry.bound, catalogue.devices, catalogue.workload) if can and entry.bound else ()
    reasons = map(partial(_without_word, entry.word), entry.reasons)
    for line in (*(text for _, text in pools), *reasons):
        console.print(f"    {line}", markup=False, soft_wrap=True)


def _pools(bound: RunPlacement, devices: Sequence[Device], workload: Workload) -> Iterator[tuple[str, str]]:
    """Each pool of a placement, and who is in it on which of the devices."""
    names_nodes = len(devices_per_node(devices)) > 1
    for pool, members in bound.members.items():
        roles = ", ".join(_working_roles(bound.placement, pool, workload))
        count = f" ({len(members)} devices)" if len(devices_per_node(members)) > 1 else ""
        yield pool, f"{pool}: {roles} on {device_ranges(members, names_nodes=names_nodes)}{count}"
