"""The phases of a step on each device: of the one under way as the job tells them, of the last one as its spans do."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from placebench.report.lanes import lanes_of
from placebench.report.palette import phase_colors
from placebench.serve.launch_files import LaunchFiles
from placebench.spec.phases import STEP
from placebench.telemetry.spans import CONTROLLER

Bar = tuple[str, float, float | None]


def step_under_way(current: LaunchFiles, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """The step that runs, its times in seconds from its start; None where the job does not say what it does.

    A phase that goes on has no end.
    """
    progress, now = current.progress, current.now
    if not progress.phases or now is None:
        return None
    start = _start(current, progress.step) or min(one.start for one in progress.phases)
    bars: list[tuple[str, Bar]] = []
    for one in progress.phases:
        for device in one.devices or current.devices_of(one.phase):
            end = None if one.end is None else one.end - start
            bars.append((device, (one.phase, max(0.0, one.start - start), end)))
    return {"step": progress.step, **_drawn(bars, now - start, current, labels)}


def finished_step(current: LaunchFiles, labels: Mapping[str, str]) -> dict[str, Any] | None:
    """The last step whose spans are there; None before the first."""
    step = current.last_step
    if step is None:
        return None
    spans = current.spans_of(step)
    whole = next(span for span in spans if span.device == CONTROLLER and span.phase == STEP)
    mine = {span.phase for span in spans if span.device != CONTROLLER}
    bars: list[tuple[str, Bar]] = [
        (span.device, (span.phase, span.start_mono - whole.start_mono, span.end_mono - whole.start_mono))
        for span in spans
        # The controller's view of what devices do says nothing more.
        if span is not whole and (span.device != CONTROLLER or span.phase not in mine)
    ]
    return {"step": step, **_drawn(bars, whole.end_mono - whole.start_mono, current, labels)}


def _start(current: LaunchFiles, step: int) -> float | None:
    """When a step began: at the end of the one before, as long as that is known."""
    ends = (span.end_mono for span in current.spans if span.step == step - 1 and span.phase == STEP)
    return next(ends, None)


def _drawn(
    bars: Iterable[tuple[str, Bar]], now: float, current: LaunchFiles, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Bars up to now by device, in the order of the placement's devices, and a color for each phase."""
    rows: dict[str, list[Bar]] = {device: [] for device in (CONTROLLER, *current.placement.devices)}
    for device, (phase, start, end) in bars:
        rows.setdefault(device, []).append((phase, round(start, 4), None if end is None else round(end, 4)))
    if not rows[CONTROLLER]:
        del rows[CONTROLLER]
    phases = [phase for row in rows.values() for phase, *_ in row]
    return {
        "now": round(now, 3),
        "rows": [[labels.get(device, device), _in_lanes(row, now)] for device, row in rows.items()],
        "colors": phase_colors(phases),
    }


def _in_lanes(row: list[Bar], now: float) -> list[tuple[Any, ...]]:
    """A row's bars, those with others beside them with their lane and the number of lanes behind."""
    lanes = lanes_of([(start, math.inf if end is None else end) for _, start, end in row], now)
    return [bar if one == (0, 1) else (*bar, *one) for bar, one in zip(row, lanes, strict=True)]
