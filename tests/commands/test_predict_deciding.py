"""The command that decides what `placebench predict` leaves open: it has the job and devices that were asked for."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from predicting import REFERENCE, WORKLOAD, deciding, invoke, predicted
from synthetic_run import SyntheticRun

from placebench.cli import main
from placebench.commands.deciding import workload_options
from placebench.spec.config import load_yaml, parse_settings
from placebench.spec.workload_reading import RUN_KEYS, build_workload

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("arguments", "planned"),
    [
        (
            ("--gpu", "H200", "--model", "qwen2.5-7b", "--devices", "gpu:8@141GiB"),
            ("8 × GPU, 141 GiB each", "qwen2.5-7b", "256 sequences of up to 512 + 512 tokens, 2 mini-batches"),
        ),
        (
            ("--gpu", "H200", "--devices", "gpu:8x2@141GiB", "--batch-size", "64", "--max-response-length", "100"),
            ("2 × 8 GPU, 141 GiB each", "qwen2.5-1.5b", "64 sequences of up to 512 + 100 tokens, 2 mini-batches"),
        ),
        (
            ("--from", "latest", "--set", "optimizer.eps=1e-6", "--set", "algorithm.gamma=0.9"),
            ("2 × cpu", "tiny", "64 sequences of up to 16 + 8 tokens, 2 mini-batches"),
        ),
        (("--from", "h200", "--model", "qwen2.5-0.5b"), ("4 × GPU, 139 GiB each", "qwen2.5-0.5b", "256 sequences")),
    ],
)
def test_the_command_that_decides_has_the_job_and_devices(arguments: tuple[str, ...], planned: tuple[str, ...]) -> None:
    # Of launches that differ so much, none is faster.
    noisy = SyntheticRun(rounds=2, workload=WORKLOAD, pace=lambda number, _: 0.5 * number)
    noisy.write(Path("runs/20260101T000000Z-a"))
    result = invoke(*arguments, "--placements", "standard,split")
    words = deciding(result.output)
    assert words[0] == "run"
    plan = CliRunner().invoke(main, [*words, "--dry-run"], prog_name="placebench")
    assert plan.exit_code == 0, plan.output
    for part in planned:
        assert part in plan.output
    for setting in ("optimizer.eps=1e-06", "algorithm.gamma=0.9"):
        assert (setting in words) == ("latest" in arguments)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ((), []),
        (("steps=20", "trace_kernels=false"), ["--steps", "20", "--set", "trace_kernels=false"]),
        (("warmup_steps=5",), ["--warmup-steps", "5"]),
        (("steps=2", "warmup_steps=1"), ["--steps", "2", "--warmup-steps", "1"]),
    ],
)
@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_the_command_that_decides_has_a_runs_steps_and_not_those_of_what_was_measured(
    gpu: str, settings: tuple[str, ...], steps: list[str]
) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    devices = ("--model", "qwen2.5-7b", "--devices", "gpu:8@141GiB")
    words = deciding(invoke("--gpu", gpu, *devices, "--placements", "standard,split", *options).output)
    at = [place for place, word in enumerate(words) if word in ("--steps", "--warmup-steps") or "trace" in word]
    found = [word for place in at for word in words[place - ("trace" in words[place]) :][:2]]
    assert found == steps


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("batch.size=64", "batch.mini_batch_size=16", "seed=3"),
        ("model=qwen2.5-7b", "algorithm.name=grpo", "optimizer.actor_lr=1e-5", "optimizer.betas=[0.9, 0.95]"),
        ("model=qwen2.5-0.5b", "rollout.backend=torch", "rollout.ignore_eos=false", "torch_compile=false"),
        ("data.source=code", "data.prompt_key='null'", "data.answer_key=a b", "rollout.ignore_eos=true"),
        ("batch.max_prompt_length=20000", "batch.micro_batch_tokens=30000"),
    ],
)
def test_the_options_of_a_workload_ask_for_it_and_none_is_without_need(settings: tuple[str, ...]) -> None:
    workload = build_workload(parse_settings(settings))
    words = workload_options(workload)
    result = CliRunner().invoke(main, ["run", "--print-config", "--devices", "gpu:8@999GiB", *words])
    assert result.exit_code == 0, result.output
    Path("c.yaml").write_text(result.stdout)
    keys = {key: value for key, value in load_yaml(Path("c.yaml")).items() if key not in RUN_KEYS}
    assert build_workload(keys) == workload
    assert sum(word.startswith("--") for word in words) == len(settings)


def test_steps_of_more_work_are_no_slower_ones() -> None:
    words = ("--gpu", "H200", "--model", "qwen2.5-1.5b", "--placements", "standard,ddp:4/scaling=weak")
    standard, weak = predicted(*words).placements
    assert weak.step_s > 2 * standard.step_s
    assert (weak.ratio_low, weak.is_tied) == (None, False)
    told = " ".join(invoke(*words).output.split())
    assert "A step of ddp:4/scaling=weak does 4 times the work of standard: compare tokens/s/device," in told
    assert "faster" not in told


def test_what_cannot_be_told_leaves_the_others_to_be_compared() -> None:
    words = ("--gpu", "H100", "--model", "qwen2.5-0.5b", "--devices", "gpu:4")
    told = invoke(*words, "--placements", "standard,split,ddp:1").output
    assert "Cannot say for sure what ddp:1 would take" in told
    assert "Tie: standard may be as fast as split" in " ".join(told.split())


def test_the_same_measurements_count_once() -> None:
    run = REFERENCE / "ppo-7b"
    predicted("--from", run, "--out", "kept.json")
    for other, why in ((str(run), "is given twice"), ("kept.json", f"has the measurements of {run}: name one of them")):
        result = invoke("--from", f"{run},{other}")
        assert result.exit_code == 2
        assert f": {other} {why}" in result.output


def test_placements_that_are_not_named_and_cannot_be_are_told() -> None:
    content = predicted("--gpu", "H200", "--devices", "gpu:7", "--model", "qwen2.5-1.5b")
    assert "standard" not in [one.placement for one in content.placements]
    assert any(note.startswith("left out: placement 'standard': batch.size 256") for note in content.notes)


def test_many_placements_that_are_left_out_have_one_reason_and_their_names() -> None:
    content = predicted("--gpu", "H200", "--devices", "gpu:1", "--model", "qwen2.5-1.5b")
    told = [note for note in content.notes if note.startswith("left out")]
    assert told[0] == "left out: placement 'split' needs at least 2 devices, there is 1: raise --devices"
    assert told[1:] == [
        "left out, too: split/overlap=none, split:3+1, learners:2+engines:2/staleness=1, ddp:2, ddp:4; give one of"
        " them to --placements to see why"
    ]
