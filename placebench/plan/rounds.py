"""How many rounds a run gets: as many as are asked for, or those of `--rounds auto`."""

from placebench.errors import UsageError
from placebench.plan.request import RunRequest
from placebench.spec.auto_rounds import DEFAULT_ROUNDS, LEAST_PRECISION, AutoRounds
from placebench.spec.check import Check, Facts


def auto_rounds(request: RunRequest, stored: AutoRounds | None = None) -> AutoRounds | None:
    """What the request says of `--rounds auto`, over what a run that is resumed has stored; None for fixed rounds.

    Raises:
        UsageError: the precision is none that rounds can reach, or a limit is given although their number is fixed.
    """
    limits = {"precision": request.precision, "max_rounds": request.max_rounds, "max_time_s": request.max_time_s}
    given = {name: value for name, value in limits.items() if value is not None}
    if request.rounds == "auto" or (request.rounds is None and stored is not None):
        before = stored or AutoRounds()
        precision = before.precision if request.precision is None else request.precision
        # What is stored may be from a version that took any, and nan is in no range.
        if not LEAST_PRECISION <= precision < 1:
            raise UsageError(f"--precision {precision:g}: give at least {LEAST_PRECISION:.2%}, and less than 100%")
        return AutoRounds(
            precision,
            before.max_rounds if request.max_rounds is None else request.max_rounds,
            before.max_time_s if request.max_time_s is None else request.max_time_s,
        )
    if given:
        options = ", ".join(f"--{name.removesuffix('_s').replace('_', '-')}" for name in given)
        raise UsageError(f"{options}: only for a number of rounds that is not fixed: add --rounds auto")
    return None


def planned_rounds(request: RunRequest, auto: AutoRounds | None, done: int = 0) -> int:
    """The rounds that are run in any case.

    Args:
        request: what is given.
        auto: as `auto_rounds` says.
        done: rounds that a resumed run already has.
    """
    if auto is not None:
        return max(done, auto.least_rounds)
    return (request.rounds if isinstance(request.rounds, int) else None) or done or DEFAULT_ROUNDS


def _find_rounds(request: RunRequest, facts: Facts, stored: AutoRounds | None = None) -> None:
    """With `--rounds auto`, when they end: `auto`."""
    facts.add(auto=auto_rounds(request, stored))


ROUNDS = Check(_find_rounds, {"rounds"})
