"""What a user's command and its scripts say before they run."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from placebench.jobs.scripts import Given, missing_script


@pytest.mark.parametrize(
    ("line", "danger"),
    [
        ("pkill -9 python", "pkill"),
        ("  sudo killall ray", "killall"),
        ("ray stop --force; echo done", "ray stop"),
        ("if x; then ray  stop; fi", "ray stop"),
        ("kill -9 -1", "kill -9 -1"),
        ("# pkill python", None),
        ("echo 1  # pkill python", None),
        ("python skillall.py --pkilled", None),
        ("ray start --head", None),
        ("kill $PID", None),
    ],
)
def test_scripts_that_end_others_are_known(line: str, danger: str | None) -> None:
    found = list(Given(("bash", "run.sh"), {"run.sh": f"#!/bin/bash\n{line}\n"}).dangers)
    assert [re.findall("'(.*?)'", one)[0] for one in found] == ([danger] if danger else [])
    assert all(one.startswith("run.sh, line 2: ") for one in found)


def test_settings_of_configuration_files_come_before_those_of_the_command() -> None:
    files = {
        "a.yaml": "actor: {backend: 'fsdp:d4', path: $HOME, none: null}\nsizes: [1]\nuse_vllm: true\n",
        "b.toml": "[inference.vllm]\ntensor_parallel_size = 2\n",
        "odd.yaml": "!!python/object:odd {a: 1",
        "odd.toml": "= 1",
        "list.yml": "- 1",
    }
    found = Given(("python", "train.py", *files, "use_vllm=false"), files)
    assert found.settings == {
        "actor.backend": "fsdp:d4",
        "actor.none": "None",
        "use_vllm": "false",
        "inference.vllm.tensor_parallel_size": "2",
    }


@given(st.text(), st.sampled_from([".yaml", ".toml"]))
@example("!!timestamp x", ".yaml")
@example("a: 2024-13-45", ".yaml")
@example(f"a: 0x{'f' * 9000}", ".yaml")
@example("a: &a {b: *a}", ".yaml")
def test_no_configuration_file_is_in_the_way(text: str, suffix: str) -> None:
    assert "use_vllm" in Given(("train", f"a{suffix}", "use_vllm=1"), {f"a{suffix}": text}).settings


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("train.py --use_vllm --model_name_or_path a/b", {"use_vllm": "true", "model_name_or_path": "a/b"}),
        ("train.py --use_peft", {"use_peft": "true"}),
        ("train.py --use_peft \\\n  --fp16 \\\n  false\n", {"use_peft": "true", "fp16": "false"}),
        ('train.py --use_peft "$@"', {"use_peft": "true"}),
        ('train.py --use_peft "${MORE[@]}"', {"use_peft": "true"}),
        ("train.py --use_peft {args}", {"use_peft": "true"}),
        ("MORE=(--use_peft --seed 3)", {"use_peft": "true", "seed": "3"}),
        ("train.py --use_peft && echo done", {"use_peft": "true"}),
        ("train.py --use_peft -q --seed -1", {"use_peft": "true", "seed": "-1"}),
        ("train.py '--use_peft' --lr=-1e-5", {"use_peft": "true", "lr": "-1e-5"}),
        ("train.py --use-peft $MORE", {}),
        ("train.py --save-dir '' --name=", {}),
        ("train.py --use_peft --use_peft false", {"use_peft": "false"}),
    ],
)
def test_flags_without_a_value_are_true(text: str, settings: dict[str, str]) -> None:
    found = Given(("bash", "run.sh"), {"run.sh": text}).settings
    assert {key: value for key, value in found.items() if key != "MORE"} == settings


def test_of_a_program_only_values_are_settings() -> None:
    program = """
'''Usage: train.py --use_peft --model_name_or_path a/b'''
config = GRPOConfig(bf16=True, learning_rate=1e-6, loss_type="grpo", num_iterations=args.iterations)
trainer = GRPOTrainer(model=model, reward_funcs=reward)
"""
    found = Given(("python", "train.py"), {"train.py": program})
    assert found.settings == {"bf16": "True", "learning_rate": "1e-6", "loss_type": "grpo"}
    assert {"model", "num_iterations"} <= found.said.keys()
    assert found.told("bf16", "model") is None


def test_flags_are_those_of_shell_scripts_and_the_command() -> None:
    scripts = {
        "run.sh": "# --no-comment\npython train.py --colocate \\\n --save $OUT --rate=1\n",
        "train.py": "parser.add_argument('--other')\n",
    }
    found = Given(("bash", "run.sh", "train.py", "--last"), scripts)
    assert found.flags == {"colocate", "save", "rate", "last"}
    assert found.starts(r"\btrain\b")
    assert not found.starts("add_argument")


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("bash run.sh", "run.sh"),
        ("bash there.sh x.py", None),
        ("bash on-path.sh", None),
        ("bash -c run.sh", None),
        ("bash", None),
        ("bash {folder}/run.sh", None),
        ("python -u train.py train2.py", "train.py"),
        ("python there.py other.py", None),
        ("python -m train other.py", None),
        ("python -c code other.py", None),
        ("/usr/bin/torchrun --standalone sub/train.py", "sub/train.py"),
        ("accelerate launch --config_file ds.yaml train.py", "train.py"),
        ("accelerate launch --module train reward.path=a.py", None),
        ("python x reward.path=a.py", None),
        ("docker run image python train.py", None),
    ],
)
def test_a_script_that_is_not_there_is_found(tmp_path: Path, command: str, missing: str | None) -> None:
    for name in ("there.sh", "there.py", "bin/on-path.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert missing_script(command.split(), tmp_path, str(tmp_path / "bin")) == missing


def test_settings_of_scripts_are_read() -> None:
    script = """
# data.train_batch_size=1
python -m verl.trainer.main_ppo \\
  data.train_batch_size=64 \\
  "actor_rollout_ref.rollout.n=4" \\
  data.max_length=$LENGTH --model_name_or_path Qwen/Qwen2.5-7B "$@"
"""
    found = Given(("bash", "run.sh", "trainer.nnodes=2", "++data.train_batch_size=32"), {"run.sh": script})
    assert found.settings["data.train_batch_size"] == "32"
    assert found.settings["model_name_or_path"] == "Qwen/Qwen2.5-7B"
    assert "data.max_length" not in found.settings
    assert found.number("nothing", "actor_rollout_ref.rollout.n") == 4
