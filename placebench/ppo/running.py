"""What the controller has submitted to workers and waits for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray

from placebench.placement import Role

# Other ranks notice a rank's death by its broken connections, often sooner than Ray does.
_DEATH_S = 5.0


@dataclass(eq=False)
class Running:
    """Work of some ranks.

    Attributes:
        step: the step that it belongs to.
        phase: its phase.
        role: the role that works.
        pool: the role's pool.
        occupies: pools that take no other phase meanwhile.
        start: when it was submitted, monotonic seconds.
        pending: what the ranks were asked for, in order.
        finish: called with their results, in that order.
        answers: what ranks have told, by rank.
    """

    step: int
    phase: str
    role: Role
    pool: str
    occupies: frozenset[str]
    start: float
    pending: list[Any]
    finish: Callable[[list[Any]], None]
    answers: dict[int, Any] = field(default_factory=dict)


class RunningWork:
    """All that is under way."""

    def __init__(self) -> None:
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
            ready, _ = ray.wait(list(self._by_reference), num_returns=1)
            for reference in ready:
                one = self._by_reference.pop(reference)
                one.answers[one.pending.index(reference)] = self._answer(reference)
                if len(one.answers) == len(one.pending):
                    finished.append(one)
        return finished

    def _answer(self, reference: Any) -> Any:
        """What a rank has to tell.

        Raises:
            RayError: it failed; where another rank has died meanwhile, that rank's death, from which others fail.
        """
        try:
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            rest = list(self._by_reference)
            others = ray.wait(rest, num_returns=len(rest), timeout=_DEATH_S)[0] if rest else []
            for other in others:
                try:
                    ray.get(other)
                except ray.exceptions.ActorDiedError as death:
                    raise death from error
                except ray.exceptions.RayTaskError:
                    pass  # fails for the same reason
            raise
