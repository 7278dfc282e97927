"""Runs for tests of the gate: launches of one placement with the same small noise, at any pace."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from synthetic_run import SyntheticRun

NOISE = (0.99, 1.0, 1.02)


def pace(factor: float) -> Callable[[int, str], float]:
    return lambda round_, _: factor * NOISE[round_ % 3]


_SECONDS = itertools.count()


def run(folder: Path, factor: float = 1.0, **changes: object) -> Path:
    started = datetime(2026, 3, 1, 10, tzinfo=UTC) + timedelta(seconds=next(_SECONDS))
    content = {"pace": pace(factor), "started": f"{started:%Y-%m-%dT%H:%M:%SZ}", **changes}
    return SyntheticRun(**content).write(folder)  # type: ignore[arg-type]
