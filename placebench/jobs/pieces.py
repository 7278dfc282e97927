"""Phases of a job of the user's, each at one place, before they are rows of `spans.jsonl`: see `attached`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from placebench.jobs.nested import Timing
from placebench.spec.phases import PHASE
from placebench.spec.placement import Role
from placebench.telemetry.spans import CONTROLLER

# What the hooks say of the source of a span that an engine has written bit by bit.
ENGINE = "engine"
# The hooks join steps of an engine that are no further apart, seconds, and write what they have every 0.25 s.
_ENGINE_GAP_S = 0.02
# Whose work has its result when its devices are done: an engine may generate ahead of its step.
_OF_ONE_STEP = (Role.ACTOR, Role.CRITIC, Role.REF)


@dataclass(frozen=True)
class Piece:
    """A phase at one place."""

    device: str
    """Id of a device, or `CONTROLLER`."""
    timing: Timing
    """The phase and its time."""
    source: str
    """Who says so."""
    role: Role | None
    """Whose work it was."""
    pid: int | None = None
    """The process that worked there; None for the controller's view."""
    own_step: int | None = None
    """The step that it has by the process's own count; None where there is none."""


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces in order of their ends, with what an engine writes bit by bit, while it is at work, in one.

    Pieces of other devices may come between those of one, but none of its own.
    """
    found: list[Piece] = []
    latest: dict[str, int] = {}
    for piece in pieces:
        last = found[latest[piece.device]] if piece.device in latest else piece
        gap = piece.timing.start - last.timing.end
        if piece.source == ENGINE and replace(piece, timing=last.timing) == last and 0 <= gap <= _ENGINE_GAP_S:
            found[latest[piece.device]] = replace(last, timing=replace(last.timing, end=piece.timing.end))
        else:
            latest[piece.device] = len(found)
            found.append(piece)
    return found


def seen_whole(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces of a step, with the controller's view of a phase as long as its devices work on it.

    A framework that lets phases overlap has timers around their submission, or around the wait for their results,
    alone. Where a phase has several in a step it is not known which of them goes with what work.
    """
    found = []
    for piece in pieces:
        name, phase = piece.timing.name, PHASE.get(piece.timing.name)
        same = [one for one in pieces if one.timing.name == name]
        work = [one.timing for one in same if one.device != CONTROLLER]
        is_only = len(same) - len(work) == 1
        if piece.device == CONTROLLER and is_only and work and phase is not None and phase.role in _OF_ONE_STEP:
            times = [piece.timing, *work]
            whole = replace(piece.timing, start=min(one.start for one in times), end=max(one.end for one in times))
            piece = replace(piece, timing=whole)
        found.append(piece)
    return found
