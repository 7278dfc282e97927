import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_run import GPU_METRICS, GPU_SAMPLES, GPU_WORKLOAD, SyntheticRun, gpu_run

from placebench.compare.comparison import Comparison, compare_run
from placebench.compare.measure.efficiency import Work, basis
from placebench.record.folder import Trial
from placebench.record.job_record import LogRecord
from placebench.spec.phases import PHASE
from placebench.spec.shapes import PRESETS, JobShapes

N = 1_543_714_304  # of Qwen2.5-1.5B, as its model card has it: 1.54 billion
CRITIC_N = N + 1536  # the output head is tied to the embedding, so the critic has a value head more


def compared(path: Path, **changes: Any) -> Comparison:
    return compare_run(gpu_run(rounds=1, pace=lambda *_: 1.0, **changes).write(path / "run"))


def test_mfu_and_mbu_are_what_a_hand_computes(tmp_path: Path) -> None:
    standard, split = compared(tmp_path).sides
    training, forward = 12 * 28 * 1536 * 1000, 4 * 28 * 1536 * 1000
    # 1300 tokens; 2 epochs of training; seconds and devices of the layouts
    assert standard.value("mfu/update_actor") == pytest.approx(2 * 1300 * (6 * N + training) / (0.24 * 2 * 989e12))
    assert standard.value("mfu/update_actor") == pytest.approx(0.053555, rel=1e-4)
    assert split.value("mfu/update_critic") == pytest.approx(2 * 1300 * (6 * CRITIC_N + training) / (0.4 * 989e12))
    assert standard.value("mfu/old_log_prob") == pytest.approx(1300 * (2 * N + forward) / (0.1 * 2 * 989e12))
    assert split.value("mfu/ref") == pytest.approx(1300 * (2 * N + forward) / (0.2 * 989e12))
    assert split.value("mfu/values") == pytest.approx(0.021422, rel=1e-4)
    # 500 steps read the bf16 weights in each engine; keys and values: 28 layers, 2 heads of 128, twice, 2 bytes
    assert standard.value("mbu/gen") == pytest.approx((2 * 500 * 2 * N + 1e6 * 28_672) / (0.5 * 2 * 4.8e12))
    assert standard.value("mbu/gen") == pytest.approx(0.649188, rel=1e-4)
    assert split.value("mbu/gen") == pytest.approx((500 * 2 * N + 1e6 * 28_672) / (0.9 * 4.8e12))


def test_mfu_at_the_clock_that_was_there_is_of_a_lower_peak(tmp_path: Path) -> None:
    standard, split = compared(tmp_path, device_samples={"cpu:1": {"clock_sm_mhz": 1464}}).sides
    # H200s of 1,900 and 1,464 MHz, whose peak is of 1,830 MHz.
    share = (1900 / 1830 + 1464 / 1830) / 2
    assert standard.value("clocked_mfu/update_actor") == pytest.approx(standard.value("mfu/update_actor") / share)
    assert split.value("clocked_mfu/update_critic") == pytest.approx(split.value("mfu/update_critic") / 0.8)
    assert not standard.estimate("clocked_mfu/ref").n
    unread, *_ = compared(tmp_path / "unread", samples=GPU_SAMPLES | {"clock_sm_mhz": None}).sides
    other, *_ = compared(tmp_path / "other", device_name="NVIDIA H100 NVL").sides
    for side in (unread, other):
        assert side.estimate("mfu/update_actor").n
        assert not side.estimate("clocked_mfu/update_actor").n


def test_the_share_of_logits_that_training_does_not_need_is_as_the_guide_says() -> None:
    shape = PRESETS["qwen2.5-1.5b"]
    work = Work(shape, shape, 1, 1, 2)
    of_prompts = 512 * 2 * 151_936 * 1536 / (1024 * work.forward_flops("actor", 1024))
    guide = Path(__file__).parents[2] / "docs" / "sampling.md"
    text = " ".join(guide.read_text(encoding="utf-8").split())
    assert f"{100 * of_prompts:.1f} % of the actor's FLOPs" in text


def test_tokens_per_joule_and_the_rate_of_weights(tmp_path: Path) -> None:
    standard, split = compared(tmp_path).sides
    assert standard.value("tokens_per_j") == pytest.approx(1300 / (2 * 400 * 1.30))
    assert split.value("tokens_per_j") == pytest.approx(1300 / (2 * 400 * 1.83))
    assert standard.value("weights_rate") == pytest.approx(30e6 / 0.01)


def test_an_engine_over_two_devices_reads_its_weights_once(tmp_path: Path) -> None:
    workload = GPU_WORKLOAD | {"rollout": {"tensor_parallel_size": 2}}
    once = pytest.approx((500 * 2 * N + 1e6 * 28_672) / (0.5 * 2 * 4.8e12))
    assert compared(tmp_path / "workload", workload=workload).first.value("mbu/gen") == once
    # A placement that says it itself.
    path = gpu_run(rounds=1, pace=lambda *_: 1.0).write(tmp_path / "run")
    manifest = json.loads((path / "run.json").read_text())
    manifest["placements"][0]["tensor_parallel"] = 2
    (path / "run.json").write_text(json.dumps(manifest))
    assert compare_run(path).first.value("mbu/gen") == once


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"device_name": "NVIDIA H200 MIG"}, "No MFU and no MBU on NVIDIA H200 MIG: its peak is not known."),
        ({"device_name": "NVIDIA H200 MIG 1g.18gb"}, "its peak is not known"),
        ({"workload": GPU_WORKLOAD | {"precision": "float32"}}, "they need a model in bfloat16"),
        ({"workload": GPU_WORKLOAD | {"model": "recorded/nowhere"}}, "whose shape run.json holds"),
    ],
)
def test_what_is_not_known_is_missing_and_said(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    comparison = compared(tmp_path, **changes)
    assert math.isnan(comparison.first.value("mfu/update_actor"))
    assert math.isnan(comparison.first.value("mbu/gen"))
    assert comparison.first.value("weights_rate") == pytest.approx(3e9)
    assert any(word in line for line in basis(comparison.placements[0].run))


def test_shapes_are_those_that_the_run_recorded_or_of_a_preset(tmp_path: Path) -> None:
    path = gpu_run(rounds=1, pace=lambda *_: 1.0).write(tmp_path / "run")
    manifest = json.loads((path / "run.json").read_text())
    recorded = compare_run(path).first.value("mfu/ref")
    del manifest["models"]
    (path / "run.json").write_text(json.dumps(manifest))
    assert compare_run(path).first.value("mfu/ref") == recorded
    shapes = asdict(JobShapes(PRESETS["tiny"], PRESETS["tiny"]))
    (path / "run.json").write_text(json.dumps(manifest | {"models": shapes}))
    assert compare_run(path).first.value("mfu/ref") < recorded / 100


def test_a_job_of_the_user_s_has_the_mfu_of_the_phases_that_are_known(tmp_path: Path) -> None:
    path = gpu_run(rounds=1, pace=lambda *_: 1.0).write(tmp_path / "run")
    shapes = asdict(JobShapes(PRESETS["qwen2.5-1.5b"], PRESETS["qwen2.5-1.5b"]))
    job = {"framework": "verl", "spec": {}, "work": {"phases": ["update_actor"], "epochs": 1}}
    content = json.loads((path / "run.json").read_text()) | {"workload": {}, "models": shapes, "job": job}
    (path / "run.json").write_text(json.dumps(content))
    for trial in path.glob("trials/*"):
        LogRecord(framework="verl", format="verl").write(Trial(trial))
    comparison = compare_run(path)
    standard = comparison.first
    work = 1300 * (6 * N + 12 * 28 * 1536 * 1000)
    assert standard.value("mfu/update_actor") == pytest.approx(work / (0.24 * 2 * 989e12))
    assert [str(key) for key in standard.launch_values if str(key).startswith("mfu/")] == ["mfu/update_actor"]
    assert [line.partition(" ")[0] for line in basis(comparison.placements[0].run)] == ["Peak", "N", "Only"]
    del job["work"]
    (path / "run.json").write_text(json.dumps(content))
    assert basis(compare_run(path).placements[0].run) == ()


def test_logs_without_the_counts_have_no_mfu(tmp_path: Path) -> None:
    standard = compared(tmp_path, metrics={}).first
    assert not [key for key in standard.launch_values if str(key).startswith(("mfu/", "mbu/", "weights_rate"))]


def test_a_run_on_cpu_devices_has_none_and_no_word_of_it(tmp_path: Path) -> None:
    workload = GPU_WORKLOAD | {"model": "tiny"}
    path = SyntheticRun(rounds=1, metrics=GPU_METRICS, workload=workload).write(tmp_path / "run")
    comparison = compare_run(path)
    assert not comparison.first.estimate("mfu/update_actor").n
    assert basis(comparison.placements[0].run) == ()


def test_the_basis_names_peaks_and_parameters(tmp_path: Path) -> None:
    assert basis(compared(tmp_path).placements[0].run) == (
        "Peak of NVIDIA H200: 989 TFLOP/s dense bfloat16, 4.8 TB/s.",
        "N of the actor: 1.54 billion, all its parameters.",
        "N of the critic: 1.54 billion, all its parameters, 15 % of them an embedding that is only looked up.",
    )


def test_an_untied_embedding_is_not_read_in_decoding() -> None:
    shape = PRESETS["qwen2.5-7b"]
    work = Work(shape, shape, 1, 1, 2)
    assert work.decode_bytes(1, 0, 1) == 2 * (shape.parameters - shape.vocab_size * shape.hidden_size)


def test_attention_is_as_wide_as_its_heads_and_keys_are_copied_to_devices_that_outnumber_them() -> None:
    shape = replace(PRESETS["qwen2.5-1.5b"], head_dim=256)  # 12 heads, 2 of keys and values
    work = Work(shape, shape, 1, 1, 2)
    assert work.forward_flops("actor", 1000) - work.forward_flops("actor", 0) == 4 * 28 * 12 * 256 * 1000
    read = {size: replace(work, shared_by=size).decode_bytes(0, 1e6, size) for size in (1, 2, 4)}
    assert read == {1: 2 * 2 * 28 * 2 * 256 * 1e6, 2: read[1], 4: 2 * read[1]}


@given(
    st.sampled_from(sorted(PRESETS)),
    st.floats(1, 1e5),
    st.integers(1, 8),
    st.sampled_from(["actor", "critic"]),
)
def test_training_is_three_forward_passes_an_epoch_and_grows_with_length(
    model: str, length: float, epochs: int, role: str
) -> None:
    work = Work(PRESETS[model], PRESETS[model], epochs, 1, 2)
    assert work.flops(PHASE[f"update_{role}"], length) == pytest.approx(3 * epochs * work.forward_flops(role, length))
    assert work.forward_flops(role, 2 * length) > work.forward_flops(role, length)


@given(st.integers(1, 8), st.integers(1, 4096), st.floats(0, 1e12))
def test_decoding_reads_weights_by_engine_and_context_once(engines: int, steps: int, context: float) -> None:
    shape = PRESETS["qwen2.5-1.5b"]
    single, shared = (Work(shape, shape, 1, size, 2).decode_bytes(steps, context, engines * size) for size in (1, 2))
    assert single == pytest.approx(shared)
