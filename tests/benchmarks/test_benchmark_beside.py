"""What the benchmarks ask of placebench's own job, of TRL and of verl can be run, and what they say of the device."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from beside import Asked, made_up_prompts, own_options, seen_on_device
from click.testing import CliRunner
from layouts import STANDARD
from synthetic_run import SyntheticRun
from trl_beside import trl_command
from trl_beside import write_prompts as write_lines
from verl_on_gpu import verl_command
from verl_on_gpu import write_prompts as write_rows

from placebench.cli import main
from placebench.compare.measure.sides import run_sides

ASKED = Asked(
    model="qwen2.5-1.5b", devices="gpu:1@80GiB", batch=64, group=8, micro_batch=4, prompt=512, response=512, steps=5,
    warmup=2, rounds=1,
)  # fmt: skip


def assert_can_be_run(words: Sequence[str], asked: Asked = ASKED) -> None:
    done = CliRunner().invoke(main, ["run", "--dry-run", "--devices", asked.devices, "--rounds", "1", *words])
    assert done.exit_code == 0, done.output


def test_placebench_can_be_run_on_one_gpu() -> None:
    assert_can_be_run(own_options(ASKED))


def test_trl_can_be_run_on_one_gpu(tmp_path: Path) -> None:
    command = trl_command(tmp_path, ASKED)
    assert_can_be_run(["--job", "trl", "--placements", "standard", "--", *command])
    assert command[command.index("--gradient_accumulation_steps") + 1] == "16"


def test_verl_can_be_run_on_one_gpu(tmp_path: Path) -> None:
    command = verl_command(tmp_path, ASKED, "python")
    assert_can_be_run(["--job", "verl", "--placements", "standard", "--", *command])
    assert "data.train_batch_size=8" in command
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096" in command
    assert not [word for word in command if "cpu" in word]
    fused = [
        word
        for model in ("qwen2.5-1.5b", "qwen2.5-7b")
        for word in verl_command(tmp_path, replace(ASKED, model=model), "python")
        if "fused" in word
    ]
    assert [word.partition("=")[2] for word in fused] == ["True", "False"]


def test_ppo_can_be_run_by_both_on_four_gpus(tmp_path: Path) -> None:
    placements = "standard,split,learners:2+engines:2"
    asked = replace(ASKED, algorithm="ppo", devices="gpu:4@141GiB", placements=placements, batch=256, micro_batch=16)
    assert_can_be_run(own_options(asked), asked)
    command = verl_command(tmp_path, asked, "python")
    assert_can_be_run(["--job", "verl", "--placements", placements, "--", *command], asked)
    assert {"data.train_batch_size=256", "critic.ppo_mini_batch_size=256"} <= set(command)


def test_prompts_have_the_tokens_that_were_asked_for(tmp_path: Path) -> None:
    prompts = made_up_prompts(3, 20)
    assert [len(prompt) for prompt in prompts] == [20] * 3
    write_lines(tmp_path / "prompts.jsonl", count=3, length=20)
    write_rows(tmp_path / "prompts.parquet", count=3, length=20)
    assert pd.read_json(tmp_path / "prompts.jsonl", lines=True)["prompt"].to_list() == prompts
    rows = pd.read_parquet(tmp_path / "prompts.parquet")
    assert [message["content"] for messages in rows["prompt"] for message in messages] == prompts


def test_a_table_says_who_was_on_the_device(tmp_path: Path) -> None:
    one = replace(STANDARD, pools={"global_pool": ("cpu:0",)})
    run = SyntheticRun(layouts={"ddp:1": one}, rounds=1).write(tmp_path / "run")
    text = "\n".join(seen_on_device({"placebench": run_sides(run)[0]}))
    assert "| device of the plan | cpu:0 |" in text
    assert "| actor: share of the steps at work there | 26 % |" in text
    assert "| load in gen | " in text
