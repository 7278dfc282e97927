"""How far a run is and how long it will still take, in figures and in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from placebench.record.run_file import LaunchWall
from placebench.run.watch import LaunchState
from placebench.spec.auto_rounds import MOST_STEPS


@dataclass(frozen=True)
class LaunchPosition:
    """Which launch of the run it is."""

    number: int
    """Number of the launch, counted from 1."""
    total: int
    """Launches of the run."""
    round: int
    """Number of the round, counted from 1."""
    rounds: int
    """Rounds of the run."""
    placement: str
    """The placement's name."""
    steps: int
    """Number of the last step."""
    labels: Mapping[str, str]
    """Short name of each of its devices, such as `gpu:0`, by id."""
    steps_before: int = 0
    """Number of the last step that is in the checkpoint it goes on from."""
    is_estimate: bool = False
    """Whether `total` and `rounds` are expected, as with `--rounds auto`."""

    @property
    def of_total(self) -> str:
        """The launches of the run, `about 14` where that is an estimate."""
        return f"about {self.total}" if self.is_estimate else str(self.total)


def time_left(
    finished: Mapping[str, Sequence[LaunchWall]],
    placement: str,
    state: LaunchState,
    steps: int,
    remaining: Sequence[str],
) -> float | None:
    """Seconds until the end of the run's launches, from what this run has measured so far.

    The launch that runs needs its remaining steps at the median of its own, and the mean time that finished
    launches took after their steps; before its first step, what a finished launch of its placement (else of any)
    took. A remaining launch takes the mean of its placement, else as long as the one that runs.

    Args:
        finished: every finished launch, by placement.
        placement: of the launch that runs.
        state: of that launch.
        steps: that a launch runs.
        remaining: placements of the launches after it.

    Returns:
        None while there is nothing to go by: no step and no launch has finished; and where steps have no end.
    """
    walls = [wall for of_placement in finished.values() for wall in of_placement]
    means = {name: fmean(wall.total_s for wall in walls) for name, walls in finished.items() if walls}
    typical = means.get(placement, fmean(means.values()) if means else None)
    if steps >= MOST_STEPS:
        return None
    if state.step_times:
        after = fmean((wall.after_steps_s or 0.0) + wall.cleanup_s for wall in walls) if walls else 0.0
        current = (steps - len(state.step_times)) * median(state.step_times) + after
    elif typical is not None:
        current = max(0.0, typical - state.elapsed_s)
    else:
        return None
    another = typical if typical is not None else state.elapsed_s + current
    return current + sum(means.get(name, another) for name in remaining)


def activity(state: LaunchState, steps: int) -> str:
    """What the launch is doing now, for people."""
    if state.stage != "step":
        return state.stage or "start"
    phases = " + ".join(state.running)
    return step_of(state.step, steps) + (f": {phases}" if phases else "")


def step_of(step: int, steps: int) -> str:
    """`step 4/8`, or `step 4` where a launch lasts until its command ends."""
    return f"step {step}" if steps >= MOST_STEPS else f"step {step}/{steps}"
