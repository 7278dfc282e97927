"""What is computed of a phase, against the formulas that docstrings give, written out anew; by round numbers."""

from math import inf, sqrt

import pytest

from placebench.predict.kernels import SUM, Roofline
from placebench.predict.parts import PhaseParts, parts_of
from placebench.predict.peaks import DevicePeak
from placebench.predict.phases import PhaseModel
from placebench.predict.prediction import launch_noise, launch_spread
from placebench.predict.step import StepModel
from placebench.predict.work import RankWork, phase_work
from placebench.record.calibration_file import CalibrationFile, MeasuredCase
from placebench.spec.devices import Device
from placebench.spec.shapes import PRESETS, JobShapes
from placebench.spec.words import parse_placement
from placebench.spec.workload_reading import build_workload

SHAPE = PRESETS["qwen2.5-1.5b"]
PEAK = DevicePeak(flops=1e14, bandwidth=1e12, link_bandwidth=1e11, network_bandwidth=1e10)
N, L, H, F, V = (
    SHAPE.parameters,
    SHAPE.num_hidden_layers,
    SHAPE.hidden_size,
    SHAPE.intermediate_size,
    SHAPE.vocab_size,
)


def update(devices: int, sharding: str) -> tuple[RankWork, PhaseParts]:
    workload = build_workload({"model": "qwen2.5-1.5b", "sharding": sharding})
    work = phase_work("update_actor", workload, JobShapes(SHAPE, SHAPE), devices)
    return work, parts_of(work, PEAK, Roofline(SHAPE, PEAK))


def seconds(parts: PhaseParts, name: str) -> list[float]:
    """Of one unit of each kind: a micro-batch, a step of the optimizer."""
    found: list[float] = parts.kernels[:, parts.names.index(name)].tolist()
    return found


@pytest.mark.parametrize(("devices", "sharding"), [(1, "replicate"), (4, "replicate"), (4, "shard")])
def test_kernels_of_an_update(devices: int, sharding: str) -> None:
    work, parts = update(devices, sharding)
    assert parts.units.tolist() == [work.micro_batches, work.updates]
    of_a_rank = devices if sharding == "shard" else 1
    assert seconds(parts, "optimizer") == [0, pytest.approx(28 * N / of_a_rank / 1e12)]
    assert seconds(parts, "weights") == [pytest.approx(20 * N / 1e12), 0]
    tokens, responses = work.tokens / work.micro_batches, work.responses / work.micro_batches
    matrices = L * (2 * H * (H + SHAPE.kv_width()) + 3 * H * F)
    # Norms and biases are not matrices.
    gemm = 3 * (2 * matrices * tokens + 2 * H * V * responses)
    assert seconds(parts, "gemm") == [pytest.approx(gemm / 1e14, rel=1e-3), 0]
    assert seconds(parts, "attention") == [pytest.approx(3 * 2 * L * H * work.length * tokens / 1e14), 0]
    moved = 3 * (2 * tokens * L * (12 * H + 5 * F) + 8 * V * responses)
    assert seconds(parts, "memory") == [pytest.approx(moved / 1e12), 0]


@pytest.mark.parametrize(
    ("devices", "sharding", "a_micro_batch", "a_step"),
    [
        (1, "replicate", 0, 0),
        # Averages of 4·N, sent twice.
        (4, "replicate", 0, 2 * 4 * N * 3 / 4),
        # Gathered twice, and gradients reduced.
        (4, "shard", (2 + 2 + 4) * N * 3 / 4, 0),
        (2, "shard", (2 + 2 + 4) * N * 1 / 2, 0),
    ],
)
def test_collectives_of_an_update(devices: int, sharding: str, a_micro_batch: float, a_step: float) -> None:
    work, parts = update(devices, sharding)
    sent = work.micro_batches * a_micro_batch + work.updates * a_step
    assert parts.exposed[parts.names.index("collective")] == pytest.approx(sent / 1e11)
    assert parts.units @ parts.collective == pytest.approx(sent / 1e11)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_token_step(devices: int) -> None:
    sequences, context = 64, 768
    weights, cache, sampler, short = Roofline(SHAPE, PEAK, devices).decode(sequences, context)
    # 64 sequences would read weights for longer than they compute with them; 1.5B has tied embeddings.
    assert SHAPE.tie_word_embeddings
    assert weights == pytest.approx(max(2 * N / 1e12, 1.27 * 2 * N * sequences / 1e14) / devices)
    heads = max(1, SHAPE.num_key_value_heads // devices)
    # Keys and values, two bytes each.
    assert cache == pytest.approx(2 * 2 * L * heads * SHAPE.head_width * context * sequences / 1e12)
    assert sampler == pytest.approx(4 * V * sequences / 1e12)
    # A ring sends (n - 1)/n of the 2·h bytes of each sequence twice, behind attention and behind feed-forward.
    sums = 2 * L if devices > 1 else 0
    sent = sums * 2 * (devices - 1) / devices * 2 * H * sequences
    unlinked = Roofline(SHAPE, DevicePeak(1e14, 1e12, inf, inf), devices).decode(sequences, context)[3]
    assert short - unlinked == pytest.approx(0.1 * sent / 1e11)
    assert unlinked == pytest.approx(1e-6 * (L + SUM * sums))


def test_launches_of_placements_are_pooled_by_their_degrees_of_freedom() -> None:
    workload = build_workload({"model": "qwen2.5-1.5b"})
    shapes, gpu = JobShapes(SHAPE, SHAPE), Device("0", "gpu", 0, "node", "NVIDIA H200", 141 << 30)
    content = workload.model_dump(mode="json")
    cases = tuple(
        MeasuredCase(name=name, workload=content, models=shapes, step_s=1.0, launches=n, launch_sd=sd, phases=())
        for name, n, sd in (("standard", 2, 0.01), ("split", 4, 0.05), ("colocated", 1, None))
    )
    file = CalibrationFile(source="test", kind="gpu", device=gpu.name, device_count=4, device_bytes=1, cases=cases)
    model = StepModel(PhaseModel(workload, shapes, (file,), gpu), [gpu] * 4)
    # One degree of freedom with a standard deviation of 1 %, three with one of 5 %: √((1·1 + 3·25) / 4) %.
    pooled = 0.01 * sqrt(76 / 4)
    spread, launches = launch_spread(model)
    assert launches == 4
    assert spread == pytest.approx(pooled)
    noise = launch_noise(model, parse_placement("standard", [4]))
    assert noise is not None
    assert (noise.free, noise.launches) == (4, 2)
    assert noise.sd == pytest.approx(pooled)
