"""A reward for verl, made up: what is trained makes no difference to how long it takes."""

from typing import Any


def closeness_to_20(solution_str: str, **_: Any) -> float:
    """Rewards responses of 20 characters."""
    return -abs(20 - len(solution_str)) / 20
