"""Placements whose phases take known times, and the spans of their steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROLES = {
    "gen": "rollout",
    "reward": "reward",
    "old_log_prob": "actor",
    "ref": "ref",
    "values": "critic",
    "adv": None,
    "update_critic": "critic",
    "update_actor": "actor",
    "update_weights": "rollout",
}

Times = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Layout:
    """A placement and when its phases run in a step.

    Attributes:
        pools: device ids of each pool.
        roles: the pool of each role.
        times: start and end of each phase in seconds from the start of the step.
        step_s: length of the step.
        scaling: `strong` or `weak` for a layout of replicas.
        overlap: what the placement lets overlap.
        staleness: how many updates the weights that generate may lag behind.
        inflight_updates: whether engines go on while they take new weights.
    """

    pools: Mapping[str, tuple[str, ...]]
    roles: Mapping[str, str]
    times: Times
    step_s: float
    scaling: str | None = None
    overlap: str = "all"
    staleness: int = 0
    inflight_updates: bool = False


STANDARD = Layout(
    {"global_pool": ("cpu:0", "cpu:1")},
    dict.fromkeys(("actor", "rollout", "ref", "critic", "reward"), "global_pool"),
    {
        "gen": (0.01, 0.51),
        "reward": (0.51, 0.52),
        "old_log_prob": (0.52, 0.62),
        "ref": (0.62, 0.72),
        "values": (0.72, 0.82),
        "adv": (0.82, 0.83),
        "update_critic": (0.83, 1.03),
        "update_actor": (1.03, 1.27),
        "update_weights": (1.27, 1.28),
    },
    1.30,
)
SPLIT = Layout(
    {"actor_pool": ("cpu:0",), "critic_pool": ("cpu:1",)},
    dict.fromkeys(("actor", "rollout", "ref"), "actor_pool") | dict.fromkeys(("critic", "reward"), "critic_pool"),
    {
        "gen": (0.01, 0.91),
        "reward": (0.91, 0.92),
        "old_log_prob": (0.91, 1.11),
        "ref": (1.11, 1.31),
        "values": (0.92, 1.12),
        "adv": (1.31, 1.32),
        "update_critic": (1.32, 1.72),
        "update_actor": (1.32, 1.80),
        "update_weights": (1.80, 1.81),
    },
    1.83,
)


def step_spans(
    layout: Layout, step: int, start: float, scale: float = 1.0, testing: float = 0.0
) -> list[dict[str, Any]]:
    """The spans of one step on its devices and in the controller."""
    spans = []
    for phase, (begin, end) in layout.times.items():
        role = ROLES[phase]
        pool = layout.roles[role] if role else None
        devices = layout.pools[pool] if pool else ()
        for device in ("controller", *devices):
            spans.append(span_line(step, phase, role, pool, device, start + begin * scale, start + end * scale))
    end = start + layout.step_s * scale
    if testing:
        spans.append(span_line(step, "testing", None, None, "controller", end, end + testing))
    return [*spans, span_line(step, "step", None, None, "controller", start, end + testing)]


def span_line(
    step: int, phase: str, role: str | None, pool: str | None, device: str, start: float, end: float
) -> dict[str, Any]:
    """A span of a phase on a device, as a launch writes it."""
    times = {"start_wall": start, "end_wall": end, "start_mono": start, "end_mono": end}
    return {"step": step, "phase": phase, "role": role, "pool": pool, "device": device, **times}
