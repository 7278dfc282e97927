"""Of what the seconds of a phase consist, at the rates of the data sheet: parts, each scaled as it was measured.

A phase is units of work that are alike: token steps, or micro-batches and steps of the optimizer. A unit takes as long
as its kernels, or as long as the host takes to queue them, whichever is more; beside its units a phase takes what
stands still around them:

    seconds = Σ units · max(kernels, host) + exposed collectives + beyond

Letters as in `memory.estimate`: N parameters of which B are in the blocks' matrices, L blocks, heads that are a wide
together, width h, feed-forward width f, V words, b bytes of a value, T tokens, of which R are of responses.

    gemm        2·B·T + 2·h·V·R operations of a forward pass, three times these where it goes back, too
    attention   2·L·a·length·T operations, half of the products of all pairs because it is causal; likewise
    memory      bytes that norms, activations and the head write and read: b·T·L·(12·h + 5·f) + 8·V·R; likewise
    weights     bytes that a micro-batch's casts and gradients move: 6·N, of an update 20·N
    optimizer   28·N bytes a step of the optimizer, its states and the float32 weights; / ranks when sharded
    collectives FSDP2 gathers 2·N bytes in a micro-batch's forward pass, in an update once more and reduces 4·N, of
                which each rank sends (n - 1)/n; replicas average 4·N once a step, sent twice
    ranks       that wait for each other in these, once a block and micro-batch, replicas once a block and step

With checkpointed activations an update's blocks go forward twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from placebench.predict.kernels import EngineKernels
from placebench.predict.peaks import DevicePeak
from placebench.predict.work import RankWork, weight_bytes
from placebench.spec.phases import Activity

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Factor:
    """By what a part is scaled before anything was measured: a log-normal belief."""

    median: float
    spread: float
    """Standard deviation of its logarithm."""


# What is believed of every part before it is measured, by the benchmark of an H100; what the host takes for
# micro-batches and steps of the optimizer, and short kernels of generation, by several sizes on H200s
# (runs/reference/calibration). Kernels of training reach some two thirds of the peak, those that move memory most of
# its rate. What a host takes is known to within a factor of two; what a sequence takes of a token step is from those of
# 64 and 256 sequences.
FACTORS: Mapping[Activity, Mapping[str, Factor]] = {
    Activity.GENERATE: {
        "weights": Factor(1.3, 0.1),
        "cache": Factor(1.5, 0.3),
        "sampler": Factor(18.0, 0.4),
        "short": Factor(33.0, 0.3),
        "tables": Factor(1.05, 0.1),
        "prefill": Factor(1.9, 0.2),
        "step": Factor(2.5e-3, 0.5),
        "sequence": Factor(1.1e-5, 0.7),
        "phase": Factor(0.03, 0.7),
    },
    Activity.FORWARD: {
        "gemm": Factor(1.5, 0.15),
        "attention": Factor(2.5, 0.3),
        "memory": Factor(1.2, 0.4),
        "weights": Factor(2.0, 0.5),
        "block": Factor(1.2e-3, 0.5),
        "micro-batch": Factor(3e-3, 0.7),
        "phase": Factor(1e-2, 0.7),
        "collective": Factor(0.4, 0.5),
        "ranks": Factor(5e-5, 1.5),
    },
    Activity.UPDATE: {
        "gemm": Factor(1.5, 0.15),
        "attention": Factor(2.5, 0.3),
        "memory": Factor(1.5, 0.4),
        "weights": Factor(1.6, 0.4),
        "optimizer": Factor(1.6, 0.4),
        "block": Factor(4.2e-3, 0.4),
        "update": Factor(6e-2, 0.6),
        "micro-batch": Factor(7e-3, 0.7),
        "phase": Factor(1e-2, 0.7),
        "collective": Factor(0.4, 0.5),
        "ranks": Factor(1e-4, 1.5),
    },
    Activity.ARITHMETIC: {"phase": Factor(2e-3, 1.0), "sequence": Factor(3e-5, 1.0)},
    Activity.SEND_WEIGHTS: {"phase": Factor(1e-2, 1.0), "sent": Factor(5.0, 1.0), "collective": Factor(2.0, 1.0)},
    Activity.HAND_OVER: {"phase": Factor(0.08, 1.0), "device": Factor(0.03, 1.0)},
}
# On CPU devices little is known of the rates themselves.
CPU_SPREAD = 1.0
_FUNCTION = FACTORS[Activity.ARITHMETIC]
# The factors of what the host's cores do.
_OF_CORES = frozenset({"step", "sequence", "phase", "block", "update", "micro-batch"})


@dataclass(frozen=True)
class PhaseParts:
    """The seconds of a phase, part by part, before they are scaled."""

    names: tuple[str, ...]
    """Of the factors that scale the parts, the columns of all arrays."""
    units: Array
    """How many units of each kind there are, shape (kinds,)."""
    kernels: Array
    """Seconds of one unit's kernels, shape (kinds, names)."""
    host: Array
    """Seconds that the host takes for one unit, likewise."""
    beyond: Array
    """Seconds beside the units, shape (names,)."""
    exposed: Array
    """Seconds of collectives that nothing hides, shape (names,)."""
    collective: Array = field(default_factory=lambda: np.zeros(1))
    """Seconds of all collectives of one unit, shape (kinds,); what of them is longer than its kernels shows."""

    def on_cores(self, times: float) -> "PhaseParts":
        """The same on cores that take so many times as long for what the host does."""
        if times == 1:
            return self
        columns = np.array([times if name in _OF_CORES else 1.0 for name in self.names])
        return replace(self, host=self.host * columns, beyond=self.beyond * columns)


@dataclass(frozen=True)
class Split:
    """The seconds of a phase once its parts are scaled."""

    kernels: float
    exposed: float
    total: float

    @property
    def host(self) -> float:
        """What it takes beyond kernels and collectives."""
        return max(0.0, self.total - self.kernels - self.exposed)


def split(parts: PhaseParts, factors: Array) -> Split:
    """Scale the parts, by factors of shape (names,)."""
    kernels, host = parts.kernels @ factors, parts.host @ factors
    shown = np.maximum(0.0, parts.collective - np.maximum(kernels, host))
    exposed = float(parts.exposed @ factors + parts.units @ shown)
    whole = float(parts.units @ np.maximum(kernels, host) + parts.beyond @ factors) + exposed
    return Split(float(parts.units @ kernels), exposed, whole)


def factors_of(activity: Activity, *, is_function: bool) -> Mapping[str, Factor]:
    """What is believed of a phase's parts; a reward that is a function is arithmetic."""
    return _FUNCTION if is_function else FACTORS[activity]


def parts_of(work: RankWork, peak: DevicePeak, engine: EngineKernels, *, is_function: bool = False) -> PhaseParts:
    """The parts of a phase on devices of a peak; those of generation are `engine`'s."""
    activity = work.phase.activity
    names = tuple(factors_of(activity, is_function=is_function))
    table = _Table(names)
    if is_function or activity is Activity.ARITHMETIC:
        return table.parts(beyond={"phase": 1.0, "sequence": work.sequences * max(1, work.devices)})
    if activity is Activity.GENERATE:
        return _generation(work, engine, table)
    if activity in (Activity.FORWARD, Activity.UPDATE):
        return _passes(work, peak, table)
    size = weight_bytes(work)
    if activity is Activity.SEND_WEIGHTS:
        # One rank sends, by its own card.
        rate = peak.link_bandwidth if _joined(work, peak) >= work.devices else peak.network_bandwidth
        exposed = size * (work.devices > 1) / rate
        return table.parts(beyond={"phase": 1.0, "sent": size / peak.bandwidth}, exposed={"collective": exposed})
    # Devices of a node give their memory back and take it one after the other: 0.25 s on two, 0.50 s on four H200s.
    return table.parts(beyond={"phase": 1.0, "device": work.devices / work.nodes})


class _Table:
    """Makes the arrays of parts by their names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def row(self, values: Mapping[str, float]) -> Array:
        return np.array([values.get(name, 0.0) for name in self._names])

    def parts(
        self,
        units: tuple[float, ...] = (),
        kernels: tuple[Mapping[str, float], ...] = (),
        host: tuple[Mapping[str, float], ...] = (),
        beyond: Mapping[str, float] | None = None,
        exposed: Mapping[str, float] | None = None,
        collective: tuple[float, ...] = (),
    ) -> PhaseParts:
        shape = (len(units), len(self._names))
        return PhaseParts(
            self._names,
            np.array(units),
            np.array([self.row(one) for one in kernels]).reshape(shape),
            np.array([self.row(one) for one in host]).reshape(shape),
            self.row(beyond or {}),
            self.row(exposed or {}),
            np.array(collective or [0.0] * len(units)),
        )


def _generation(work: RankWork, engine: EngineKernels, table: _Table) -> PhaseParts:
    """Token steps, and a unit for the prompts."""
    stretches = work.decoding
    kernels = [
        dict(zip(engine.parts, engine.decode(one.sequences, one.context).tolist(), strict=True)) for one in stretches
    ]
    host = [{"step": 1.0, "sequence": one.sequences} for one in stretches]
    return table.parts(
        (*(one.steps for one in stretches), 1.0),
        (*kernels, {"prefill": engine.prefill(work.prompts, work.prompt)}),
        (*host, {"step": 1.0}),
        {"phase": 1.0},
    )


def _passes(work: RankWork, peak: DevicePeak, table: _Table) -> PhaseParts:
    """Micro-batches, all alike, and the optimizer's steps."""
    shape, units, back = work.shape, max(1.0, work.micro_batches), 3 if work.phase.trains else 1
    tokens, responses = work.tokens / units, work.responses / units
    of_blocks = back + work.recomputes
    words = shape.vocab_size if work.has_head else 1
    blocks = shape.backbone_parameters - shape.vocab_size * shape.hidden_size
    gemm = 2 * (of_blocks * blocks * tokens + back * shape.hidden_size * words * responses)
    attention = 2 * shape.num_hidden_layers * shape.attention_width * work.length * tokens
    moved = 2 * tokens * shape.num_hidden_layers * (12 * shape.hidden_size + 5 * shape.intermediate_size)
    size = weight_bytes(work)
    casts = size * (10 if work.phase.trains else 3 if work.is_sharded else 0)
    kernels = {
        "gemm": gemm / peak.flops,
        "attention": of_blocks * attention / peak.flops,
        "memory": (of_blocks * moved + back * 8 * words * responses) / peak.bandwidth,
        "weights": casts / peak.bandwidth,
    }
    collective, waits = 0.0, 0.0
    if work.devices > 1:
        shared = (work.devices - 1) / work.devices / _link(work, peak)
        sharded = size * (4 if work.phase.trains else 1)
        collective = shared * (sharded if work.is_sharded else 4 * size * work.updates / units)
        waits = shape.num_hidden_layers * (units if work.is_sharded else work.updates)
    state = 14 * size / (work.devices if work.is_sharded else 1) / peak.bandwidth
    steps = [({"optimizer": state}, float(work.updates))] if work.updates else []
    return table.parts(
        (units, *(count for _, count in steps)),
        (kernels, *(one for one, _ in steps)),
        ({"block": shape.num_hidden_layers * of_blocks / back}, *({"update": 1.0} for _ in steps)),
        {"phase": 1.0, "micro-batch": units},
        {"collective": units * collective, "ranks": waits},
        (collective, *(0.0 for _ in steps)),
    )


def _link(work: RankWork, peak: DevicePeak) -> float:
    """Bytes/s at which the ranks of a collective send, each to the next one of a ring.

    There is a ring for each network card of a node, and each leaves the node by another card; all of them together are
    as fast as these cards.
    """
    joined = _joined(work, peak)
    if joined >= work.devices:
        return peak.link_bandwidth
    return min(peak.link_bandwidth, joined * peak.network_bandwidth)


def _joined(work: RankWork, peak: DevicePeak) -> float:
    """Devices that reach each other without the network: of a node, or of several that links join."""
    return max(work.devices / work.nodes, min(work.devices, peak.link_devices))
