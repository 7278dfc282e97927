"""Packed sequences: attention, log-probabilities in chunks, and weights that follow from the seed alone."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from placebench.errors import LaunchError, UsageError
from placebench.ppo import token_log_probs as chunks
from placebench.ppo.attention import PACKED, packed_attention, register
from placebench.ppo.batch import SequenceBatch
from placebench.ppo.losses import LossSums
from placebench.ppo.models import PolicyModel, load_language_model, model_config
from placebench.ppo.packing import pack
from placebench.ppo.passes import log_probs
from placebench.ppo.token_log_probs import token_log_probs, token_loss
from placebench.ppo.training import SequenceModel
from placebench.spec.workload_reading import build_workload

CPU = torch.device("cpu")


def batch_of(lengths: list[tuple[int, int]], words: int = 60) -> SequenceBatch:
    random = np.random.default_rng(0)
    prompts, responses = zip(*lengths, strict=True)
    return SequenceBatch.build(
        [random.integers(1, words, length).tolist() for length in prompts],
        [random.integers(1, words, length).tolist() for length in responses],
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=6))
def test_a_pack_predicts_every_response_token_from_the_one_before(lengths: list[tuple[int, int]]) -> None:
    batch = batch_of(lengths)
    packed = pack(batch, 11, CPU, torch.float32)
    tokens, positions = packed.inputs["input_ids"][0], packed.inputs["position_ids"][0]
    assert torch.equal(tokens, torch.from_numpy(batch.tokens).long())
    assert torch.equal(tokens[packed.predict_positions + 1], packed.targets)
    assert len(packed.targets) == batch.response_tokens
    starts = packed.inputs["cu_seq_lens_q"].tolist()
    for start, end in pairwise(starts):
        assert positions[start:end].tolist() == list(range(end - start))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_each_sequence_attends_to_itself_alone(kv_heads: int, window: int | None) -> None:
    torch.manual_seed(0)
    packed = pack(batch_of([(2, 3), (1, 1), (4, 2)]), 11, CPU, torch.float32).inputs
    query, key, value = torch.randn(1, 4, 13, 8), torch.randn(1, kv_heads, 13, 8), torch.randn(1, kv_heads, 13, 8)
    arguments: dict[str, Any] = {name: packed[name] for name in ("cu_seq_lens_q", "max_length_q", "padded_positions")}
    together, _ = packed_attention(
        torch.nn.Identity(), query, key, value, None, **arguments, sliding_window=window, scaling=0.3
    )
    for start, end in ((0, 5), (5, 7), (7, 13)):
        q, k, v = (tensor[:, :, start:end] for tensor in (query, key, value))
        steps = torch.arange(end - start)
        behind = steps[:, None] - steps
        mask = (behind >= 0) & (behind < (window or 99))
        alone = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(together[:, start:end], alone.transpose(1, 2))


def test_attention_computes_in_the_type_of_its_values() -> None:
    torch.manual_seed(0)
    packed = pack(batch_of([(2, 3), (1, 1)]), 7, CPU, torch.bfloat16).inputs
    arguments: dict[str, Any] = {name: packed[name] for name in ("cu_seq_lens_q", "max_length_q", "padded_positions")}
    # As autocast and rotary embeddings leave them.
    query, key, value = torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 7, 8).bfloat16()
    mixed, _ = packed_attention(torch.nn.Identity(), query, key, value, None, **arguments)
    plain, _ = packed_attention(torch.nn.Identity(), query.bfloat16(), key.bfloat16(), value, None, **arguments)
    assert mixed.dtype is torch.bfloat16
    assert torch.equal(mixed, plain)


def test_an_attention_option_that_is_not_computed_is_refused() -> None:
    nothing = torch.zeros(1, 1, 1, 1)
    with pytest.raises(LaunchError, match="softcap"):
        packed_attention(
            torch.nn.Identity(), nothing, nothing, nothing, None, cu_seq_lens_q=nothing, max_length_q=1, softcap=3.0
        )


def plain_log_probs(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    log_probs = torch.log_softmax(hidden @ weight.t() / temperature, -1)
    return log_probs.gather(1, targets[:, None]).squeeze(1), -(log_probs.exp() * log_probs).sum(-1)


def check_chunks(monkeypatch: pytest.MonkeyPatch, *, device: str, compiled: bool, coarse: bool = False) -> None:
    """Log-probabilities, a loss and its gradients, in chunks of several sizes and of the whole table.

    `coarse` is for products in bfloat16, which are as far off as these are.
    """
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(7, 16), torch.randn(24, 16), torch.randint(24, (7,))
    factors = torch.randn(2, 7)
    hidden, weight, targets, factors = (one.to(device) for one in (hidden, weight, targets, factors))

    def loss(log_probs: Tensor, entropy: Tensor, rows: slice) -> LossSums:
        of_log_probs, of_entropy = factors[:, rows]
        # Not linear: the gradient has to be that at the values.
        total = (of_log_probs * log_probs.square() + of_entropy * entropy.square()).sum()
        return LossSums(total, {"entropy": entropy.detach().sum()})

    def found(in_chunks: bool) -> list[Any]:
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if in_chunks:
            exact = torch.bfloat16 if coarse else torch.float32
            log_probs = token_log_probs(h.to(exact), w, targets, 0.7, compiled=compiled)
            sums = token_loss(h.to(exact), w, targets, 0.7, loss, compiled=compiled)
        else:
            log_probs, entropy = plain_log_probs(h, w, targets, 0.7)
            sums = loss(log_probs, entropy, slice(None))
        # Of a sum in which the loss is a part.
        torch.autograd.backward(3 * sums.loss)
        return [log_probs.detach(), sums.loss.detach(), sums.metrics["entropy"], h.grad, w.grad]

    expected = found(False)
    for rows in (1, 3, 4, 100):
        monkeypatch.setattr(chunks, "TABLE_VALUES", rows * 24)
        for one, other in zip(found(True), expected, strict=True):
            error = float((one - other).norm() / other.norm())
            assert error < (2e-2 if coarse else 1e-5), f"{rows} rows: {error}"


# Compiling takes 20 s where nothing is kept of it.
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_chunks_give_values_and_gradients_of_the_whole_table(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    check_chunks(monkeypatch, device="cpu", compiled=compiled)


def test_a_head_in_bfloat16_is_as_near_as_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    check_chunks(monkeypatch, device="cpu", compiled=False, coarse=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU on this host that torch can use")
@pytest.mark.parametrize("coarse", [False, True])
def test_chunks_on_a_gpu(monkeypatch: pytest.MonkeyPatch, coarse: bool) -> None:
    check_chunks(monkeypatch, device="cuda", compiled=True, coarse=coarse)


def test_chunks_are_as_large_as_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def loss(log_probs: Tensor, entropy: Tensor, rows: slice) -> LossSums:
        seen.append(len(log_probs))
        return LossSums(log_probs.sum(), {})

    monkeypatch.setattr(chunks, "TABLE_VALUES", 4 * 11)
    token_loss(torch.randn(9, 5), torch.randn(11, 5), torch.randint(11, (9,)), 1.0, loss)
    assert seen == [3, 3, 3]


def test_no_tokens_have_a_loss_of_nothing() -> None:
    hidden, weight = torch.randn(0, 5), torch.randn(11, 5, requires_grad=True)
    targets = torch.empty(0, dtype=torch.int64)
    sums = token_loss(hidden, weight, targets, 1.0, lambda one, other, _: LossSums((one + other).sum(), {}))
    torch.autograd.backward(sums.loss)
    assert not sums.loss
    assert weight.grad is not None
    assert not weight.grad.any()
    assert token_log_probs(hidden, weight, targets, 1.0).shape == (0,)


# Beside presets: heads of a width of their own, norms of heads, a window in some blocks or in all, a scaled embedding.
WINDOW = {"sliding_window": 3}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen2": {**WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": {"head_dim": 16},
    "mistral": WINDOW,
    "gemma3_text": {**WINDOW, "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "olmo3": WINDOW,
    "phi3": {"pad_token_id": 0},
    "smollm3": {"pad_token_id": 0},
}


@pytest.mark.parametrize("model", ["tiny", "llama", *ARCHITECTURES])
def test_packed_log_probs_are_those_of_transformers(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import transformers

    from placebench.spec.shapes import PRESETS, ModelShape

    monkeypatch.setitem(PRESETS, "llama", ModelShape("llama", 32, 48, 2, 4, 2, 64, True))
    if model in ARCHITECTURES:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        transformers.AutoConfig.for_model(model, **sizes, **heads, **ARCHITECTURES[model]).save_pretrained(tmp_path)
        random: Any = transformers.AutoModelForCausalLM
        random.from_config(transformers.AutoConfig.from_pretrained(tmp_path)).save_pretrained(tmp_path)
        model = str(tmp_path)
    module = PolicyModel(load_language_model(model), 0.7, torch.float32, compiled=False)
    trained = SequenceModel(module.requires_grad_(False), build_workload({}), CPU, 3)
    batch = batch_of([(3, 4), (5, 2), (7, 6)])
    found = trained.per_token(batch, log_probs)
    auto_model: Any = transformers.AutoModelForCausalLM
    plain = auto_model.from_config(model_config(model), dtype=torch.float32)
    plain.load_state_dict(module.language_model.state_dict())
    expected = []
    for tokens, prompt in zip(batch.sequence_tokens(), batch.prompt_lengths, strict=True):
        row = torch.from_numpy(tokens).long()
        with torch.no_grad():
            table = torch.log_softmax(plain(row[None]).logits[0] / 0.7, -1)
        expected += [float(table[at - 1, row[at]]) for at in range(prompt, len(row))]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_weights_follow_from_the_seed_alone() -> None:
    def weights(seed: int) -> Tensor:
        module = PolicyModel(load_language_model("tiny"), 1.0, torch.float32, compiled=False)
        SequenceModel(module.requires_grad_(False), build_workload({}), CPU, seed)
        assert not any(buffer.is_meta for buffer in module.buffers())
        return torch.cat([parameter.flatten() for parameter in module.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_head_that_is_no_plain_product_is_refused(tmp_path: Any) -> None:
    import transformers

    register()
    config: Any = transformers.AutoConfig.for_model("cohere", hidden_size=8, num_hidden_layers=1, logit_scale=0.1)
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="logit_scale is not supported"):
        model_config(str(tmp_path))
    interface: Any = transformers.AttentionInterface
    assert PACKED in interface()


@pytest.mark.parametrize(("statistics", "size"), [(chunks._statistics, 5.0), (chunks._shifted_statistics, 100.0)])
def test_statistics_are_those_of_double_precision(statistics: Any, size: float) -> None:
    torch.manual_seed(0)
    logits, targets = size * torch.randn(64, 300), torch.randint(300, (64,))
    exact = torch.log_softmax(logits.double(), -1)
    expected = (
        exact.gather(-1, targets[:, None]).squeeze(-1),
        logits.double().logsumexp(-1),
        -(exact.exp() * exact).sum(-1),
    )
    for found, wanted in zip(statistics(logits, targets, 1.0), expected, strict=True):
        assert float((found - wanted).abs().max()) < 1e-4
    assert float(statistics(logits, targets, 1.0)[2].min()) > -1e-4
