"""Times of phases: measured, scaled, and made of parts whose factors are found again."""

from dataclasses import replace
from math import isnan, prod
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.ppo.batch import micro_batches
from placebench.predict import estimating
from placebench.predict.estimating import Observation, estimate_factors
from placebench.predict.kernels import Roofline
from placebench.predict.parts import FACTORS, Array, PhaseParts, parts_of, split
from placebench.predict.peaks import device_peak
from placebench.predict.phases import Basis, PhaseModel
from placebench.predict.step import HOST_BOUND
from placebench.predict.work import counted, mean_response, micro_batch_count, phase_work
from placebench.record.calibration_file import CalibrationFile, MeasuredCase, MeasuredPhase, StepCounts
from placebench.spec.devices import Device
from placebench.spec.phases import GEN, PHASE, Activity
from placebench.spec.shapes import PRESETS, JobShapes
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload

H200 = "NVIDIA H200"
GPU = Device("0", "gpu", 0, "node", H200, 141 << 30)
SHAPES = JobShapes(PRESETS["qwen2.5-1.5b"], PRESETS["qwen2.5-1.5b"])
WORKLOAD = build_workload({"model": "qwen2.5-1.5b"})


def calibration(*phases: MeasuredPhase, workload: Workload = WORKLOAD, device: str = H200) -> CalibrationFile:
    content = workload.model_dump(mode="json")
    case = MeasuredCase(name="standard", workload=content, models=SHAPES, step_s=1.0, phases=phases)
    return CalibrationFile(source="test", kind="gpu", device=device, device_count=4, device_bytes=1, cases=(case,))


def model(*phases: MeasuredPhase, workload: Workload = WORKLOAD, device: Device = GPU) -> PhaseModel:
    return PhaseModel(WORKLOAD, SHAPES, (calibration(*phases, workload=workload),), device)


def test_what_was_measured_is_told_as_it_was() -> None:
    known = model(MeasuredPhase(name="ref", devices=4, seconds=0.4, kernel_s=0.35, collective_s=0.01))
    found = known.seconds("ref", 4)
    assert (found.total, found.kernels, found.exposed, found.basis) == (0.4, 0.35, 0.01, Basis.MEASURED)
    assert found.host == pytest.approx(0.04)


def test_engines_of_several_devices_are_no_other_work_for_phases_without_engines() -> None:
    shared = model(*(MeasuredPhase(name=name, devices=4, tensor_parallel=2, seconds=0.4) for name in (GEN, "ref")))
    assert shared.seconds("ref", 4, tensor_parallel=2).basis is Basis.MEASURED
    assert shared.seconds("ref", 4).basis is Basis.MEASURED
    assert shared.seconds(GEN, 4, tensor_parallel=2).basis is Basis.MEASURED
    assert shared.seconds(GEN, 4).basis is Basis.MODELLED


def test_kernels_shrink_with_devices_and_the_rest_does_not() -> None:
    known = model(MeasuredPhase(name="ref", devices=4, seconds=0.4, kernel_s=0.35, collective_s=0.01))
    found = known.seconds("ref", 2)
    assert found.basis is Basis.SCALED
    assert found.kernels == pytest.approx(0.7, rel=0.03)
    assert found.total == pytest.approx(0.74, rel=0.05)


def test_without_a_trace_two_sizes_tell_how_a_phase_scales() -> None:
    known = model(*(MeasuredPhase(name="ref", devices=n, seconds=0.1 + 1 / n) for n in (2, 4)))
    assert known.seconds("ref", 8).total == pytest.approx(0.1 + 1 / 8)
    assert known.has_sizes


def test_without_a_trace_nothing_is_said_of_kernels_but_by_their_model() -> None:
    for seconds, is_host_bound in ((1.2, False), (20.0, True)):
        known = model(*(MeasuredPhase(name=GEN, devices=n, seconds=seconds) for n in (2, 4)))
        for devices in (4, 8):
            found = known.seconds(GEN, devices)
            assert isnan(found.kernels)
            assert isnan(found.exposed)
            assert isnan(found.host)
            assert (known.host_share(GEN, devices) > HOST_BOUND) == is_host_bound
    unknown = Device("0", "gpu", 0, "node", "GPU", 80 << 30)
    measured = calibration(MeasuredPhase(name=GEN, devices=4, seconds=2.0), device=unknown.name)
    assert isnan(PhaseModel(WORKLOAD, SHAPES, (measured,), unknown).host_share(GEN, 4))


def test_other_devices_are_scaled_by_their_peaks() -> None:
    measured = MeasuredPhase(name=GEN, devices=1, seconds=3.5, kernel_s=3.2)
    other = Device("0", "gpu", 0, "node", "NVIDIA H100 80GB HBM3", 80 << 30)
    # Also where the same work was measured on as many. Decoding reads memory, at 3.35 in place of 4.8 TB/s; with 256
    # sequences on a device it multiplies for as long as it reads weights, at the same rate.
    for devices, least in ((1, 1.1), (2, 1.2)):
        slow, fast = (model(measured, device=device).seconds(GEN, devices) for device in (other, GPU))
        assert least < slow.kernels / fast.kernels < 4.8 / 3.35
        assert slow.basis is Basis.MODELLED


def test_of_two_devices_that_were_measured_one_is_asked_about() -> None:
    files = [
        calibration(MeasuredPhase(name=GEN, devices=1, seconds=seconds), device=name)
        for name, seconds in ((H200, 3.5), ("NVIDIA H100 80GB HBM3", 5.0))
    ]
    found = PhaseModel(WORKLOAD, SHAPES, files, GPU).seconds(GEN, 1)
    assert (found.total, found.basis) == (3.5, Basis.MEASURED)


def test_cpu_devices_of_other_numbers_of_cores_are_others() -> None:
    measured = calibration(MeasuredPhase(name="ref", devices=1, seconds=2.0))
    file = measured.model_copy(update={"kind": "cpu", "device": "CPU", "device_cores": 2})
    for cores in (2, 4):
        device = Device("cpu:0", "cpu", 0, "node", "CPU", 8 << 30, tuple(range(cores)))
        found = PhaseModel(WORKLOAD, SHAPES, (file,), device).seconds("ref", 1)
        assert (found.basis is Basis.MEASURED) == (cores == 2)


def test_a_phase_that_nobody_measured_and_no_peak_tells_of_is_refused() -> None:
    unknown = Device("0", "gpu", 0, "node", "GPU", 80 << 30)
    with pytest.raises(LookupError, match="values"):
        model(MeasuredPhase(name="ref", devices=4, seconds=0.4), device=unknown).seconds("values", 4)


def test_generation_is_bound_by_kernels_or_by_the_host() -> None:
    peak = device_peak(H200)
    assert peak is not None
    engine = Roofline(SHAPES.actor, peak)
    work = phase_work(GEN, WORKLOAD, SHAPES, 4)
    parts = parts_of(work, peak, engine)
    factors = np.array([one.median for one in FACTORS[Activity.GENERATE].values()])
    names = list(FACTORS[Activity.GENERATE])
    slow, quick = factors.copy(), factors.copy()
    slow[names.index("step")] = 1.0
    quick[[names.index(name) for name in ("step", "sequence", "phase")]] = 1e-9
    # 512 token steps and a unit for the prompts, each a second.
    assert split(parts, slow).total == pytest.approx(513, rel=0.01)
    bound = split(parts, quick)
    assert bound.total == pytest.approx(bound.kernels)
    assert bound.total > 0.5


@pytest.mark.parametrize("activity", [Activity.FORWARD, Activity.UPDATE, Activity.GENERATE])
def test_factors_are_found_again_in_what_they_make(activity: Activity) -> None:
    peak, beliefs = device_peak(H200), FACTORS[activity]
    assert peak is not None
    true = np.array([one.median * (1.5 if place % 2 else 0.8) for place, one in enumerate(beliefs.values())])
    name = next(phase.name for phase in PHASE.values() if phase.activity is activity and phase.name != "reward")
    observations: list[Observation] = []
    others: list[Observation] = []
    for size, length in ((8, 256), (64, 512), (256, 256), (32, 2048), (128, 1024)):
        batch = {"size": size, "mini_batch_size": size, "max_prompt_length": length, "max_response_length": length}
        workload = build_workload({"model": "qwen2.5-1.5b", "batch": batch})
        for devices in (1, 2):
            parts = parts_of(phase_work(name, workload, SHAPES, devices), peak, Roofline(SHAPES.actor, peak))
            found = split(parts, true)
            (others if size == 128 else observations).append(
                Observation(parts, found.total, found.kernels, found.exposed)
            )
    factors = estimate_factors(beliefs, observations)
    for one in others:
        assert split(one.parts, factors).total == pytest.approx(one.seconds, rel=0.03)


def test_a_reward_that_was_a_function_tells_nothing_of_one_that_is_a_model() -> None:
    measured = (MeasuredPhase(name=name, devices=1, seconds=one) for name, one in (("ref", 1.3), ("reward", 0.01)))
    batch = {"size": 128, "mini_batch_size": 128}
    asked = build_workload({"model": "qwen2.5-1.5b", "reward_model": "qwen2.5-1.5b", "batch": batch})
    known = PhaseModel(asked, replace(SHAPES, reward=SHAPES.actor), (calibration(*measured),), GPU)
    scored, passed = known.seconds("reward", 1).total, known.seconds("ref", 1).total
    assert 0.5 < scored / passed < 1
    assert passed == pytest.approx(0.65, rel=0.2)


def test_what_another_model_measured_counts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = build_workload({"model": "qwen2.5-1.5b", "batch": {"size": 128, "mini_batch_size": 128}})
    own = calibration(MeasuredPhase(name="ref", devices=1, seconds=1.3))
    # A model a third as large, that took as long.
    small = JobShapes(PRESETS["qwen2.5-0.5b"], PRESETS["qwen2.5-0.5b"])
    workload = {**own.cases[0].workload, "model": "qwen2.5-0.5b"}
    case = own.cases[0].model_copy(update={"models": small, "workload": workload})
    other = own.model_copy(update={"cases": (case,)})

    def seconds(*files: CalibrationFile, shapes: JobShapes = SHAPES) -> float:
        return PhaseModel(asked, shapes, files, GPU).seconds("ref", 1).total

    alone, beside = seconds(own), seconds(own, other)
    # A reward model in the job makes the reference no other model.
    assert seconds(own, other, shapes=replace(SHAPES, reward=small.actor)) == beside
    monkeypatch.setattr(estimating, "OTHER_MODEL_NOISE", 0.0)
    assert alone < beside < seconds(own, other)


def test_a_launch_tells_of_the_host_and_a_benchmark_of_the_kernels_alone() -> None:
    """The point of a benchmark has a quick host, the launch one that takes 5 ms a token step."""
    small = build_workload({"model": "qwen2.5-1.5b", "batch": {"size": 8, "mini_batch_size": 8}})
    point = calibration(MeasuredPhase(name=GEN, devices=1, seconds=1.3, kernel_s=1.25), workload=small)
    point = point.model_copy(update={"cases": tuple(one.model_copy(update={"step_s": None}) for one in point.cases)})
    other = build_workload({"model": "qwen2.5-1.5b", "batch": {"size": 16, "mini_batch_size": 8}})
    launch = calibration(MeasuredPhase(name=GEN, devices=1, seconds=2.6), workload=other)
    found = [PhaseModel(small, SHAPES, files, GPU).seconds(GEN, 1) for files in ((point,), (point, launch))]
    assert found[0].basis is Basis.MODELLED
    assert found[0].total == pytest.approx(1.3, rel=0.1)
    assert found[1].total == pytest.approx(2.5, rel=0.1)
    assert found[1].kernels == pytest.approx(found[0].kernels, rel=0.05)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_what_the_factors_give_is_far_from_no_measured_time(kinds: list[int], drawn: Random) -> None:
    """Phases of several kinds of units, or of none: their seconds are those of `split`, all of them at once."""

    def array(*shape: int) -> Array:
        return np.array([drawn.uniform(0, 2) for _ in range(prod(shape))]).reshape(shape)

    parts = [
        PhaseParts(("a", "b"), array(n), array(n, 2), array(n, 2), array(2) + 0.1, array(2), array(n)) for n in kinds
    ]
    factors = array(2) + 0.1
    found = [split(one, factors) for one in parts]
    times = [
        Observation(one, measured.total, measured.kernels, measured.exposed)
        for one, measured in zip(parts, found, strict=True)
    ]
    assert estimating._Observations(times).residuals(factors) == pytest.approx(np.zeros(3 * len(times)), abs=1e-9)
    late = [replace(one, seconds=(one.seconds or 0.0) * 1.1, kernel_s=None, collective_s=None) for one in times]
    residuals = estimating._Observations(late).residuals(factors)
    assert residuals[: len(late)] == pytest.approx(np.full(len(late), -np.log(1.1) / estimating.WALL_NOISE))
    assert not residuals[len(late) :].any()


def test_a_host_that_takes_longer_than_the_kernels_is_found() -> None:
    """Small micro-batches take as long as large ones there, which no time beside them explains."""
    peak, beliefs = device_peak(H200), FACTORS[Activity.UPDATE]
    assert peak is not None
    true = np.array([6e-3 if name == "block" else one.median for name, one in beliefs.items()])
    small, observations = JobShapes(PRESETS["qwen2.5-0.5b"], PRESETS["qwen2.5-0.5b"]), []
    for size in (2, 8, 16, 64, 256):
        workload = build_workload({"model": "qwen2.5-0.5b", "batch": {"size": size, "mini_batch_size": size}})
        parts = parts_of(phase_work("update_actor", workload, small, 1), peak, Roofline(small.actor, peak))
        found = split(parts, true)
        observations.append(Observation(parts, found.total, found.kernels))
    block = estimate_factors(beliefs, observations)[list(beliefs).index("block")]
    assert block == pytest.approx(6e-3, rel=0.1)


@given(
    st.dictionaries(st.integers(1, 64), st.floats(0.001, 100), min_size=1, max_size=4),
    st.integers(1, 64),
    st.integers(1, 64),
)
def test_more_devices_are_never_expected_to_be_slower_beyond_what_was_measured(
    seconds: dict[int, float], few: int, many: int
) -> None:
    phases = [MeasuredPhase(name="ref", devices=count, seconds=one) for count, one in seconds.items()]
    unknown = Device("0", "gpu", 0, "node", "GPU", 80 << 30)
    known = PhaseModel(WORKLOAD, SHAPES, (calibration(*phases, device=unknown.name),), unknown)
    if few <= many and not {few, many} & seconds.keys():
        assert known.seconds("ref", few).total >= known.seconds("ref", many).total * (1 - 1e-9) >= 0


@given(st.integers(1, 300), st.integers(8, 2048), st.sampled_from([2048, 4096, 16_384]))
def test_micro_batches_are_counted_as_the_job_makes_them(sequences: int, half: int, budget: int) -> None:
    batch = {"micro_batch_tokens": max(budget, 2 * half), "max_prompt_length": half, "max_response_length": half}
    workload = build_workload({"model": "qwen2.5-0.5b", "batch": batch})
    lengths = np.full(sequences, 2 * half, np.int32)
    expected = len(micro_batches(lengths, workload.batch.micro_batch_tokens))
    assert micro_batch_count(workload, sequences, 2 * half) == expected


def test_prompts_that_nobody_fills_up_are_packed_whatever_is_asked_for_those_of_arithmetic() -> None:
    counts = {}
    for source in ("arithmetic", "code", "prompts.jsonl"):
        for fills in (True, False):
            data = {"source": source, "fill_prompts": fills}
            batch = {"micro_batch_tokens": 3000, "max_prompt_length": 1000, "max_response_length": 1000}
            workload = build_workload({"model": "qwen2.5-0.5b", "data": data, "batch": batch})
            counts[source, fills] = micro_batch_count(workload, 6, 2000)
    assert counts.pop(("arithmetic", True)) == 6
    assert set(counts.values()) == {4}


def test_drawn_responses_end_one_after_the_other() -> None:
    drawn = {"response_lengths": "lognormal", "response_length_median": 256, "response_length_sigma": 0.8}
    workload = build_workload({"model": "qwen2.5-0.5b", "batch": {"max_response_length": 2048}, "rollout": drawn})
    random = np.random.default_rng(0).lognormal(np.log(256), 0.8, 100_000)
    assert mean_response(workload) == pytest.approx(np.minimum(random, 2048).mean(), rel=0.01)
    stretches = phase_work(GEN, workload, SHAPES, 1).decoding
    assert [one.sequences for one in stretches] == sorted((one.sequences for one in stretches), reverse=True)
    generated = sum(one.steps * one.sequences for one in stretches)
    assert generated == pytest.approx(256 * mean_response(workload), rel=0.05)


@pytest.mark.parametrize("name", ["update_actor", "ref", "update_weights"])
def test_devices_of_several_nodes_send_over_their_network(name: str) -> None:
    known = model()
    together, apart = (known.seconds(name, 8, nodes=nodes) for nodes in (1, 2))
    assert apart.exposed > 1.5 * together.exposed
    assert apart.total > together.total
    assert known.seconds(name, 8) == together
    assert known.seconds(name, 16) == known.seconds(name, 16, nodes=2)  # eight are a node's


def test_each_device_of_a_node_has_a_card_and_racks_join_nodes() -> None:
    def exposed(gpu: Device, nodes: int, name: str = "update_actor") -> float:
        return PhaseModel(WORKLOAD, SHAPES, (calibration(),), gpu).seconds(name, 16, nodes=nodes).exposed

    # Two nodes of eight send by eight cards at a time, sixteen of one by their own: 400 and 50 GB/s.
    assert exposed(GPU, 16) > 7 * exposed(GPU, 2) > 7 * exposed(GPU, 1)
    # One rank alone sends weights.
    assert exposed(GPU, 2, "update_weights") == pytest.approx(9 * exposed(GPU, 1, "update_weights"))
    rack = replace(GPU, name="NVIDIA GB200")
    assert exposed(rack, 4) == exposed(rack, 1)


def test_what_was_measured_on_one_node_is_not_measured_of_several() -> None:
    known = model(MeasuredPhase(name="ref", devices=4, seconds=0.4, kernel_s=0.35, collective_s=0.01))
    assert known.seconds("ref", 4).basis is Basis.MEASURED
    assert known.seconds("ref", 4, nodes=2).basis is Basis.SCALED


def test_devices_of_different_nodes_wake_up_beside_each_other() -> None:
    known = model()
    assert known.seconds("wake_up", 8, nodes=2).total < known.seconds("wake_up", 8, nodes=1).total


def test_checkpointed_activations_are_computed_twice() -> None:
    def seconds(name: str, *, checkpointing: bool) -> float:
        workload = WORKLOAD.model_copy(update={"activation_checkpointing": checkpointing})
        return PhaseModel(workload, SHAPES, (calibration(),), GPU).seconds(name, 4).total

    assert 1.1 < seconds("update_actor", checkpointing=True) / seconds("update_actor", checkpointing=False) < 1.35
    assert seconds("ref", checkpointing=True) == seconds("ref", checkpointing=False)


def test_sequences_for_which_an_engine_has_no_room_wait() -> None:
    def seconds(share: float | None) -> float:
        workload = build_workload(
            {"model": "qwen2.5-1.5b", "batch": {"size": 2048}, "rollout": {"memory_share": share}}
        )
        return PhaseModel(workload, SHAPES, (calibration(),), GPU).seconds(GEN, 1).total

    assert seconds(0.9) == seconds(None)
    assert seconds(0.06) > 1.5 * seconds(0.9)


def test_replicas_wait_for_each_other_in_updates_alone() -> None:
    workload = WORKLOAD.model_copy(update={"sharding": "replicate"})
    known = PhaseModel(workload, SHAPES, (calibration(),), GPU)
    assert known.seconds("ref", 4).exposed == 0
    assert known.seconds("update_actor", 4).exposed > 0


def test_sequences_that_end_by_themselves_are_as_long_in_another_batch() -> None:
    def case(**keys: Any) -> MeasuredCase:
        workload = build_workload({"model": "tiny", "batch": {"size": 8, "mini_batch_size": 4}, **keys})
        counts = StepCounts(tokens=100, attention_length=14, decode_steps=9, context_tokens=800)
        return MeasuredCase(name="standard", workload=workload.model_dump(mode="json"), counts=counts, phases=())

    larger = build_workload({"model": "tiny", "batch": {"size": 16, "mini_batch_size": 4}})
    found = counted(larger, [], [case()])
    assert found == StepCounts(tokens=200, attention_length=14, decode_steps=9, context_tokens=1600)
    assert counted(larger, [case()], []) == case().counts
    assert counted(larger, [], [case(rollout={"temperature": 0.5})]) is None
    assert counted(larger, [], [case(data={"source": "countdown"})]) is None
    full = build_workload({"model": "tiny", "rollout": {"ignore_eos": True}, "data": {"fill_prompts": True}})
    assert counted(full, [], [case()]) is None
