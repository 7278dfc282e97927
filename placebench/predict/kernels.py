"""Seconds of an engine's kernels, by the rates of the data sheet; calibration scales each part to what was measured."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from placebench.predict.kernel_tables import engine_tables
from placebench.predict.peaks import DevicePeak
from placebench.spec.shapes import ModelShape

Seconds = NDArray[np.float64]
# How much further than reading weights from its peak is computing with few rows: three models with 8 to 256 sequences
# on an H200 (runs/reference/calibration/decode).
COMPUTING = 1.27
# What a sum over an engine's devices takes beside what is sent, of what a block's short kernels take: 5 of 33 µs, by
# AIConfigurator 0.12's tables of H100, H200 and B200, engines of two and four devices, 8 to 256 sequences.
SUM = 0.15


class EngineKernels(Protocol):
    """Where the seconds of generation's kernels come from."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts of a token step, each scaled by itself as it is calibrated."""

    def decode(self, sequences: float, context: float) -> Seconds:
        """Seconds of each part of one token step of an engine, shape (len(parts),).

        Args:
            sequences: that it generates at a time.
            context: mean number of tokens that a new one attends to.
        """

    def prefill(self, tokens: float, length: float) -> float:
        """Seconds of an engine's pass over `tokens` of prompts of `length` tokens each."""


@dataclass(frozen=True)
class Roofline:
    """Kernels as if each were bound by memory or by computing alone.

    A token step reads the weights and every sequence's keys and values once, and does 2 operations for each weight and
    sequence (Pope et al. 2022, arXiv:2211.05102, section 3), these further below their peak than the reading. Its
    sampler goes over a float32 table of a row a sequence and a column a word. Beside these stand the kernels that are
    too short to be bound by either, so many a block.
    """

    shape: ModelShape
    peak: DevicePeak
    shared_by: int = 1
    """Devices that share the engine."""
    value_bytes: int = 2
    """Of a weight, key or value."""

    parts = ("weights", "cache", "sampler", "short")

    def decode(self, sequences: float, context: float) -> Seconds:
        """See `EngineKernels.decode`."""
        shape, rate = self.shape, self.peak.bandwidth
        looked_up = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
        read = shape.parameters - looked_up
        computing = COMPUTING * 2 * read * sequences / self.peak.flops
        weights = max(self.value_bytes * read / rate, computing) / self.shared_by
        cache = 2 * self.value_bytes * shape.num_hidden_layers * shape.kv_width(self.shared_by) * context * sequences
        sampler = 4 * shape.vocab_size * sequences
        # Devices that share an engine add their results up behind attention and feed-forward of every block.
        sums = 2 * shape.num_hidden_layers if self.shared_by > 1 else 0
        sent = 2 * (1 - 1 / self.shared_by) * self.value_bytes * shape.hidden_size * sequences
        short = 1e-6 * (shape.num_hidden_layers + SUM * sums) + 0.1 * sums * sent / self.peak.link_bandwidth
        return np.array([weights, cache / rate, sampler / rate, short])

    def prefill(self, tokens: float, length: float) -> float:
        """See `EngineKernels.prefill`."""
        shape = self.shape
        blocks = shape.backbone_parameters - shape.vocab_size * shape.hidden_size
        attention = 2 * shape.num_hidden_layers * shape.attention_width * length
        return tokens * (2 * blocks + attention) / self.peak.flops / self.shared_by


def engine_kernels(shape: ModelShape, device: str, peak: DevicePeak, shared_by: int) -> EngineKernels:
    """Where the kernels of an engine's generation come from: measured tables where there are any, else the roofline.

    Args:
        shape: of the model.
        device: product name.
        peak: of the device.
        shared_by: devices that share the engine.
    """
    return engine_tables(shape, device, shared_by) or Roofline(shape, peak, shared_by)
