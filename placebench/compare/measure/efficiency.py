"""How near a step came to what its devices can do: model FLOP utilization, memory bandwidth utilization.

For a model of N parameters, L layers and heads that are h wide together, and T, the mean length of a sequence over its
tokens:

    training     6·N + 12·L·h·T floating-point operations a token, times the epochs
    forward      2·N + 4·L·h·T
    decoding     weights' bytes · steps of each engine + bytes of a token's keys and values · tokens attended to

Attention is counted as if it were not causal, the output head as if every token had logits, and what activation
checkpointing computes anew is not counted (Chowdhery et al. 2022, arXiv:2204.02311, appendix B). A decoding step reads
all weights of an engine once, but for an embedding of which it only looks up rows; there are as many steps as the
longest response has tokens; the prompts' pass is in the seconds of gen and not in the bytes. Devices that share an
engine and are more than the heads of keys and values read copies of these. Divided by the phase's seconds, the devices
of its pool and their peak, these are MFU and MBU. A GPU at its limit of power lowers the clock of its SMs and with it
what it can do: MFU of training is also given of the peak at the mean clock that the pool had in the phase.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from placebench.compare.metrics import COMPUTING
from placebench.compare.read.run import Launch, Run
from placebench.predict.peaks import device_peak
from placebench.record.run_file import RunFile
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.phases import Phase
from placebench.spec.placement import Role
from placebench.spec.shapes import ModelShape

# What the job counts of a step, for the work to follow from it; logs of other jobs lack some of it.
_TOKENS, _LENGTH = "perf/total_num_tokens", "perf/attention_length"
_DECODING = ("perf/decode_steps", "perf/decode_context_tokens")
_PHASES = frozenset(phase.name for phase in COMPUTING)
_OF_CRITIC = frozenset(phase.name for phase in COMPUTING if phase.role == Role.CRITIC)


@dataclass(frozen=True)
class Work:
    """The part of a run's workload that its arithmetic follows from."""

    actor: ModelShape
    """Shape of actor and reference."""
    critic: ModelShape
    """Shape of the critic's decoder."""
    epochs: int
    """Passes of an update over the batch."""
    shared_by: int
    """Devices that share one engine."""
    value_bytes: int
    """Bytes of a weight, and of a key or value, in decoding."""
    phases: frozenset[str] = _PHASES
    """Phases whose work this is."""

    def flops(self, phase: Phase, length: float) -> float:
        """Operations a token of a phase over sequences of `length` tokens."""
        return phase.activity.passes * (self.epochs if phase.trains else 1) * self.forward_flops(phase.role, length)

    def forward_flops(self, role: str | None, length: float) -> float:
        """Operations a token of a forward pass of a role's model."""
        shape = self.critic if role == Role.CRITIC else self.actor
        parameters = shape.critic_parameters if role == Role.CRITIC else shape.parameters
        return 2 * parameters + 4 * shape.num_hidden_layers * shape.attention_width * length

    def decode_bytes(self, steps: float, context_tokens: float, devices: int) -> float:
        """Bytes that decoding reads on all devices of its pool."""
        looked_up = 0 if self.actor.tie_word_embeddings else self.actor.vocab_size * self.actor.hidden_size
        weights = self.value_bytes * (self.actor.parameters - looked_up) * steps * devices / self.shared_by
        # Devices of one engine may each read a head of their own, copies where there are fewer heads.
        width = self.shared_by * self.actor.kv_width(self.shared_by)
        return weights + 2 * self.value_bytes * self.actor.num_hidden_layers * width * context_tokens


def work_of(record: RunFile) -> Work | None:
    """What a run computes; None for float32, whose peak is another, and for models whose shape is not known."""
    workload, models = record.workload, record.models
    if models and record.job and (work := record.job.work):
        return Work(models.actor, models.critic, work.epochs, 1, value_bytes=2, phases=frozenset(work.phases))
    if workload.get("precision") != "bfloat16" or models is None:
        return None
    rollout, algorithm = workload.get("rollout", {}), workload.get("algorithm", {})
    shared_by = rollout.get("tensor_parallel_size", 1)
    phases = _PHASES - (_OF_CRITIC if algorithm.get("name") == "grpo" else set())
    return Work(models.actor, models.critic, algorithm.get("epochs", 1), shared_by, value_bytes=2, phases=phases)


def pool_peak(devices: Mapping[str, Device], pool: tuple[str, ...]) -> tuple[float, float] | None:
    """Operations/s and bytes/s of memory of all devices of a pool together; None where one of them is not known."""
    peaks = [device_peak(devices[device].name) for device in pool]
    if not all(peaks):
        return None
    return sum(peak.flops for peak in peaks if peak), sum(peak.bandwidth for peak in peaks if peak)


def measure_efficiency(measured: pd.DataFrame, launch: Launch, placement: RunPlacement, run: Run) -> pd.DataFrame:
    """Efficiency of every measured step.

    Args:
        measured: the step's numbers, as from `steps.measure_steps`.
        launch: the launch.
        placement: its placement.
        run: its run.

    Returns:
        Indexed like `measured`: `mfu/<phase>`, `mbu/gen` (shares of the pool's peak) and `weights_rate` (bytes/s that
        one device writes into its engine), as far as devices and models are known.
    """
    counted = launch.steps.reindex(measured.index)
    numbers = pd.DataFrame(index=measured.index)
    if "perf/update_weights_bytes" in counted and "phase/update_weights" in measured:
        numbers["weights_rate"] = counted["perf/update_weights_bytes"] / measured["phase/update_weights"]
    work = work_of(run.record)
    if work is None or not {_TOKENS, _LENGTH} <= set(counted) or not placement.roles:
        return numbers
    tokens, length = counted[_TOKENS], counted[_LENGTH]
    for phase in COMPUTING:
        peak = pool_peak(run.devices, placement.pools[placement.roles[Role(str(phase.role))]])
        if peak and f"phase/{phase.name}" in measured and phase.name in work.phases:
            done = tokens * np.asarray([work.flops(phase, one) for one in length])
            numbers[f"mfu/{phase.name}"] = done / measured[f"phase/{phase.name}"] / peak[0]
    pool = placement.pools[placement.roles[Role.ROLLOUT]]
    if (peak := pool_peak(run.devices, pool)) and "phase/gen" in measured and set(_DECODING) <= set(counted):
        work = replace(work, shared_by=placement.tensor_parallel or work.shared_by)
        steps, context = (counted[name] for name in _DECODING)
        read = [work.decode_bytes(*pair, len(pool)) for pair in zip(steps, context, strict=True)]
        numbers["mbu/gen"] = np.asarray(read) / measured["phase/gen"] / peak[1]
    return numbers


def clocked_mfu(
    numbers: Mapping[str, float], attributed: pd.DataFrame, placement: RunPlacement, devices: Mapping[str, Device]
) -> dict[str, float]:
    """MFU of training phases, of the peak at the SM clock that their devices had in them.

    Args:
        numbers: of the launch; used are `mfu/<phase>`.
        attributed: the clock of each phase on each device, columns as of `attribution.attribute`.
        placement: its placement.
        devices: of the run, by id.

    Returns:
        `clocked_mfu/<phase>`; nothing where a clock was not read, or that of the peak is not known.
    """
    clocks = attributed.set_index(["phase", "device"])["clock_sm_mhz"].to_dict()
    found = {}
    for phase in COMPUTING:
        if phase.trains and (mfu := numbers.get(f"mfu/{phase.name}")):
            pool = placement.pools[placement.roles[Role(str(phase.role))]]
            peaks = [device_peak(devices[device].name) for device in pool]
            full = sum(peak.flops for peak in peaks if peak)
            there = sum(
                peak.flops * clocks.get((phase.name, device), np.nan) / (peak.sm_clock_mhz or np.nan)
                for device, peak in zip(pool, peaks, strict=True)
                if peak
            )
            if there > 0:
                found[f"clocked_mfu/{phase.name}"] = mfu * full / there
    return found


def basis(run: Run) -> tuple[str, ...]:
    """The constants behind a run's MFU and MBU, or why there are none: one line each, none without GPUs."""
    names = dict.fromkeys(device.name for device in run.devices.values() if device.kind == "gpu")
    work = work_of(run.record)
    if names and work is None:
        why = "No MFU and no MBU: they need a model in bfloat16 whose shape run.json holds."
        return () if run.record.job else (why,)
    lines = []
    for name in names:
        peak = device_peak(name)
        lines.append(
            f"Peak of {name}: {peak.flops / 1e12:,.0f} TFLOP/s dense bfloat16, {peak.bandwidth / 1e12:.3g} TB/s."
            if peak
            else f"No MFU and no MBU on {name}: its peak is not known."
        )
    if work is not None and any(map(device_peak, names)):
        lines += [_parameters("actor", work.actor, work.actor.parameters, looks_up=not work.actor.tie_word_embeddings)]
        if run.record.job:
            lines.append("Only the mean length of the job's sequences is known: attention counts as if all had it.")
        if not _OF_CRITIC.isdisjoint(work.phases):
            lines += [_parameters("critic", work.critic, work.critic.critic_parameters, looks_up=True)]
    return tuple(lines)


def _parameters(role: str, shape: ModelShape, parameters: int, *, looks_up: bool) -> str:
    line = f"N of the {role}: {parameters / 1e9:.3g} billion, all its parameters"
    if looks_up:
        share = shape.vocab_size * shape.hidden_size / parameters
        line += f", {100 * share:.0f} % of them an embedding that is only looked up"
    return line + "."
