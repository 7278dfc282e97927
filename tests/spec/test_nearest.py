"""Unknown words come with what they were probably meant to be, in every command alike."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from placebench.cli import main
from placebench.spec.nearest import _BY_NAME, nearest
from placebench.spec.placement import Role
from placebench.spec.presets import PRESETS
from placebench.spec.shapes import PRESETS as MODELS
from placebench.spec.workload import workload_keys
from placebench.spec.workload_reading import RUN_KEYS

RUN = "run --dry-run --devices cpu:2"


def said(command: str) -> str:
    result = CliRunner().invoke(main, command.split(), prog_name="placebench")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("lr=3", "optimizer.actor_lr"),
        ("optimizer.lr=3", "optimizer.actor_lr"),
        ("critic.optim.lr=3", "optimizer.critic_lr"),
        ("actor_rollout_ref.rollout.n=4", "batch.group_size"),
        ("batch_size=3", "batch.size"),
        ("bs=3", "batch.size"),
        ("max_tokens=8", "batch.max_response_length"),
        ("kl_coef=0", "algorithm.kl_coef"),
        ("gamma=1", "algorithm.gamma"),
        ("gama=1", "algorithm.gamma"),
        ("temprature=1", "rollout.temperature"),
        ("gpu-memory-utilization=0.5", "rollout.memory_share"),
        ("batch.sise=4", "batch.size"),
    ],
)
def test_a_key_by_the_names_of_the_field(setting: str, key: str) -> None:
    assert f"; did you mean {key!r}?" in said(f"{RUN} --set {setting}")


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        (f"{RUN} --set precision=bf16", "; did you mean 'bfloat16'?"),
        (f"{RUN} --set algorithm.name=gppo", "; did you mean 'ppo'?"),
        (f"{RUN} --set data.reward=exact", "; did you mean 'exact_match'?"),
        (f"{RUN} --set data.source=arithmatic", "; did you mean 'arithmetic'?"),
        (f"{RUN} --set placement=split", "; did you mean 'placements' of the file, or --placements?"),
        (f"{RUN} --model qwen7b", "; did you mean 'qwen2.5-7b'?"),
        (f"{RUN} --model llama3", "; did you mean 'llama-3.1-8b'?"),
        (f"{RUN} --rollout vlm", "; did you mean 'vllm'?"),
        (f"{RUN} --placements spilt", "; did you mean 'split'?"),
        (f"{RUN} --placements colocated", "; did you mean 'standard'?"),
        (f"{RUN} --placements standard/stale=1", "; did you mean 'staleness'?"),
        (f"{RUN} --lr 3", "Did you mean --set optimizer.actor_lr=…?"),
        (f"{RUN} --bs 3", "Did you mean --batch-size?"),
        (f"{RUN} --gpus 3", "Did you mean --devices?"),
        (f"{RUN} --sample-rate 3", "Did you mean --sample-hz?"),
        (f"{RUN} --micro-batch-size 3", "Did you mean --set batch.micro_batch_tokens=…?"),
        ("predict --gpus H200", "Did you mean --gpu?"),
        ("calibrate --max-tokens 3", "Did you mean --max-response-length?"),
        ("calibrate --placement splitt --devices cpu:2", "; did you mean 'split'?"),
        ("check latest --alow host", "Did you mean --allow?"),
        ("rn", "Did you mean 'run'?"),
    ],
)
def test_words_of_every_kind(command: str, meant: str) -> None:
    assert meant in said(command)


@pytest.mark.parametrize("option", ["--calibration", "--optimiser", "--reward-weights", "--command"])
def test_an_unknown_option_is_no_workload_key_that_looks_a_little_like_it(option: str) -> None:
    assert said(f"{RUN} {option} x") == f"placebench: No such option '{option}'. (see placebench run --help)\n"


def test_words_of_a_placement_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("pool: {a: [2]}\npools: {a: [2]}\nroles: {policy: a, rollout: a, ref: a, critic: a}\n")
    told = CliRunner().invoke(main, [*RUN.split(), "--placements", "mine.yaml"]).stderr
    assert "unknown key 'pool'; " in told
    assert "; did you mean 'pools'?" in told
    assert "; did you mean 'actor'?" in told


def test_what_the_field_calls_it_leads_to_words_that_there_are() -> None:
    choices = {"float32", "bfloat16", "shard", "replicate"}
    known = {*workload_keys(), *RUN_KEYS, *MODELS, *(one.name for one in PRESETS), *Role, *choices}
    assert set(_BY_NAME) <= known


@given(st.text(max_size=60), st.lists(st.text(max_size=12), max_size=8))
def test_any_word_has_a_known_one_or_none(word: str, known: list[str]) -> None:
    assert nearest(word, known) in (*known, None)
    assert all(nearest(one, known) is not None for one in known)


def test_a_word_without_end_is_none() -> None:
    assert nearest("x" * 10_000_000, workload_keys()) is None
