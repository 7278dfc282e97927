"""Causal attention among packed sequences, as one of transformers' attention implementations.

The sequences of a micro-batch lie back to back in one row without padding; each attends to itself alone. On a GPU in
half precision that is one variable-length flash attention kernel. Elsewhere only queries, keys and values are laid out
padded, for the time of the attention.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from placebench.errors import LaunchError

# The name under which transformers knows it.
PACKED = "placebench_packed"
# What transformers uses while it generates with a cache of its own.
_CACHED = "sdpa"
# Options of attention in some architectures that this one does not compute.
_UNKNOWN_OPTIONS = ("softcap", "s_aux", "position_bias")


def register() -> None:
    """Make `PACKED` known to transformers; again does no harm."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, packed_attention)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    padded_positions: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of each packed sequence to itself.

    Args:
        module: the layer's attention; not looked at.
        query: [1, heads, tokens, head width].
        key: [1, key-value heads, tokens, head width].
        value: like `key`; its type is that of the computing.
        attention_mask: None: `cu_seq_lens_q` says all.
        cu_seq_lens_q: where sequences begin, and the end, int32 [sequences + 1]; None from blocks that do not pass it
            on.
        max_length_q: tokens of the longest sequence, or more.
        padded_positions: int64 [tokens], each token's place in [sequences · max_length_q]; None where the flash kernel
            runs.
        scaling: factor of the products; 1/√(head width) when None.
        sliding_window: keys that a query sees, itself included; all before it when None.
        options: what else transformers hands to attention.

    Returns:
        [1, tokens, heads, head width], and no weights.

    Raises:
        LaunchError: the architecture needs an option that is not computed here, or does not say where sequences begin.
    """
    if cu_seq_lens_q is None:
        raise LaunchError("this model's blocks do not tell attention where sequences begin; choose another model")
    for name in _UNKNOWN_OPTIONS:
        if options.get(name) is not None:
            raise LaunchError(f"this model's attention uses {name}, which training here does not compute")
    window = sliding_window if sliding_window is not None and sliding_window < max_length_q else None
    # Under autocast the rotary embedding leaves queries and keys in float32, which the flash kernel does not take.
    query, key, value = (tensor.squeeze(0).transpose(0, 1).to(value.dtype) for tensor in (query, key, value))
    if padded_positions is None:
        result = _flash(query, key, value, cu_seq_lens_q, max_length_q, scaling, window)
    else:
        result = _padded(query, key, value, len(cu_seq_lens_q) - 1, max_length_q, padded_positions, scaling, window)
    return result.unsqueeze(0), None


def uses_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the variable-length kernel runs there: on GPUs, in half precision."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, scaling: float | None, window: int | None
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    # Since torch 2.13 grouped heads must be asked for; before, they are taken as they come.
    grouped: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
    before = -1 if window is None else window - 1
    result = varlen_attn(
        query, key, value, starts, starts, longest, longest, scale=scaling, window_size=(before, 0), **grouped
    )
    return cast(Tensor, result)


def _padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequences: int,
    longest: int,
    positions: Tensor,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    queries, keys, values = (
        tensor.new_zeros(sequences * longest, *tensor.shape[1:])
        .index_copy(0, positions, tensor)
        .view(sequences, longest, *tensor.shape[1:])
        .transpose(1, 2)
        for tensor in (query, key, value)
    )
    mask = None
    if window is not None:
        steps = torch.arange(longest, device=query.device)
        behind = steps[:, None] - steps
        mask = (behind >= 0) & (behind < window)
    result = scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return result.transpose(1, 2).flatten(0, 1).index_select(0, positions)


@contextmanager
def cached_attention(language_model: Any) -> Iterator[None]:
    """Let the model attend to a key-value cache and padded sequences inside, as transformers does it."""
    language_model.set_attn_implementation(_CACHED)
    try:
        yield
    finally:
        language_model.set_attn_implementation(PACKED)
