"""Engines in a pool of their own, as the controller drives them; what the engines would answer is made up."""

from random import Random
from types import SimpleNamespace

import numpy as np

from placebench.ppo.batch import SequenceBatch
from placebench.ppo.engine_pool import EnginePool
from placebench.ppo.generation import Generation
from placebench.ppo.running import Running
from placebench.spec.words import parse_placement
from placebench.spec.workload_reading import build_workload
from placebench.tasks.data import open_prompts
from placebench.tasks.tokenizer import CharacterTokenizer

WORKLOAD = build_workload({"batch": {"size": 4, "mini_batch_size": 4}})
ENGINES, STALENESS, STEPS = 2, 2, 40


def answer(version: int) -> SequenceBatch:
    """What an engine made of its part with weights that had had so many updates."""
    count = WORKLOAD.batch.size // ENGINES
    lengths, versions = np.ones(count, np.int32), np.full(count, version, np.int32)
    return SequenceBatch(np.zeros(2 * count, np.int32), lengths, lengths, {}, {"weights_version": versions})


def test_prompts_are_kept_for_as_long_as_they_may_be_generated_from() -> None:
    worker = SimpleNamespace(run=SimpleNamespace(remote=lambda *_: None))
    placement = parse_placement(f"learners:1+engines:{ENGINES}/staleness={STALENESS}", [1 + ENGINES])
    generation = Generation(WORKLOAD, open_prompts(WORKLOAD.data, 0, 16), CharacterTokenizer())
    engines = EnginePool(WORKLOAD, placement, [worker] * ENGINES, generation)
    drawn, running, trained, dropped = Random(1), list[tuple[Running, int]](), 0, 0
    while trained < STEPS:
        while engines.admitted <= trained + STALENESS:
            engines.admit_next()
        running += [(one, trained) for one in engines.submit(lambda: 0.0)]
        # Whichever engine is done first: a part that takes long is overtaken, dropped, and generated again.
        one, version = running.pop(drawn.choice([-1, -1, -1, -1, 0]))
        one.finish([answer(version)])
        if taken := engines.take(trained + 1):
            assert len(taken.prompts) == WORKLOAD.batch.size
            trained += 1
        dropped += engines.cut_flow().dropped
        assert len(engines._prompts) <= ENGINES * (STALENESS + 1)
    assert dropped
