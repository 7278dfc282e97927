"""`--rounds auto`: how many rounds, and steps a launch, a run gets when its intervals, not the user, decide.

Rounds are added until every headline interval is narrow enough, never until something is significant: looking at
verdicts again and again finds differences that are not there. Even a width, looked at after every round, stops a little
too often when the launches happen to agree. So the first look is at `FIRST_LOOK` rounds, and the round after a look
that was content is still run: docs/statistics.md has the coverage that remains.

Where the user leaves the number of steps open, launches after the first `PILOT_ROUNDS` rounds have as many as give the
narrowest interval per minute, by what a start and a step cost and how much both vary. It depends on costs and variances
alone, never on which placement is faster.
"""

import math
from dataclasses import dataclass

from placebench.spec.text import format_seconds, percent

# With the default steps, the narrowest interval per minute where a start costs as much as five to ten steps:
# docs/statistics.md. The small model is there to be quick, and a framework's warm-up takes most of few steps.
DEFAULT_ROUNDS, REAL_MODEL_ROUNDS = 3, 4
PILOT_ROUNDS = 3
FIRST_LOOK = 6
_ROUNDS_OF_INTERVAL = 2
# Finer than any host is quiet; the rounds that a width is expected to take grow without bound towards 0.
LEAST_PRECISION = 1e-4
# More than anybody waits for; a plan holds every one of its launches.
MOST_ROUNDS = 10_000
# Of one launch.
MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class StepChoice:
    """How many steps the launches after the first rounds have, and why."""

    measured: int
    """Steps of a launch that are in the numbers."""
    start_s: float
    """Seconds of a launch besides those: its start, warm-up and end."""
    step_s: float
    """Seconds of a step."""
    between: float
    """Standard deviation of the log ratio of a pair of launches, beyond what its steps contribute."""
    within: float
    """Standard deviation of the log ratio of a step of a pair."""

    @property
    def sentence(self) -> str:
        """The number and the reason."""
        return (
            f"from round {PILOT_ROUNDS + 1} on, a launch measures {self.measured} steps, the number that reaches the"
            f" precision soonest. Starting and ending a launch takes {format_seconds(self.start_s)}, a measured step"
            f" {format_seconds(self.step_s)}. Launches differ by {percent(self.between)}, steps by"
            f" {percent(self.within)}"
        )


@dataclass(frozen=True)
class AutoRounds:
    """When a run with `--rounds auto` ends."""

    precision: float = 0.05
    """How far the ends of a headline interval may lie apart, as a fraction: high / low - 1."""
    max_rounds: int = 20
    """The most rounds, whatever the intervals."""
    max_time_s: float | None = None
    """No round begins that would end later than so many seconds of the run; None for no limit."""
    chooses_steps: bool = False
    """Whether the number of steps is chosen, too."""
    choice: StepChoice | None = None
    """The steps that were chosen; None before that, and where nothing could be chosen."""

    @property
    def least_rounds(self) -> int:
        """The rounds that are run in any case: where time may end the run, no more than an interval needs."""
        return self.rounds_to_be_precise if self.max_time_s is None else min(_ROUNDS_OF_INTERVAL, self.max_rounds)

    @property
    def rounds_to_be_precise(self) -> int:
        """The fewest rounds after which the width of the intervals ends the run."""
        return min(FIRST_LOOK + 1, self.max_rounds)

    def reason_to_stop(
        self, rounds: int, width_before: float, width: float, elapsed_s: float, round_s: float
    ) -> str | None:
        """Why no round is added, in words; None to add one.

        Args:
            rounds: that are done.
            width_before: of the widest headline interval of all but the last of them; infinite without one.
            width: of all of them, likewise; it is shown and decides nothing.
            elapsed_s: seconds that the run has taken so far.
            round_s: seconds that a round takes.
        """
        if rounds >= self.max_rounds:
            return f"{rounds} rounds, the most that --max-rounds allows: {self._describe(width)}"
        if self.max_time_s is not None and elapsed_s + round_s > self.max_time_s:
            return f"{rounds} rounds; another would pass --max-time: {self._describe(width)}"
        if rounds >= self.rounds_to_be_precise and width_before <= self.precision:
            return (
                f"{rounds} rounds, precise enough: the widest headline interval spanned {width_before:.1%} after"
                f" {rounds - 1} rounds and spans {width:.1%} now, --precision is {self.precision:.1%}"
            )
        return None

    def _describe(self, width: float) -> str:
        spans = f"the widest headline interval spans {width:.1%}" if math.isfinite(width) else "there is no interval"
        return f"{spans}, --precision is {self.precision:.1%}"

    def expected_rounds(self, rounds: int, width: float) -> int:
        """How many rounds it will be, by the width that so many had: a width shrinks with the root of their number."""
        if not math.isfinite(width) or width <= 0:
            return max(rounds, self.rounds_to_be_precise)
        needed = math.ceil(rounds * (math.log1p(width) / math.log1p(self.precision)) ** 2) + 1
        return min(max(needed, rounds, self.rounds_to_be_precise), max(self.max_rounds, rounds))


def steps_in_round(auto: AutoRounds | None, number: int, steps: int, left_out: int) -> int:
    """The number of the last step of a round's launches.

    Args:
        auto: of a run whose number of rounds is not fixed.
        number: of the round, counted from 1.
        steps: the number of the last step of the first rounds.
        left_out: steps before the measured ones: warm-up, and those of the checkpoint that launches go on from.
    """
    chosen = auto.choice if auto and number > PILOT_ROUNDS else None
    return left_out + chosen.measured if chosen else steps
