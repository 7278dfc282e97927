"""Engines in a pool of their own and the trainer: how long each waits for the other, and how fast each works.

The job measures both sides, see docs/async.md. Flows are means over the steps of a launch, so that rates are sums over
sums: a part that an engine finishes in one step has mostly been generated in the one before.
"""

from collections.abc import Mapping

import pandas as pd

from placebench.compare.metrics import (
    DROPPED,
    ENGINE_TOKENS,
    ENGINE_WAIT,
    LAG,
    QUEUE,
    TRAINER_TOKENS,
    TRAINER_WAIT,
)
from placebench.compare.read.run import Launch

_GENERATED, _GENERATING, _TRAINED, _TRAINING = (
    f"flow/{name}" for name in ("generated", "generating_s", "trained", "training_s")
)
# Numbers of a step by the job's names for them.
_COUNTED: Mapping[str, str] = {
    TRAINER_WAIT.key: "training/trainer_wait_s",
    ENGINE_WAIT.key: "training/engine_wait_s",
    QUEUE.key: "training/queue_mean",
    LAG.key: "training/lag_mean",
    DROPPED.key: "training/dropped_sequences",
    _GENERATED: "training/generated_tokens",
    _GENERATING: "training/generating_s",
    _TRAINED: "perf/total_num_tokens",
    _TRAINING: "timing_s/step",
}


def measure_engines(measured: pd.DataFrame, launch: Launch) -> pd.DataFrame:
    """What lay between engines and trainer in every measured step.

    Returns:
        Indexed like `measured`, `queues/...` and `flow/...`. Where engines have no pool of their own there is only the
        lag, and at staleness 0 nothing.
    """
    counted = launch.steps.reindex(measured.index)
    if not set(_COUNTED.values()) <= set(counted):
        lag = _COUNTED[LAG.key]
        return pd.DataFrame({LAG.key: counted[lag]} if lag in counted else {}, measured.index)
    numbers = pd.DataFrame({key: counted[name] for key, name in _COUNTED.items()})
    numbers[_TRAINING] -= numbers[TRAINER_WAIT.key]
    return numbers


def side_rates(numbers: Mapping[str, float]) -> dict[str, float]:
    """Tokens/s of each side while it works, from a launch's means; empty without engines."""
    if _GENERATED not in numbers:
        return {}
    pairs = {TRAINER_TOKENS.key: (_TRAINED, _TRAINING), ENGINE_TOKENS.key: (_GENERATED, _GENERATING)}
    return {key: numbers[tokens] / numbers[time] for key, (tokens, time) in pairs.items() if numbers[time] > 0}
