"""Any number for any key, option or placement ends in a plan, or in a line that names it: nothing overflows."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placebench.cli import main
from placebench.spec.nested import flatten
from placebench.spec.workload import Workload

NUMERIC = [key for key, value in flatten(Workload().model_dump()).items() if type(value) in (int, float)]
OPTIONS = (
    *("steps", "warmup-steps", "seed", "batch-size", "mini-batch-size", "max-prompt-length", "max-response-length"),
    *("rounds", "min-effect", "step-timeout", "time-limit", "sample-hz", "checkpoint-every", "placement-timeout"),
)
OF_AUTO = ("precision", "max-rounds", "max-time")
# Each {} is a number.
WORDS = (
    "split:{}+1",
    "split:1+{}",
    "standard/staleness={}",
    "learners:1+engines:{}",
    "learners:1+engines:1xtp{}",
    "ddp:{}",
)
DEVICES = ("cpu:{}", "gpu:{}", "gpu:{}x2", "gpu:2x{}", "gpu:2x2@{}GiB")
SBATCH = ("--nodes={}", "--gpus-per-node={}", "--grace={}", "--time={}", "--time={}:00:00", "--time={}-0")
EXTREMES = (
    *("0", "-1", "1", "2", "1e308", "-1e308", "1e-320", ".nan", ".inf", "-.inf", "nan", "inf", "1e400", "0.1"),
    *(str(2**31), str(2**63), "1" + "0" * 30, "9" * 400, "9" * 4400, "0x" + "f" * 4000, "1:1:1:1", "1_0", "٣", "1e3"),
)
numbers = st.one_of(st.sampled_from(EXTREMES), st.integers().map(str), st.floats().map(repr))


def check(arguments: list[str], *named: str) -> None:
    """See how a command ends."""
    result = CliRunner().invoke(main, arguments, prog_name="placebench")
    assert result.exit_code in (0, 2), result.output
    assert len(result.stdout) < 10_000
    if result.exit_code == 2:
        lines = result.stderr.splitlines()
        assert len(lines) <= 31
        assert all(line.startswith("placebench: ") and len(line) < 800 for line in lines)
        assert any(name in result.stderr for name in named), result.stderr


@settings(max_examples=40)
@given(st.sampled_from(NUMERIC), numbers)
@example("optimizer.actor_lr", "1e308")
@example("rollout.response_length_sigma", "1e308")
@example("batch.max_response_length", "10" * 9)
def test_any_number_of_a_workload_is_planned_or_refused_by_its_key(key: str, number: str) -> None:
    check(["run", "--dry-run", "--devices", "cpu:2", "--set", f"{key}={number}"], key, key.split(".")[0])


@pytest.mark.parametrize("number", ["1e308", "-1e308", "1" + "0" * 300])
def test_no_number_beyond_reason_is_planned(number: str) -> None:
    settings = [word for key in NUMERIC for word in ("--set", f"{key}={number}")]
    result = CliRunner().invoke(main, ["run", "--dry-run", "--devices", "cpu:2", *settings], prog_name="placebench")
    assert (result.exit_code, result.stdout) == (2, "")
    refused = [line.split()[2].removesuffix(":") for line in result.stderr.splitlines() if " --set " in line]
    assert refused[:29] == NUMERIC[:29]


@settings(max_examples=30)
@given(st.sampled_from([*OPTIONS, *OF_AUTO]), numbers)
@example("max-time", "1e12")
@example("batch-size", "734480")
def test_any_number_of_an_option_is_planned_or_refused_by_its_name(option: str, number: str) -> None:
    auto = ["--rounds", "auto"] if option in OF_AUTO else []
    check(
        ["run", "--dry-run", "--devices", "cpu:2", *auto, f"--{option}={number}"],
        f"--{option}",
        option.replace("-", "_"),
        # What does not fit into memory has its way out by the key.
        option.replace("-", "."),
    )


@settings(max_examples=30)
@given(st.sampled_from([("--placements", word) for word in WORDS] + [("--devices", spec) for spec in DEVICES]), numbers)
@example(("--placements", "standard/staleness={}"), "9" * 18)
def test_any_number_of_a_word_is_planned_or_refused(given_in: tuple[str, str], number: str) -> None:
    option, word = given_in
    devices = [] if option == "--devices" else ["--devices", "gpu:8x2"]
    check(["run", "--dry-run", *devices, f"{option}={word.format(number)}"], option, "placement")


@settings(max_examples=20)
@given(st.sampled_from(("pools", "staleness", "tensor_parallel", "rounds")), numbers)
def test_any_number_of_a_file_is_planned_or_refused_by_its_key(
    tmp_path_factory: pytest.TempPathFactory, key: str, number: str
) -> None:
    folder = tmp_path_factory.mktemp("files")
    roles = dict.fromkeys(("actor", "rollout", "ref", "critic"), "p")
    content: dict[str, Any] = {"pools": {"p": [2]}, "roles": roles} if key != "rounds" else {}
    content |= {"pools": {"p": ["NUMBER"]}} if key == "pools" else {key: "NUMBER"}
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(content).replace("NUMBER", number))
    option = "--config" if key == "rounds" else "--placements"
    check(["run", "--dry-run", "--devices", "cpu:2", option, str(file)], key, "mine.yaml", "placement")


@settings(max_examples=20)
@given(st.sampled_from(SBATCH), numbers)
@example("--time={}-0", "999999999")
@example("--nodes={}", "1" + "0" * 9)
def test_any_number_of_a_job_is_submitted_or_refused_by_its_option(option: str, number: str) -> None:
    check(["slurm", "submit", "--print", option.format(number), "--", "run"], option.split("=")[0], "placement")


@pytest.mark.parametrize("number", ["1e308", "1" + "0" * 300, "9" * 4400, "-1", "0", '"x"', "null", "[]", "1e999"])
def test_any_number_in_a_models_config_is_planned_or_refused(tmp_path: Path, number: str) -> None:
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), "8")
    for key in (*sizes, "vocab_size", "max_position_embeddings", "head_dim", "rope_theta", "rms_norm_eps"):
        content = {**sizes, "vocab_size": "64", key: number}
        text = ", ".join(f'"{name}": {value}' for name, value in content.items())
        (tmp_path / "config.json").write_text(f'{{"model_type": "qwen2", {text}}}')
        check(
            ["run", "--dry-run", "--devices", "cpu:2", f"--model={tmp_path}", "--rollout=torch"], str(tmp_path), "model"
        )


@pytest.mark.parametrize("devices", ["gpu:4097", "gpu:999999", "gpu:1000000", "gpu:8x1000"])
@pytest.mark.parametrize(
    "words",
    [("search", "--gpu", "H200"), ("predict", "--gpu", "H200", "--placements", "standard"), ("run", "--dry-run")],
)
def test_more_devices_than_make_sense_are_refused_before_anything_is_worked_out(
    words: tuple[str, ...], devices: str
) -> None:
    result = CliRunner().invoke(main, [*words, "--devices", devices], prog_name="placebench")
    assert result.exit_code == 2
    assert result.stderr.endswith(f"devices {devices}: at most 4096 devices; write a smaller number\n")
