"""Sequences packed back to back, without padding, as a model's inputs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placebench.ppo.attention import uses_flash
from placebench.ppo.batch import SequenceBatch


@dataclass(frozen=True)
class Pack:
    """One micro-batch on a device."""

    inputs: Mapping[str, Any]
    """Keyword arguments of the decoder: tokens int64 [1, tokens], each sequence's own positions, and where sequences
    begin, see `attention.packed_attention`."""
    predict_positions: Tensor
    """Positions whose output predicts a response token, int64 [response tokens]."""
    targets: Tensor
    """The tokens predicted there, int64 [response tokens]."""
    fields: Mapping[str, Tensor]
    """The batch's values per response token, [response tokens] each."""


def pack(batch: SequenceBatch, longest: int, device: torch.device, precision: torch.dtype) -> Pack:
    """Lay a micro-batch out on a device.

    Args:
        batch: its sequences.
        longest: tokens of the longest sequence there can be, the same in every micro-batch so that a compiled model
            sees one number.
        device: where the model is.
        precision: in which attention is computed.
    """
    lengths = batch.lengths
    starts = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    is_response = positions >= np.repeat(batch.prompt_lengths, lengths)
    response_positions = np.flatnonzero(is_response)
    flash = uses_flash(device, precision)
    longest = longest if flash else int(lengths.max())

    def on_device(values: Any) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        if device.type == "cuda":
            # A copy from other memory waits for all that the device has still to do.
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True)

    inputs: dict[str, Any] = {
        "input_ids": on_device(batch.tokens.astype(np.int64))[None],
        "position_ids": on_device(positions)[None],
        "cu_seq_lens_q": on_device(starts.astype(np.int32)),
        "max_length_q": longest,
    }
    if not flash:
        inputs["padded_positions"] = on_device(positions + np.repeat(np.arange(len(batch)) * longest, lengths))
    return Pack(
        inputs,
        # The output at a position predicts the token behind it.
        on_device(response_positions - 1),
        on_device(batch.tokens[is_response].astype(np.int64)),
        {name: on_device(values) for name, values in batch.per_token.items()},
    )
