"""What a job that goes on takes from a checkpoint, and what from its own workload, in this process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from placebench.ppo.batch import SequenceBatch
from placebench.ppo.generation import Generation
from placebench.ppo.losses import LossSums
from placebench.ppo.metrics import StepMetrics
from placebench.ppo.model_state import load_model, save_model
from placebench.ppo.models import ValueModel, load_language_model
from placebench.ppo.packing import Pack
from placebench.ppo.passes import values
from placebench.ppo.step_data import StepData
from placebench.ppo.training import TrainedModel
from placebench.record.checkpoints import Checkpoint
from placebench.spec.phases import PHASE
from placebench.spec.workload_reading import build_workload
from placebench.tasks.data import open_prompts
from placebench.tasks.tokenizer import CharacterTokenizer


def squares(module: torch.nn.Module, pack: Pack, scale: float) -> LossSums:
    found: torch.Tensor = values(module, pack)
    return LossSums(found.square().sum() * scale, {"sum": found.detach().sum()})


def model_of(optimizer: dict[str, Any], sharding: str) -> TrainedModel:
    workload = build_workload({"sharding": sharding, "optimizer": optimizer})
    module = ValueModel(load_language_model("tiny"))
    return TrainedModel(module, workload, torch.device("cpu"), 0, workload.optimizer.critic_lr)


@pytest.mark.parametrize("sharding", ["replicate", "shard"])
def test_a_job_that_goes_on_trains_with_its_own_optimizer_settings(tmp_path: Path, alone: None, sharding: str) -> None:
    sequences = SequenceBatch.build([[1, 2]] * 2, [[3, 4, 5], [6]])
    before = {"critic_lr": 1e-3, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    first = model_of(before, sharding)
    first.update(sequences, [4], 2, squares)
    save_model(tmp_path / "critic.pt", first.module, first.optimizer)

    def goes_on(model: TrainedModel, optimizer: dict[str, Any]) -> list[torch.Tensor]:
        """The weights after one more update, which reports the rate that it had."""
        metrics = StepMetrics()
        metrics.update(PHASE["update_critic"], [model.update(sequences, [4], 1, squares)])
        found = metrics.finish(sequences, {}, 1.0, 1, build_workload({}))
        assert found["critic/lr"] == optimizer["critic_lr"]
        (group,) = model.optimizer.param_groups
        assert {"critic_lr": group["lr"]} | {key: group[key] for key in ("betas", "eps", "weight_decay")} == optimizer
        return [getattr(one, "_local_tensor", one).detach().clone() for one in model.module.parameters()]

    def loaded(optimizer: dict[str, Any]) -> list[torch.Tensor]:
        model = model_of(optimizer, sharding)
        load_model(tmp_path / "critic.pt", model.module, model.optimizer)
        return goes_on(model, optimizer)

    whole = goes_on(first, before)
    assert all(torch.equal(*pair) for pair in zip(loaded(before), whole, strict=True))
    other = {"critic_lr": 1e-4, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.0}
    assert not any(torch.equal(*pair) for pair in zip(loaded(other), whole, strict=True))


@pytest.mark.parametrize(
    ("control", "now", "coefficient"),
    [("adaptive", 0.2, 0.5), ("adaptive", 0.3, 0.3), ("fixed", 0.2, 0.2), ("fixed", 0.3, 0.3)],
)
def test_the_kl_coefficient_goes_on_where_it_moves_and_no_other_is_asked_for(
    control: str, now: float, coefficient: float
) -> None:
    algorithm = {"kl_control": "adaptive", "kl_coef": 0.2}
    checkpoint = Checkpoint(Path("step-000003"), 3, 0.5, {"algorithm": algorithm})
    workload = build_workload({"algorithm": {"kl_control": control, "kl_coef": now}})
    generation = Generation(workload, open_prompts(workload.data, 0, 16), CharacterTokenizer())
    data = StepData(workload, generation, is_stale=False)
    data.go_on_from(checkpoint)
    assert data.kl.coefficient == coefficient
