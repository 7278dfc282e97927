"""Batches, models and the torch rollout, in this process."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor

from placebench.checks import unusable_workload
from placebench.errors import LaunchError, UsageError
from placebench.models import PRESETS, ModelShape, model_shape
from placebench.ppo.attention import cached_attention
from placebench.ppo.batch import SequenceBatch, balanced_shares, merge_shares, micro_batches, rank_indices
from placebench.ppo.data import open_prompts
from placebench.ppo.generation import Generation
from placebench.ppo.losses import LossSums
from placebench.ppo.models import PolicyModel, ValueModel, load_critic_model, load_language_model
from placebench.ppo.packing import Pack
from placebench.ppo.rollout.base import SamplingSettings
from placebench.ppo.rollout.torch import TorchRollout, unsharded
from placebench.ppo.tokenizer import CharacterTokenizer
from placebench.ppo.training import SequenceModel, TrainedModel
from placebench.workload import Data, Workload, build_workload

LENGTHS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=12)


def batch_of(lengths: list[tuple[int, int]]) -> SequenceBatch:
    """Every token is its position in the batch, so that any mix-up shows."""
    counter = iter(range(10_000))
    prompts = [[next(counter) for _ in range(prompt)] for prompt, _ in lengths]
    responses = [[next(counter) for _ in range(response)] for _, response in lengths]
    return SequenceBatch.build(prompts, responses, mark=[float(token) for part in responses for token in part])


@given(LENGTHS, st.integers(1, 4), st.integers(1, 3))
def test_ranks_get_everything_once_and_merge_back(lengths: list[tuple[int, int]], ranks: int, parts: int) -> None:
    lengths = lengths * ranks * parts
    batch = batch_of(lengths)
    mini_batch_size = len(lengths) // parts
    for shares in (rank_indices(len(batch), ranks), balanced_shares(batch.lengths, mini_batch_size, ranks)):
        shards = [batch.select(share) for share in shares]
        assert len({len(shard) for shard in shards}) == 1
        merged = merge_shares(shards, shares)
        for name in ("tokens", "prompt_lengths", "response_lengths"):
            np.testing.assert_array_equal(getattr(merged, name), getattr(batch, name))
        np.testing.assert_array_equal(merged.per_token["mark"], batch.per_token["mark"])


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8))
def test_no_more_ranks_than_needed_work_on_one_prompt(groups: int, group_size: int, ranks: int) -> None:
    shares = rank_indices(groups * group_size, ranks)
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1
    assert np.concatenate(shares).tolist() == list(range(groups * group_size))
    # Each border between two ranks cuts one group at most.
    assert sum(len(set(share // group_size)) for share in shares) <= groups + ranks - 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 4), st.integers(1, 3))
def test_ranks_share_every_mini_batch_in_equal_parts(lengths: list[int], ranks: int, parts: int) -> None:
    array = np.asarray(lengths * ranks * parts, np.int32)
    mini_batch_size = len(array) // parts
    shares = balanced_shares(array, mini_batch_size, ranks)
    for number in range(parts):
        first, room = number * mini_batch_size, mini_batch_size // ranks
        taken = [share[number * room : (number + 1) * room] for share in shares]
        assert sorted(np.concatenate(taken)) == list(range(first, first + mini_batch_size))
        loads = [int(array[indices].sum()) for indices in taken]
        assert max(loads) - min(loads) <= int(array.max())


@given(LENGTHS)
def test_padding_keeps_every_value(lengths: list[tuple[int, int]]) -> None:
    batch = batch_of(lengths)
    np.testing.assert_array_equal(batch.padded(batch.per_token["mark"])[batch.response_mask()], batch.per_token["mark"])
    assert batch.response_mask().sum() == batch.response_tokens


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 100), st.integers(1, 40))
def test_micro_batches_respect_the_budget(lengths: list[int], budget: int, at_least: int) -> None:
    array = np.asarray(lengths, np.int32)
    groups = micro_batches(array, budget, at_least)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert len(groups) >= min(at_least, len(lengths))
    for group in groups:
        assert len(group) == 1 or array[group].sum() <= budget


def test_micro_batches_are_few_and_even() -> None:
    groups = micro_batches(np.full(64, 1024, np.int32), 16384)
    assert [len(group) for group in groups] == [16] * 4
    uneven = np.asarray([900, 100, 500, 500, 700, 300], np.int32)
    assert [int(uneven[group].sum()) for group in micro_batches(uneven, 1000)] == [1000] * 3


def policy(temperature: float) -> SequenceModel:
    module = PolicyModel(load_language_model("tiny"), temperature, torch.float32, compiled=False)
    return SequenceModel(module.requires_grad_(False), build_workload({}), torch.device("cpu"), 0)


@pytest.fixture(scope="module")
def rollout() -> TorchRollout:
    return TorchRollout(policy(1.0).module.language_model)


PROMPTS = [[1, 11, 2, 17], [3, 11, 4, 17, 5, 6], [9], [8, 8]]


def sampling(**changes: Any) -> SamplingSettings:
    return replace(SamplingSettings(0.7, 1.0, ignore_eos=False, eos_token_id=0), **changes)


def test_a_response_does_not_depend_on_its_neighbours(rollout: TorchRollout) -> None:
    longest, seeds = [6, 3, 5, 6], [1, 2, 3, 4]
    together = rollout.generate(PROMPTS, longest, seeds, sampling())
    alone = [
        rollout.generate([prompt], [limit], [seed], sampling())[0]
        for prompt, limit, seed in zip(PROMPTS, longest, seeds, strict=True)
    ]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    for left, right in zip(together, alone, strict=True):
        np.testing.assert_allclose(left.log_probs, right.log_probs, atol=1e-5)


def test_log_probs_are_the_policys(rollout: TorchRollout) -> None:
    generated = rollout.generate(PROMPTS, [6] * 4, [1, 2, 3, 4], sampling(top_p=0.9))
    batch = SequenceBatch.build(PROMPTS, [one.tokens for one in generated])
    recomputed = policy(0.7).per_token(
        batch, lambda module, pack: module(pack.inputs, pack.predict_positions, pack.targets, False)[0]
    )
    np.testing.assert_allclose(recomputed, [v for one in generated for v in one.log_probs], atol=1e-5)


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
    longest = [1 + number % 6 for number in range(200)]
    fixed = rollout.generate([[1]] * 200, longest, list(range(200)), sampling(temperature=5.0, ignore_eos=True))
    assert [len(one.tokens) for one in fixed] == longest


def save_plain_model(folder: Path, kind: str, **settings: Any) -> Any:
    """A small language model of another architecture, saved; returns it, ready to be used."""
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = transformers.AutoConfig.for_model(kind, **sizes, **heads, **settings)
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return model.eval()


def test_a_critic_reads_all_of_the_actors_words() -> None:
    words = PRESETS["tiny"].vocab_size
    assert load_critic_model("tiny", words - 1).value_head.out_features == 1
    with pytest.raises(UsageError, match=f"critic_model tiny: .* {words} words, fewer than the actor's {words + 1}"):
        load_critic_model("tiny", words + 1)


@pytest.fixture
def alone() -> Iterator[None]:
    """This process as the only rank of a pool."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_model_that_is_trained_drops_nothing_out(tmp_path: Path, alone: None) -> None:
    plain = save_plain_model(tmp_path, "starcoder2", residual_dropout=0.5)
    module = PolicyModel(load_language_model(str(tmp_path)), 1.0, torch.float32, compiled=False)
    trained = TrainedModel(module, build_workload({}), torch.device("cpu"), 0, 1e-5)
    batch = SequenceBatch.build([[1, 2, 3]], [[4, 5, 6, 7]])
    found = trained.per_token(
        batch, lambda part, pack: part(pack.inputs, pack.predict_positions, pack.targets, False)[0]
    )
    with torch.no_grad():
        table = plain(torch.tensor([[1, 2, 3, 4, 5, 6, 7]])).logits.log_softmax(-1)[0]
    np.testing.assert_allclose(found, [float(table[2 + number, 4 + number]) for number in range(4)], atol=1e-5)


def test_an_output_head_with_a_bias_is_refused(tmp_path: Path) -> None:
    save_plain_model(tmp_path, "phi")
    reason = f"--model {tmp_path}: its output head has a bias, which is not supported; choose another model"
    with pytest.raises(UsageError, match=re.escape(reason)):
        load_language_model(str(tmp_path))
    assert reason in list(unusable_workload(build_workload({"model": str(tmp_path)})))


@pytest.mark.parametrize(
    ("kind", "settings", "blocks"),
    [
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "conv"),
        ("falcon_h1", {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64}, "hybrid"),
    ],
)
def test_blocks_that_carry_one_packed_sequence_into_the_next_are_refused(
    tmp_path: Path, kind: str, settings: dict[str, Any], blocks: str
) -> None:
    save_plain_model(tmp_path, kind, **settings)
    with pytest.raises(UsageError, match=rf"^--model .*: has {blocks} blocks, which are not supported; choose another"):
        load_language_model(str(tmp_path))
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_types": [blocks, "full_attention"]}))
    (reason,) = unusable_workload(build_workload({"model": str(tmp_path)}))
    assert reason == f"{config}: has {blocks} blocks, which are not supported; choose another model"


def test_blocks_that_are_not_where_they_are_looked_for_are_refused(tmp_path: Path) -> None:
    save_plain_model(tmp_path, "gpt_neox")
    with pytest.raises(UsageError, match=r"has no model\.layers and lm_head as Llama has them"):
        load_language_model(str(tmp_path))


def test_blocks_that_do_not_say_where_sequences_begin_are_refused(tmp_path: Path, alone: None) -> None:
    save_plain_model(tmp_path, "stablelm")
    module = PolicyModel(load_language_model(str(tmp_path)), 1.0, torch.float32, compiled=False)
    trained = TrainedModel(module, build_workload({}), torch.device("cpu"), 0, 1e-5)
    with pytest.raises(LaunchError, match="do not tell attention where sequences begin; choose another model"):
        trained.per_token(
            SequenceBatch.build([[1]], [[2]]),
            lambda part, pack: part(pack.inputs, pack.predict_positions, pack.targets, False)[0],
        )


def saved(folder: Path, **models: str) -> Workload:
    """The job of a model that is saved there with its tokenizer."""
    save_plain_model(folder, "llama")
    (folder / "tokenizer.json").write_text("{}")
    content = {"rollout": {"backend": "torch"}, "batch": {"max_prompt_length": 8}, "model": str(folder), **models}
    return build_workload(content)


def test_weights_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    workload = saved(tmp_path)
    assert list(unusable_workload(workload)) == []
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (reason,) = unusable_workload(workload)
    assert reason.startswith(f"--model {tmp_path}: cannot read model.safetensors: ")
    assert reason.endswith("; save the model again")


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    workload = saved(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.rename(tmp_path / "model-00001-of-00002.safetensors")
    shards = {
        "lm_head.weight": "model-00002-of-00002.safetensors",
        "model.norm.weight": "model-00001-of-00002.safetensors",
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (reason,) = unusable_workload(workload)
    assert reason.startswith(f"--model {tmp_path}: model-00002-of-00002.safetensors is missing, which model.safe")
    for file in tmp_path.glob("model*"):
        file.unlink()
    (reason,) = unusable_workload(workload)
    assert reason.startswith(f"--model {tmp_path}: no weights there, such as model.safetensors;")
    (reason,) = unusable_workload(workload.model_copy(update={"model": "tiny", "critic_model": str(tmp_path)}))
    assert reason.startswith(f"critic_model {tmp_path}: no weights there")
    (tmp_path / "pytorch_model.bin").touch()
    assert list(unusable_workload(workload)) == []


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("vocab_size", 80, "the embedding in model.safetensors is 64 x 32, and config.json has vocab_size 80 and"),
        ("layer_types", ["full_attention"], "config.json: num_hidden_layers is 2 and layer_types names 1; make them"),
    ],
)
def test_a_config_that_contradicts_itself_or_the_weights_is_refused(
    tmp_path: Path, key: str, value: object, reason: str
) -> None:
    workload = saved(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: value}))
    (found,) = unusable_workload(workload)
    assert reason in found
    if key == "vocab_size":
        with pytest.raises(UsageError, match="its weights are of other sizes than its config"):
            load_language_model(str(tmp_path))


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    workload = saved(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer_config.json")
    (reason,) = unusable_workload(workload)
    assert reason.startswith(f"--model {tmp_path}: no tokenizer there, such as tokenizer.json; ")
    assert list(unusable_workload(workload.model_copy(update={"model": "tiny", "critic_model": str(tmp_path)}))) == []


def test_a_tokenizer_that_knows_no_words_is_told() -> None:
    class NoWords(CharacterTokenizer):
        def encode(self, text: str) -> list[int]:
            return []

    workload = build_workload({})
    generation = Generation(workload, open_prompts(workload.data, 0, 16), NoWords())
    with pytest.raises(UsageError, match="the tokenizer of tiny gives no tokens for the prompt"):
        generation.arguments(1, generation.step_prompts(1), [0])


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

    def loss(part: torch.nn.Module, pack: Pack) -> LossSums:
        passes.append(len(pack.targets))
        values: torch.Tensor = part(pack.inputs, pack.predict_positions)
        return LossSums(values.sum(), {})

    # Micro-batches by themselves: both sequences in one, both in one, each in one.
    sequences = SequenceBatch.build([[1, 2]] * 6, [[3, 4], [3, 4], [3], [3], [3, 4, 5, 6], [3, 4]])
    model.update(sequences, [4, 2, 6], 2, loss)
    assert agreed == [[1, 2, 2]]
    assert passes == [4, 1, 1, 4, 2] * 2


def test_generation_leaves_the_sharded_root_as_training_has_it(alone: None) -> None:
    module = PolicyModel(load_language_model("tiny"), 1.0, torch.float32, compiled=False)
    model = TrainedModel(module, build_workload({"sharding": "shard"}), torch.device("cpu"), 0, 1e-5)
    pack = model._pack(SequenceBatch.build([[1]], [[2, 3]]))

    def whole_after_forward() -> set[str]:
        """Parameters that are not sharded between a forward pass and its backward pass."""
        log_probs, _ = model.module(pack.inputs, pack.predict_positions, pack.targets, False)
        whole = {name for name, one in model.module.named_parameters() if not isinstance(one, DTensor)}
        log_probs.sum().backward()
        return whole

    before = whole_after_forward()
    assert any("embed_tokens" in name for name in before)
    assert not any("layers" in name for name in before)
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
    # As the models' cards give them: 0.49 B, 1.54 B, 7.61 B and 8.03 B.
    billions = [round(PRESETS[name].parameters / 1e9, 2) for name in list(PRESETS)[1:]]
    assert billions == [0.49, 1.54, 7.62, 8.03]


def test_model_shapes(tmp_path: Path) -> None:
    language_model: Any = policy(1.0).module.language_model
    language_model.save_pretrained(tmp_path)
    saved = model_shape(str(tmp_path))
    assert saved is not None
    assert saved.parameters == PRESETS["tiny"].parameters
    assert model_shape("owner/name") is None
    for wrong in ("tinny", str(tmp_path / "none"), "a/b/c"):
        with pytest.raises(UsageError, match="unknown model"):
            model_shape(wrong)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="not the config of"):
        model_shape(str(tmp_path))


@given(st.integers(0, 60))
def test_solved_examples_fill_a_prompt(length: int) -> None:
    plain = open_prompts(Data(operand_max=9), 3, length).step_prompts(2, 20)
    filled = open_prompts(Data(operand_max=9, fill_prompts=True), 3, length).step_prompts(2, 20)
    for prompt, question in zip(filled, plain, strict=True):
        assert len(prompt.text) == max(length, len(question.text))
        assert prompt.text.endswith(question.text)
        assert prompt.answer == question.answer
        for example in prompt.text.split(",")[1:-1]:
            left, _, result = example.partition("=")
            assert sum(map(int, left.split("+"))) == int(result)
