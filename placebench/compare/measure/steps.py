"""What one step of a launch consisted of, and the numbers that follow from it.

Phases overlap, so seconds are never summed over spans. Instead a step is cut at every start and end of a span into
segments in which nothing changes; work, waiting and hidden time are the lengths of segments chosen by who works.

Two views of a phase differ: on its *device* it lasts while the slowest device works on it; for the *controller*
it lasts from submission to result, which includes queueing behind other phases.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from placebench.compare.metrics import NO_PHASE, OWN_POOL
from placebench.compare.read.run import APART, Launch, is_whole_step
from placebench.spec.bound import RunPlacement
from placebench.spec.phases import UNATTRIBUTED
from placebench.spec.placement import Role
from placebench.telemetry.spans import CONTROLLER

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Step:
    """One step, cut into segments; what lies outside the controller's span of the whole step is left out.

    So is the time of validation and checkpoints within it: segments in which they run have length 0.
    """

    number: int
    """Counted from 1."""
    start: float
    """Of the step, seconds of the monotonic clock."""
    end: float
    """Of the step."""
    phase: NDArray[np.object_]
    """Phase of each span, shape (spans,)."""
    device: NDArray[np.object_]
    """Device of each span, `CONTROLLER` for the controller's view."""
    is_ahead: Flags
    """Whether a span is work for a later step."""
    ends: NDArray[np.float64]
    """End of each span."""
    seconds: NDArray[np.float64]
    """Length of each segment, shape (segments,)."""
    apart_s: float
    """Time within the step that is left out."""
    active: Flags
    """Whether a span covers a segment, shape (spans, segments)."""

    @cached_property
    def works(self) -> Flags:
        """Which spans are work: those of devices, and the controller's where no device works on the phase (`adv`)."""
        remote = self.device != CONTROLLER
        return np.asarray(remote | ~np.isin(self.phase, self.phase[remote]))

    @cached_property
    def phases(self) -> tuple[str, ...]:
        """The phases of the step, each once, in order of appearance."""
        return tuple(dict.fromkeys(self.phase))

    def during(self, spans: Flags) -> Flags:
        """The segments in which any of the chosen spans is active."""
        return np.asarray(self.active[spans].any(axis=0))

    def length(self, segments: Flags) -> float:
        """Seconds in the chosen segments."""
        return float(self.seconds[segments].sum())


def split_steps(spans: pd.DataFrame, last_warmup_step: int = 0) -> Iterator[Step]:
    """The measured steps of a launch in order, cut into segments.

    A step has the work that is done in its time, which with stale weights may be for steps before or after it.

    Args:
        spans: of the launch, columns as in `Launch.spans`.
        last_warmup_step: number of the last step that is not measured.
    """
    is_whole = is_whole_step(spans)
    whole = spans[is_whole & (spans["step"] > last_warmup_step)].sort_values("step", kind="stable")
    work = spans[~is_whole]
    phases, devices = (work[name].to_numpy(dtype=object) for name in ("phase", "device"))
    steps, is_apart = work["step"].to_numpy(), np.isin(phases, APART)
    times = work[["start", "end"]].to_numpy(dtype=np.float64)
    for number, start, end in zip(whole["step"].tolist(), whole["start"].tolist(), whole["end"].tolist(), strict=True):
        inside = (times[:, 0] < end) & (times[:, 1] > start)
        starts, ends = np.clip(times[inside], start, end).T
        edges = np.unique(np.concatenate([[start, end], starts, ends]))
        active = (starts[:, None] <= edges[:-1]) & (edges[1:] <= ends[:, None])
        seconds, kept = np.diff(edges), ~is_apart[inside]
        left_out = active[~kept].any(axis=0)
        yield Step(
            number,
            start,
            end,
            phases[inside][kept],
            devices[inside][kept],
            steps[inside][kept] > number,
            ends[kept],
            np.where(left_out, 0.0, seconds),
            float(seconds[left_out].sum()),
            active[kept],
        )


def measure_step(step: Step, placement: RunPlacement) -> dict[str, float]:
    """The numbers of one step in seconds, by key.

    - `step_time`;
    - `phase/<phase>` and `controller/<phase>`: the two views;
    - `unattributed`: the step without the union of all phases, in either view; NaN where no phase is known;
    - `hidden`: what overlap saved: the busy time of every pool, and the controller's, summed, without the busy
      time of all together;
    - `idle/<device>`, and `idle`, their mean;
    - `wait_slower_ranks/<device>` and `wait_nothing_to_do/<device>`: of `idle/<device>`, the time in which another
      device of its pool works, and all else, which is all of it for engines in a pool of their own;
    - `overlap/<phase>+<phase>`: time in which phases of different pools ran side by side;
    - `wait/<pool>/<cause>`: the idle time of the pool's devices by cause (see `_waits`), mean of its devices.
    """
    remote = step.device != CONTROLLER
    pools = [*placement.pools.values(), (CONTROLLER,)]
    busy = [step.during(step.works & np.isin(step.device, devices)) for devices in pools]
    numbers = {"step_time": step.end - step.start - step.apart_s}
    for phase in step.phases:
        numbers[f"phase/{phase}"] = _device_view(step, phase)
        if (submitted := ~remote & (step.phase == phase)).any():
            numbers[f"controller/{phase}"] = step.length(step.during(submitted))
    numbers[UNATTRIBUTED] = step.length(~step.during(np.ones_like(remote))) if step.phases else np.nan
    numbers["hidden"] = sum(step.length(part) for part in busy) - step.length(np.any(busy, axis=0))
    idle = {device: ~step.during(step.device == device) for device in placement.devices}
    numbers |= {f"idle/{device}": step.length(segments) for device, segments in idle.items()}
    numbers["idle"] = sum(step.length(segments) for segments in idle.values()) / len(idle)
    for pool, devices in placement.pools.items():
        alone = placement.has_engines and pool == placement.roles[Role.ROLLOUT]
        for device in devices:
            waits = _waits(step, (device,) if alone else devices, idle[device])
            numbers[f"wait_slower_ranks/{device}"] = waits.get(OWN_POOL, 0.0)
            others = (seconds for cause, seconds in waits.items() if cause != OWN_POOL)
            numbers[f"wait_nothing_to_do/{device}"] = sum(others, 0.0)
            for cause, seconds in waits.items():
                key = f"wait/{pool}/{cause}"
                numbers[key] = numbers.get(key, 0.0) + seconds / len(devices)
    return numbers | _overlaps(step, pools)


def measure_steps(launch: Launch, placement: RunPlacement) -> pd.DataFrame:
    """The numbers of every measured step: one row a step, indexed by `step`, columns as in `measure_step`.

    To these come `tokens`, the step's real tokens as the job counted them, `tokens_per_s` and
    `tokens_per_s_per_device`, which divide by the wall time of the step and by all devices allocated.
    Phases that did not overlap and waits that did not come are 0; any other number that is missing is NaN. Where no
    span says when phases ran, their times are the log's, and what needs more than these is left out.
    """
    rows = {step.number: measure_step(step, placement) for step in split_steps(launch.spans, launch.last_warmup_step)}
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("step")
    if frame.empty:
        return frame
    rare = frame.columns[frame.columns.str.startswith(("overlap/", "wait/"))]
    frame[rare] = frame[rare].fillna(0.0)
    if not launch.has_phases:
        frame = frame[["step_time"]].join(_logged(launch.logged_phases))
    frame["tokens"] = launch.steps.get("perf/total_num_tokens", pd.Series(dtype=float))
    frame["tokens_per_s"] = frame["tokens"] / frame["step_time"]
    frame["tokens_per_s_per_device"] = frame["tokens_per_s"] / len(placement.devices)
    return frame


def _logged(phases: pd.DataFrame) -> pd.DataFrame:
    """Phases as a log times them, which is what its controller saw, under the keys of `measure_step`."""
    seen = {str(name): phases[name] for name in phases.columns}
    views = {f"{view}/{name}": seconds for view in ("phase", "controller") for name, seconds in seen.items()}
    views = {key: seconds for key, seconds in views.items() if not key.endswith(f"/{UNATTRIBUTED}")}
    return pd.DataFrame(views | ({UNATTRIBUTED: seen[UNATTRIBUTED]} if UNATTRIBUTED in seen else {}))


def _device_view(step: Step, phase: str) -> float:
    spans = step.works & (step.phase == phase)
    return max(step.length(step.during(spans & (step.device == device))) for device in set(step.device[spans]))


def _overlaps(step: Step, pools: list[tuple[str, ...]]) -> dict[str, float]:
    shared: dict[str, float] = defaultdict(float)
    for first, second in combinations(pools, 2):
        sides = [
            {phase: step.during(chosen & (step.phase == phase)) for phase in dict.fromkeys(step.phase[chosen])}
            for chosen in (step.works & np.isin(step.device, devices) for devices in (first, second))
        ]
        for phase, segments in sides[0].items():
            for other, others in sides[1].items():
                seconds = step.length(segments & others)
                if seconds > 0 and phase != other:
                    shared["overlap/" + "+".join(sorted((phase, other)))] += seconds
    return dict(shared)


def _waits(step: Step, pool: tuple[str, ...], idle: Flags) -> dict[str, float]:
    """Seconds of a device's idle segments by what it waited for; they sum to its idle time.

    It is `OWN_POOL` while another device of the pool works, for its ranks go on together: these seconds are the
    imbalance of the ranks. (An engine apart from the trainer is no such rank, its pool here is itself.) Else the cause
    is the phase that other pools or the controller worked on; where several did, the one that ended last, for the wait
    could not end before it. Work for a later step is not waited for. It is `NO_PHASE` where nothing else worked.
    """
    own = np.isin(step.device, pool)
    elsewhere = step.works & ~own & ~step.is_ahead
    causes = np.full(len(idle), NO_PHASE, dtype=object)
    for span in np.flatnonzero(elsewhere)[np.argsort(step.ends[elsewhere], kind="stable")]:
        causes[step.active[span]] = step.phase[span]
    causes[step.during(own)] = OWN_POOL
    return {cause: step.length(idle & (causes == cause)) for cause in dict.fromkeys(causes[idle])}
