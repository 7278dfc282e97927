"""What the controller has submitted to workers and waits for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from placebench.sessions.base import Calls
from placebench.spec.placement import Role

# Other ranks notice a rank's death by its broken connections, often sooner than the session does.
_DEATH_S = 5.0


@dataclass(eq=False)
class Running:
    """Work of some ranks."""

    step: int
    """The step that it belongs to."""
    phase: str
    """Its phase."""
    role: Role
    """The role that works."""
    pool: str
    """The role's pool."""
    occupies: frozenset[str]
    """Pools that take no other phase meanwhile."""
    start: float
    """When it was submitted, monotonic seconds."""
    pending: list[Any]
    """What the ranks were asked for, in order."""
    finish: Callable[[list[Any]], None]
    """Called with their results, in that order."""
    answers: dict[int, Any] = field(default_factory=dict)
    """Of the ranks, by rank."""


class RunningWork:
    """All that is under way.

    Args:
        calls: how answers are waited for.
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._by_reference: dict[Any, Running] = {}

    @property
    def all(self) -> tuple[Running, ...]:
        """Each once, in order of submission."""
        return tuple(dict.fromkeys(self._by_reference.values()))

    def add(self, one: Running) -> None:
        """Wait for one more."""
        self._by_reference.update(dict.fromkeys(one.pending, one))

    def wait(self) -> list[Running]:
        """Wait until some are done on all their ranks; a rank's error is raised at once."""
        finished: list[Running] = []
        while not finished:
            for reference in self._calls.wait(list(self._by_reference)):
                one = self._by_reference.pop(reference)
                one.answers[one.pending.index(reference)] = self._answer(reference)
                if len(one.answers) == len(one.pending):
                    finished.append(one)
        return finished

    def _answer(self, reference: Any) -> Any:
        """The answer of a rank.

        Raises:
            Exception: it failed; where another rank has died meanwhile, that rank's death, from which others fail.
        """
        try:
            return self._calls.get([reference])[0]
        except self._calls.failed as error:
            rest = list(self._by_reference)
            others = self._calls.wait(rest, len(rest), _DEATH_S) if rest else []
            for other in others:
                try:
                    self._calls.get([other])
                except self._calls.died as death:
                    raise death from error
                except self._calls.failed:
                    pass  # fails for the same reason
            raise
