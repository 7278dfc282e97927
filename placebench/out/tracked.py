"""A run as experiment trackers have it: a launch is one of their runs, the comparison another, all in one group."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from placebench.compare.read.run import Launch, Run
from placebench.record.folder import Status
from placebench.report.kept import kept_summary
from placebench.report.paths import HTML, MARKDOWN, SUMMARY, TRACE
from placebench.report.schema import Summary
from placebench.report.show import compare_anew
from placebench.spec.nested import flatten
from placebench.telemetry.samples import QUANTITIES


@dataclass(frozen=True)
class TrackedStep:
    """A step of a launch."""

    step: int
    wall: float
    """When it ended, seconds since the epoch."""
    values: Mapping[str, float]
    """Under verl's names, `timing_s/…` and `perf/…`; and `devices/<device>/<quantity>`, mean over the step."""


@dataclass(frozen=True)
class TrackedLaunch:
    """A finished launch."""

    name: str
    """Of it in the group: placement and round."""
    placement: str
    config: Mapping[str, Any]
    """Placement, round, devices, warm-up, and the workload by dotted key."""
    steps: tuple[TrackedStep, ...]


@dataclass(frozen=True)
class TrackedRun:
    """All that a tracker is told."""

    name: str
    """Of the group: the run's."""
    launches: tuple[TrackedLaunch, ...]
    config: Mapping[str, Any]
    results: Mapping[str, float]
    """`<number>/<placement>`, and `ratio/<number>/<placement>` with its `/low` and `/high`, as far as known."""
    verdict: str
    """In sentences."""
    report: tuple[Path, ...]
    """The report's files that are there."""

    @property
    def ended(self) -> float:
        """When its last step ended, seconds since the epoch; 0 without any."""
        return max((step.wall for launch in self.launches for step in launch.steps), default=0.0)


def track(run: Run) -> TrackedRun:
    """What a tracker is told of a run.

    Raises:
        UsageError: a file of it is damaged.
    """
    path = run.folder.path
    summary = kept_summary(path) or compare_anew(path)
    config = {f"workload/{key}": value for key, value in flatten(run.record.workload).items()}
    config |= {"run": run.name, "framework": run.record.job.framework if run.record.job else "placebench"}
    launches = tuple(
        _launch(run, launch, config) for launch in run.launches if launch.status is Status.DONE and len(launch.steps)
    )
    sentences = [one.headline for one in summary.placements if one.headline]
    files = tuple(file for name in (HTML, MARKDOWN, SUMMARY, TRACE) if (file := path / name).is_file())
    verdict = "\n".join((*sentences, summary.coverage))
    return TrackedRun(run.name, launches, config, dict(_results(summary)), verdict, files)


def wall_offset(run: Run, launch: Launch) -> float:
    """What makes a launch's monotonic clock the wall clock; the run's start counts where no sample tells."""
    if "wall" in launch.samples and launch.samples["wall"].notna().any():
        return float((launch.samples["wall"] - launch.samples["mono"]).median())
    return datetime.fromisoformat(run.record.started).timestamp() - float(launch.spans["start"].min())


def _launch(run: Run, launch: Launch, config: Mapping[str, Any]) -> TrackedLaunch:
    offset, devices = wall_offset(run, launch), _device_values(run, launch)
    whole = launch.whole_steps.set_index("step")["end"]
    steps = tuple(
        TrackedStep(
            int(str(step)),
            offset + float(whole.get(step, launch.spans["end"].max())),
            {str(name): float(value) for name, value in row.items() if np.isfinite(value)}
            | devices.get(int(str(step)), {}),
        )
        for step, row in launch.steps.iterrows()
    )
    placement = next(one for one in run.placements if one.name == launch.placement)
    own = {
        "placement": launch.placement,
        "round": launch.round,
        "devices": len(placement.devices),
        "warmup_steps": launch.warmup_steps,
    }
    return TrackedLaunch(f"{launch.placement}/{launch.round}", launch.placement, {**config, **own}, steps)


def _device_values(run: Run, launch: Launch) -> dict[int, dict[str, float]]:
    """Mean of what was sampled of each device in each step, of its memory the highest sample."""
    samples, spans = launch.samples, launch.whole_steps.sort_values("start")
    if samples.empty or spans.empty:
        return {}
    place = np.searchsorted(spans["start"].to_numpy(), samples["mono"].to_numpy(), side="right") - 1
    is_inside = (place >= 0) & (samples["mono"].to_numpy() <= spans["end"].to_numpy()[place])
    inside = samples[is_inside].assign(step=spans["step"].to_numpy()[place[is_inside]])
    numbers = [one for one in QUANTITIES if one.key in inside and one.unit != "bits"]
    ways = {one.key: "max" if one.unit == "B" else "mean" for one in numbers}
    found: dict[int, dict[str, float]] = {}
    for row in inside.groupby(["step", "device"]).agg(ways).reset_index().to_dict("records"):
        step, device = int(row.pop("step")), str(row.pop("device"))
        values = {f"devices/{run.labels.get(device, device)}/{key}": float(value) for key, value in row.items()}
        found.setdefault(step, {}).update({key: value for key, value in values.items() if np.isfinite(value)})
    return found


def _results(summary: Summary) -> Iterator[tuple[str, float]]:
    for placement in summary.placements:
        for quantity in placement.quantities:
            key = f"{quantity.key}/{placement.name}"
            found: dict[str, float | None] = {key: quantity.value}
            if ratio := quantity.ratio:
                found |= {f"ratio/{key}": ratio.value, f"ratio/{key}/low": ratio.low, f"ratio/{key}/high": ratio.high}
            yield from ((name, value) for name, value in found.items() if value is not None)
