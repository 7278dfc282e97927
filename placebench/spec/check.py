"""Checks that are declared: each with what it needs to know and what it says. One driver asks those that can answer.

A check is a function. Its parameters name the facts that it needs; one with a default it can do without. Where it
depends on single options, or on single keys of the workload, these are named beside it. Of what the user has set to
something that cannot be read nobody knows the value, so what depends on it is not asked: it would be held against a
value that nobody wants. A check may find facts, for those after it.
"""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import Parameter, signature
from typing import Any

from placebench.errors import Reasons


class Facts(dict[str, Any]):
    """What is known of what is to be checked, by name; all of it as a whole goes by the name `facts`.

    Attributes:
        unknown: options, and dotted keys of the workload, whose values nobody knows, since what sets them is wrong.
        conflicting: dotted keys of the workload whose values are known and do not go together.
    """

    def __init__(self, unknown: Iterable[str] = (), **values: Any) -> None:
        super().__init__(facts=self)
        self.unknown, self.conflicting = set(unknown), set[str]()
        self.add(**values)

    def add(self, **values: Any) -> None:
        """Note what is known now; None is nothing to know."""
        self.update({name: value for name, value in values.items() if value is not None})


@dataclass(frozen=True)
class Check:
    """A question to the facts."""

    says: Callable[..., Iterable[str] | None]
    """What is wrong, one line for every reason; a UsageError says it too. Its parameters are names of facts."""
    needs: Set[str] = frozenset()
    """Options and dotted keys of the workload that it depends on."""
    settled: Set[str] = frozenset()
    """Options and keys on which it depends, and which must also go together with others."""

    @cached_property
    def _takes(self) -> dict[str, bool]:
        """The facts that it takes, each with whether it can do without."""
        return {name: one.default is not Parameter.empty for name, one in signature(self.says).parameters.items()}

    def can_answer(self, facts: Facts) -> bool:
        """Whether all that it needs is known."""
        return (
            facts.unknown.isdisjoint(self.needs | self.settled)
            and facts.conflicting.isdisjoint(self.settled)
            and all(name in facts or can_do_without for name, can_do_without in self._takes.items())
        )

    def answer(self, facts: Facts) -> tuple[str, ...]:
        """What it says of the facts.

        Raises:
            UsageError: with what it says.
        """
        return tuple(self.says(**{name: facts[name] for name in self._takes if name in facts}) or ())


def collect(checks: Iterable[Check], facts: Facts) -> Reasons:
    """Every reason of all checks whose needs are known, in the order of the checks."""
    reasons = Reasons()
    for check in checks:
        if check.can_answer(facts):
            reasons.add(reasons.attempt(partial(check.answer, facts)) or ())
    return reasons
