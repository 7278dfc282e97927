"""Every phase of the table has its method, which is called with what the phase's row names."""

from inspect import signature

import numpy as np
import pytest

from placebench.ppo.batch import SequenceBatch
from placebench.ppo.generation import Generation
from placebench.ppo.step_data import StepData, StepState
from placebench.ppo.worker import Worker
from placebench.spec.phases import GEN, PHASES, SEQUENCE_FIELDS, Phase
from placebench.spec.workload_reading import build_workload
from placebench.tasks.data import open_prompts
from placebench.tasks.tokenizer import CharacterTokenizer

WORKLOAD = build_workload({"batch": {"size": 2, "mini_batch_size": 2}})
FIELDS = {field for phase in PHASES for field in phase.writes}


@pytest.mark.parametrize("is_stale", [False, True])
@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase.role], ids=lambda phase: phase.name)
def test_a_phase_of_a_role_is_a_method_of_the_worker(phase: Phase, is_stale: bool) -> None:
    generation = Generation(WORKLOAD, open_prompts(WORKLOAD.data, 0, 16), CharacterTokenizer())
    data, state = StepData(WORKLOAD, generation, is_stale=is_stale), StepState(1, generation.step_prompts(1))
    if phase.name != GEN:
        per_token = {field: np.zeros(3, np.float32) for field in FIELDS - SEQUENCE_FIELDS}
        batch = SequenceBatch.build([[1], [1]], [[2, 3], [2]])
        state.batch = batch.with_fields(per_token, {field: np.zeros(2) for field in SEQUENCE_FIELDS})
    arguments = data.arguments(state, phase.name, np.arange(2))
    _, *parameters = signature(getattr(Worker, f"_run_{phase.name}")).parameters
    assert set(arguments) == set(parameters)
    if "batch" in arguments:
        reads = {*phase.reads, *(phase.stale_reads if is_stale else ())}
        assert set(arguments["batch"].per_token) == reads - SEQUENCE_FIELDS


@pytest.mark.parametrize("phase", [phase for phase in PHASES if not phase.role], ids=lambda phase: phase.name)
def test_a_phase_without_a_role_is_a_method_of_the_step_data(phase: Phase) -> None:
    assert callable(getattr(StepData, f"_compute_{phase.name}"))
