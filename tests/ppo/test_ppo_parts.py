"""Models, their training and the torch rollout, in this process."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import adam

from placebench.errors import UsageError
from placebench.ppo import training
from placebench.ppo.attention import cached_attention
from placebench.ppo.batch import SequenceBatch
from placebench.ppo.losses import LossSums
from placebench.ppo.models import PolicyModel, ValueModel, load_language_model
from placebench.ppo.packing import Pack
from placebench.ppo.passes import log_probs, values
from placebench.ppo.rollout.base import Generated, SamplingSettings
from placebench.ppo.rollout.torch import TorchRollout, unsharded
from placebench.ppo.training import SequenceModel, ShardAdamW, TrainedModel
from placebench.predict.memory.model import KEPT_WHOLE
from placebench.spec.shapes import PRESETS, ModelShape, model_shape
from placebench.spec.workload_reading import build_workload


def policy(temperature: float) -> SequenceModel:
    module = PolicyModel(load_language_model("tiny"), temperature, torch.float32, compiled=False)
    return SequenceModel(module.requires_grad_(False), build_workload({}), torch.device("cpu"), 0)


@pytest.fixture(scope="module")
def rollout() -> TorchRollout:
    return TorchRollout(policy(1.0).module.language_model)


PROMPTS = [[1, 11, 2, 17], [3, 11, 4, 17, 5, 6], [9], [8, 8]]


def sampling(**changes: Any) -> SamplingSettings:
    return replace(SamplingSettings(0.7, 1.0, ignore_eos=False, stop_token_ids=(0,)), **changes)


def told(response: Generated) -> list[float]:
    """The log-probabilities of a response's tokens."""
    assert response.log_probs is not None
    return response.log_probs


def test_a_response_does_not_depend_on_its_neighbors(rollout: TorchRollout) -> None:
    longest, seeds = [6, 3, 5, 6], [1, 2, 3, 4]
    together = rollout.generate(PROMPTS, longest, seeds, sampling())
    alone = [
        rollout.generate([prompt], [limit], [seed], sampling())[0]
        for prompt, limit, seed in zip(PROMPTS, longest, seeds, strict=True)
    ]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    for left, right in zip(together, alone, strict=True):
        np.testing.assert_allclose(told(left), told(right), atol=1e-5)


def test_log_probs_are_the_policys(rollout: TorchRollout) -> None:
    generated = rollout.generate(PROMPTS, [6] * 4, [1, 2, 3, 4], sampling(top_p=0.9))
    batch = SequenceBatch.build(PROMPTS, [one.tokens for one in generated])
    recomputed = policy(0.7).per_token(batch, log_probs)
    np.testing.assert_allclose(recomputed, [v for one in generated for v in told(one)], atol=1e-5)


def plain_logits(rollout: TorchRollout, tokens: list[int]) -> Any:
    with cached_attention(rollout._model), torch.no_grad():
        return rollout._model(torch.tensor([tokens])).logits[0, -1]


def test_nearly_no_mass_is_greedy(rollout: TorchRollout) -> None:
    (narrow,) = rollout.generate([PROMPTS[0]], [6], [5], sampling(top_p=1e-6))
    tokens = list(PROMPTS[0])
    for token in narrow.tokens:
        assert token == int(plain_logits(rollout, tokens).argmax())
        tokens.append(token)


def test_draws_follow_the_distribution(rollout: TorchRollout) -> None:
    count = 4000
    responses = rollout.generate([[1]] * count, [1] * count, list(range(count)), sampling(temperature=1.0))
    expected = torch.softmax(plain_logits(rollout, [1]), -1).numpy()
    observed = np.bincount([one.tokens[0] for one in responses], minlength=len(expected))
    chi_square = float(((observed - count * expected) ** 2 / (count * expected)).sum())
    assert chi_square < 63 + 6 * math.sqrt(2 * 63)


def test_ends_at_eos_unless_told_not_to(rollout: TorchRollout) -> None:
    free = rollout.generate([[1]] * 200, [6] * 200, list(range(200)), sampling(temperature=5.0))
    assert {len(one.tokens) for one in free} > {1, 6}
    assert all(0 not in one.tokens[:-1] for one in free)
    assert all(len(one.tokens) == 6 or one.tokens[-1] == 0 for one in free)
    several = sampling(temperature=5.0, stop_token_ids=(0, 7, 9))
    for one, before in zip(rollout.generate([[1]] * 200, [6] * 200, list(range(200)), several), free, strict=True):
        ends = [number for number, token in enumerate(before.tokens, 1) if token in (0, 7, 9)]
        assert one.tokens == before.tokens[: ends[0] if ends else 6]
    longest = [1 + number % 6 for number in range(200)]
    fixed = rollout.generate([[1]] * 200, longest, list(range(200)), sampling(temperature=5.0, ignore_eos=True))
    assert [len(one.tokens) for one in fixed] == longest


def test_ranks_agree_once_on_the_micro_batches_of_an_update(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ValueModel(load_language_model("tiny"))
    batch = {"size": 6, "mini_batch_size": 2, "micro_batch_tokens": 8, "max_prompt_length": 4, "max_response_length": 4}
    workload = build_workload({"sharding": "shard", "batch": batch})
    model = TrainedModel(module, workload, torch.device("cpu"), 0, 1e-5)
    agreed: list[list[int]] = []

    def other_rank_has_more(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        if op == dist.ReduceOp.MAX:
            tensor[1] += 1
            agreed.append(tensor.tolist())

    monkeypatch.setattr(dist, "all_reduce", other_rank_has_more)
    passes: list[int] = []

    def loss(part: torch.nn.Module, pack: Pack, scale: float) -> LossSums:
        passes.append(len(pack.targets))
        values: torch.Tensor = part(pack.inputs, pack.predict_positions)
        return LossSums(values.sum() * scale, {})

    # Micro-batches by themselves: both sequences in one, both in one, each in one.
    sequences = SequenceBatch.build([[1, 2]] * 6, [[3, 4], [3, 4], [3], [3], [3, 4, 5, 6], [3, 4]])
    model.update(sequences, [4, 2, 6], 2, loss)
    assert agreed == [[1, 2, 2]]
    assert passes == [4, 1, 1, 4, 2] * 2


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_rank_alone_keeps_weights_from_micro_batch_to_micro_batch_and_trains_the_same(
    alone: None, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    batch = {"size": 6, "mini_batch_size": 3, "micro_batch_tokens": 8, "max_prompt_length": 4, "max_response_length": 4}
    workload = build_workload({"sharding": "shard", "precision": precision, "batch": batch})
    sequences = SequenceBatch.build([[1, 2]] * 6, [[3, 4, 5], [6, 7, 8], [3], [7, 8, 9], [3, 4, 5, 6], [3, 4]])

    def trained() -> tuple[list[bool], dict[str, float], bytes, list[torch.Tensor]]:
        """Whether blocks are whole before each micro-batch; metrics, values and weights."""
        model = TrainedModel(ValueModel(load_language_model("tiny")), workload, torch.device("cpu"), 0, 1e-3)
        whole: list[bool] = []

        def loss(part: torch.nn.Module, pack: Pack, scale: float) -> LossSums:
            whole.append(not any(isinstance(one, DTensor) for one in model.unwrapped.layers.parameters()))
            found: torch.Tensor = values(part, pack)
            return LossSums(found.square().sum() * scale, {"sum": found.detach().sum()})

        metrics = model.update(sequences, [7, 9], 2, loss)
        scores = model.per_token(sequences, values).tobytes()
        parameters: list[Any] = list(model.module.parameters())
        assert all(isinstance(one, DTensor) for one in parameters)
        return whole, metrics, scores, [one.to_local() for one in parameters]

    kept, *results, weights = trained()
    monkeypatch.setattr(training, "KEPT_WHOLE", 0)
    monkeypatch.setattr(TrainedModel, "_announce", lambda self, *, is_last: None)
    cast, *others, others_weights = trained()
    assert len(kept) == len(cast) > 8
    assert kept.count(False) == 4  # once for each step of the optimizer
    assert not any(cast)
    assert results == others
    assert all(torch.equal(*pair) for pair in zip(weights, others_weights, strict=True))


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_computes_on_shards_what_torchs_own_does(
    alone: None, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    compute: Any = adam.adam
    computed_on: list[set[bool]] = []

    def recorded(*lists: list[torch.Tensor], **options: Any) -> None:
        computed_on.append({isinstance(tensor, DTensor) for tensors in lists for tensor in tensors})
        compute(*lists, **options)

    def trained(optimizer_class: type[torch.optim.AdamW]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        module = torch.nn.Linear(6, 4)
        fully_shard(module)
        optimizer = optimizer_class(module.parameters(), lr=0.1, weight_decay=0.1, fused=fused)
        for scale in (1.0, 2.0, 3.0):
            module(scale * torch.ones(2, 6)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return module, optimizer

    monkeypatch.setattr(adam, "adam", recorded)
    module, optimizer = trained(ShardAdamW)
    assert computed_on == [{False}] * 3
    like, torchs_own = trained(torch.optim.AdamW)
    assert all(True in kinds for kinds in computed_on[3:])
    mine: list[Any] = list(module.parameters())
    theirs: list[Any] = list(like.parameters())
    for parameter, same in zip(mine, theirs, strict=True):
        assert torch.equal(parameter.to_local(), same.to_local())
        states, those = optimizer.state[parameter], torchs_own.state[same]
        assert {name: type(value) for name, value in states.items()} == {n: type(value) for n, value in those.items()}
        assert isinstance(states["exp_avg"], DTensor)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_scales_gradients_down_by_the_factor_given(alone: None, fused: bool) -> None:
    def trained(*factors: float) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = torch.nn.Linear(6, 4)
        fully_shard(module)
        # Adam's steps are of the same size however large gradients are, but for eps.
        optimizer = ShardAdamW(module.parameters(), lr=0.1, eps=10.0, weight_decay=0.0, fused=fused)
        for factor in factors:
            module(torch.ones(2, 6)).square().sum().backward()
            optimizer.scaled_step(torch.tensor(factor))
            optimizer.zero_grad()
        parameters: list[Any] = list(module.parameters())
        return [parameter.detach().to_local() for parameter in parameters]

    def trained_on_scaled_losses(*factors: float) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = torch.nn.Linear(6, 4)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, eps=10.0, weight_decay=0.0)
        for factor in factors:
            (factor * module(torch.ones(2, 6)).square().sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in module.parameters()]

    torch.testing.assert_close(trained(1.0, 0.25, 0.5), trained_on_scaled_losses(1.0, 0.25, 0.5))
    assert not torch.allclose(trained(0.25)[0], trained(1.0)[0])


@pytest.mark.parametrize("kept_whole", [0, KEPT_WHOLE])
def test_generation_leaves_the_sharded_model_as_training_has_it(
    alone: None, monkeypatch: pytest.MonkeyPatch, kept_whole: int
) -> None:
    monkeypatch.setattr(training, "KEPT_WHOLE", kept_whole)
    module = PolicyModel(load_language_model("tiny"), 1.0, torch.float32, compiled=False)
    model = TrainedModel(module, build_workload({"sharding": "shard"}), torch.device("cpu"), 0, 1e-5)
    pack = model._pack(SequenceBatch.build([[1]], [[2, 3]]))

    def whole_after_forward() -> set[str]:
        """Parameters that are not sharded between a forward pass and its backward pass."""
        inputs, positions, targets = pack.inputs, pack.predict_positions, pack.targets
        loss, _ = model.module(inputs, positions, targets, lambda found, entropy, rows: LossSums(found.sum(), {}))
        whole = {name for name, one in model.module.named_parameters() if not isinstance(one, DTensor)}
        loss.backward()
        return whole

    before = whole_after_forward()
    assert any("embed_tokens" in name for name in before)
    assert any("layers" in name for name in before) == (kept_whole > 0)
    with unsharded(model.module):
        assert not any(isinstance(one, DTensor) for one in model.module.parameters())
    assert all(isinstance(one, DTensor) for one in model.module.parameters())
    assert whole_after_forward() == before


def test_parameter_counts_are_the_models() -> None:
    critic = ValueModel(load_language_model("tiny"))
    assert sum(part.numel() for part in policy(1.0).module.parameters()) == PRESETS["tiny"].parameters
    assert sum(part.numel() for part in critic.parameters()) == PRESETS["tiny"].critic_parameters


@settings(deadline=None, max_examples=5)
@given(
    st.sampled_from(["qwen2", "qwen3", "llama", "mistral"]),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([4, 8, 16]),
)
def test_parameter_counts_of_any_shape(kind: str, tied: bool, kv_heads: int, head_dim: int) -> None:
    import transformers

    shape = ModelShape(kind, 32, 48, 2, 4, kv_heads, 40, tied, head_dim=head_dim)
    config = transformers.AutoConfig.for_model(kind, **shape.config())
    model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    assert sum(part.numel() for part in model.parameters()) == shape.parameters


def test_public_parameter_counts() -> None:
    # As the models' cards give them, of which one says 7.61 B where it is 7.616.
    billions = [round(PRESETS[name].parameters / 1e9, 2) for name in list(PRESETS)[1:]]
    assert billions == [0.49, 1.54, 7.62, 8.03]


def test_model_shapes(tmp_path: Path) -> None:
    language_model: Any = policy(1.0).module.language_model
    language_model.save_pretrained(tmp_path)
    saved = model_shape(str(tmp_path))
    assert saved is not None
    assert saved.parameters == PRESETS["tiny"].parameters
    for wrong in ("tinny", str(tmp_path / "none"), "a/b/c"):
        with pytest.raises(UsageError, match="unknown model"):
            model_shape(wrong)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="not the config of"):
        model_shape(str(tmp_path))
