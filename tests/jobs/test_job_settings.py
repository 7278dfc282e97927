"""Placement words → what a framework is told, as text; and why it cannot be told others."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from fake_jobs import write
from hypothesis import example, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from told_settings import job, launch, reasons, settings

from placebench.errors import Reasons, UsageError
from placebench.jobs.command_lines import shell_lines, with_args
from placebench.jobs.registry import ADAPTERS
from placebench.jobs.spec import NAMES, JobSpec, fill, literal
from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.devices import Kind

PPO = "python -m verl.trainer.main_ppo"
GRPO = "accelerate launch --config_file ds.yaml train.py --config grpo.yaml --model_name_or_path Qwen/Qwen2.5-7B"


@pytest.mark.parametrize(
    ("word", "nodes", "expected"),
    [
        ("standard", (8,), "++trainer.n_gpus_per_node=8 ++trainer.nnodes=1"),
        ("standard", (8, 8), "++trainer.n_gpus_per_node=8 ++trainer.nnodes=2"),
        ("split", (4,), "++trainer.n_gpus_per_node=2 ++trainer.nnodes=1"),
        ("split:3+1", (4,), "++trainer.n_gpus_per_node=3 ++trainer.nnodes=1"),
        ("split@nodes", (8, 8, 8), "++trainer.n_gpus_per_node=8 ++trainer.nnodes=2"),
        (
            "learners:2+engines:1xtp2",
            (4,),
            "++trainer.n_gpus_per_node=2 ++trainer.nnodes=1 ++trainer.v1.trainer_mode=separate_async"
            " ++trainer.v1.separate_async.parameter_sync_step=1 ++trainer.v1.separate_async.num_warmup_batches=0"
            " ++actor_rollout_ref.hybrid_engine=False ++actor_rollout_ref.rollout.nnodes=1"
            " ++actor_rollout_ref.rollout.n_gpus_per_node=2"
            " ++actor_rollout_ref.rollout.tensor_model_parallel_size=2"
            " ++actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
        ),
    ],
)
def test_verl_is_told_a_placement_by_its_own_settings(word: str, nodes: tuple[int, ...], expected: str) -> None:
    assert settings("verl", PPO, word, *nodes) == expected


def test_verl_runs_ahead_by_warm_up_batches() -> None:
    ahead = settings("verl", PPO, "learners:2+engines:2/staleness=3", 4)
    assert ahead == settings("verl", PPO, "learners:2+engines:2", 4).replace("warmup_batches=0", "warmup_batches=3")


@pytest.mark.parametrize("overlap", ["none", "updates", "all"])
def test_verl_is_told_a_critic_apart_by_a_module(overlap: str) -> None:
    found = job("verl", PPO).settings_of(f"split:3+1/overlap={overlap}", (4,), "gpu")
    assert found.env["VERL_USE_EXTERNAL_MODULES"] == "placebench_verl"
    assert found.env["PLACEBENCH_PLACEMENT"] == (
        '{"pools": {"actor_pool": [3], "critic_pool": [1]}, "roles": {"actor": "actor_pool", "critic": "critic_pool",'
        f' "ref": "actor_pool"}}, "overlap": "{overlap}"}}'
    )
    assert not job("verl", PPO).settings_of("standard", (4,), "gpu").env


def test_verl_gives_a_reward_model_a_pool_of_its_own(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "reward.yaml",
        "pools: {main: [3], judge: [1]}\nroles: {actor: main, rollout: main, ref: main, critic: main, reward: judge}\n",
    )
    with_model = f"{PPO} reward.reward_model.enable=True"
    assert settings("verl", with_model, str(file), 4).endswith(
        "++reward.reward_model.enable_resource_pool=True ++reward.reward_model.n_gpus_per_node=1"
        " ++reward.reward_model.nnodes=1"
    )
    assert "judge would be idle: the command does not set reward.reward_model.enable=True" in reasons(
        "verl", PPO, str(file), 4
    )
    assert "verl puts a reward model beside the actor or in a pool of its own" in reasons(
        "verl", with_model, "split", 4
    )


@pytest.mark.parametrize(
    ("command", "word", "nodes", "reason"),
    [
        (PPO, "ddp:2", (2,), "has no replicas of whole ones; nearest: standard"),
        (PPO, "standard/staleness=1", (2,), "nearest: learners:L+engines:E/staleness=1"),
        (PPO, "learners:1+engines:1/inflight_updates=true", (2,), "leave inflight_updates out"),
        (
            PPO,
            "learners:1+engines:1/overlap=none",
            (2,),
            "verl takes overlap=none only without engines in a pool of their own",
        ),
        (PPO, "standard", (4, 2), "global_pool has 4, 2 devices on its nodes"),
        (f"{PPO} algorithm.adv_estimator=grpo", "split", (2,), "adv_estimator=grpo trains no critic"),
        (
            f"{PPO} data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=32",
            "learners:1+engines:1",
            (2,),
            "data.train_batch_size (64) must equal actor_rollout_ref.actor.ppo_mini_batch_size (32)",
        ),
        (f"{PPO} critic.ppo_mini_batch_size=8", "split:1+3", (4,), "critic_pool do not divide the critic's mini-batch"),
        (f"{PPO} actor_rollout_ref.rollout.tensor_model_parallel_size=2", "standard", (3,), "engines of 2 devices"),
        (PPO, "spilt", (2,), "unknown placement 'spilt': use standard"),
        (PPO, "split:9+9", (2,), "needs 18 devices"),
    ],
)
def test_verl_cannot_be_told_everything(command: str, word: str, nodes: tuple[int, ...], reason: str) -> None:
    assert reason in reasons("verl", command, word, *nodes)


def test_an_unknown_name_is_told_with_those_of_the_job_file() -> None:
    mine = job("command", "python train.py", placements={"slow": {"args": 0.5}, "fast": {"args": [0.3]}})
    with pytest.raises(UsageError) as refused:
        mine.placement("Fast", (2,), "cpu")
    assert str(refused.value) == (
        "unknown placement 'Fast': use slow, fast of the job file, or one that placebench placements lists; did you"
        " mean 'fast'?"
    )
    assert mine.settings_of("slow", (2,), "cpu").args == ("0.5",)
    assert mine.settings_of("fast", (2,), "cpu").args == ("0.3",)


def test_every_reason_against_a_placement_is_told(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "odd.yaml",
        "pools: {a: [1, 2], r: [1, 0]}\nroles: {actor: a, rollout: a, ref: r, critic: a, reward: a}\nstaleness: 1\n",
    )
    assert len(reasons("verl", PPO, str(file), 2, 2).splitlines()) == 3


@pytest.mark.parametrize(
    ("command", "word", "nodes", "expected"),
    [
        (GRPO, "standard", (8,), "--num_processes 8"),
        (f"{GRPO} --use_vllm true", "standard", (8,), "--num_processes 8 --vllm_mode colocate"),
        (f"{GRPO} --use_vllm", "standard", (8,), "--num_processes 8 --vllm_mode colocate"),
        (f"{GRPO} --use_vllm=True", "standard", (1,), "--num_processes 1 --vllm_mode colocate"),
        ("torchrun train.py", "standard", (2,), "--nproc-per-node 2"),
        ("mylauncher --ranks {n_ranks} train.py", "standard", (2,), ""),
        ("python train.py", "standard", (1,), ""),
        (
            GRPO,
            "learners:6+engines:1xtp2",
            (8,),
            "--num_processes 6 --use_vllm true --vllm_mode server --vllm_server_base_url 'http://localhost:{port1}'"
            " --vllm_group_port '{port2}'",
        ),
    ],
)
def test_trl_is_told_a_placement(command: str, word: str, nodes: tuple[int, ...], expected: str) -> None:
    assert settings("trl", command, word, *nodes) == expected


def test_the_model_that_trl_serves_is_not_a_variable_of_its_program(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "trainer = GRPOTrainer(model=model, reward_funcs=reward)\ntrainer.train()\n")
    with pytest.raises(UsageError, match="the command does not name: add --model_name_or_path"):
        job("trl", "accelerate launch train.py", tmp_path).placement("learners:1+engines:1", (2,), "gpu")
    named = job("trl", "accelerate launch train.py --use_vllm --model_name_or_path Qwen/Q", tmp_path)
    (server,) = launch(named, "learners:1+engines:1", 2).companions
    assert server.command[:4] == ("trl", "vllm-serve", "--model", "Qwen/Q")


def test_trl_has_its_engines_served_beside_it() -> None:
    found = launch(job("trl", GRPO), "learners:6+engines:1xtp2", 8)
    (server,) = found.companions
    assert shlex.join(server.command) == (
        "trl vllm-serve --model Qwen/Qwen2.5-7B --tensor-parallel-size 2 --data-parallel-size 1 --port 9001"
    )
    assert server.env["CUDA_VISIBLE_DEVICES"] == "6,7"
    assert found.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5"
    assert shlex.join(found.command) == (
        "accelerate launch --config_file ds.yaml --num_processes 6 train.py --config grpo.yaml --model_name_or_path"
        " Qwen/Qwen2.5-7B --use_vllm true --vllm_mode server --vllm_server_base_url http://localhost:9001"
        " --vllm_group_port 9002 --max_steps 10 --logging_steps 1 --save_strategy no --eval_strategy no"
        " --report_to none --disable_tqdm true --output_dir /run/out"
    )
    first, second = shell_lines(found)
    assert first.endswith("--port 9001 &")
    assert second.startswith(f"cd {Path.cwd()} && env CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1,2,3,4,5 ")


@pytest.mark.parametrize(
    ("command", "word", "nodes", "kind", "reason"),
    [
        (GRPO, "split", (2,), "gpu", "TRL's trainers have no critic"),
        (GRPO, "ddp:2", (2,), "gpu", "TRL's own configuration (DDP, FSDP, DeepSpeed) decides"),
        (GRPO, "standard/staleness=1", (2,), "gpu", "generate with the weights that they have just trained"),
        (GRPO, "learners:2+engines:2", (2, 2), "gpu", "starts vLLM's server beside TRL's ranks on one node; nearest"),
        (GRPO, "learners:1+engines:1", (2,), "cpu", "by NCCL, which needs GPUs"),
        ("accelerate launch train.py", "learners:1+engines:1", (2,), "gpu", "add --model_name_or_path"),
        ("python train.py", "standard", (2,), "gpu", "the command starts one rank, and 2 devices need one each"),
        (
            "accelerate launch train.py",
            "standard",
            (2,),
            "cpu",
            "without GPUs accelerate launch starts a single rank: begin the command",
        ),
    ],
)
def test_trl_cannot_be_told_everything(
    command: str, word: str, nodes: tuple[int, ...], kind: Kind, reason: str
) -> None:
    assert reason in reasons("trl", command, word, *nodes, kind=kind)


def test_a_plain_command_has_the_placements_that_the_job_names() -> None:
    placements = {"standard": {"args": "--all"}, "two": {"args": ["--pair", "a b"], "pools": {"left": 1, "right": 1}}}
    asked = job("command", "run {args} --end", placements=placements)
    assert launch(asked, "standard", 4, kind="cpu").command == ("run", "--all", "--end")
    assert launch(asked, "two", 4, kind="cpu").command == ("run", "--pair", "a b", "--end")
    assert [pool.counts for pool in asked.placement("two", (4,), "cpu").pools] == [(1,), (1,)]
    assert asked.placement("standard", (4,), "cpu").roles == {}
    for word in ("split", "mine"):
        assert "does not know how to give this placement to a plain command" in reasons(
            "command", "run", word, 2, kind="cpu"
        )
    refused = Reasons()
    assert len(asked.placements("two,standard,two,,three", [4], "cpu", refused)) == 2
    assert len(refused.lines) == 3
    with pytest.raises(UsageError, match="its pools need 2 devices on node 0, which has 1"):
        asked.placement("two", (1,), "cpu")


def test_arguments_go_where_a_command_says() -> None:
    placements = {"a": {"args": ["x y", "z"]}}
    inside = job("command", "bash -c 'run {args}; done'", placements=placements)
    assert launch(inside, "a", 1).command == ("bash", "-c", "run 'x y' z; done")
    assert launch(job("command", "run", placements=placements), "a", 1).command == ("run", "x y", "z")


def test_the_user_s_settings_come_last_and_lists_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    write(tmp_path / "bin", "python", "")
    asked = job(
        "verl",
        PPO,
        env={"VERL_USE_EXTERNAL_MODULES": "mine", "MINE": "{folder}/x", "RAY_DEDUP_LOGS": 1},
        python=str(tmp_path),
        placements={"split:1+1": {"args": "++trainer.nnodes=1 seed={seed}", "env": {"MINE": "{{folder}}"}}},
        seed=5,
    )
    found = launch(asked, "split:1+1", 2)
    assert found.command[-2:] == ("++trainer.nnodes=1", "seed=5")
    assert found.env["VERL_USE_EXTERNAL_MODULES"] == "mine,placebench_verl"
    assert (found.env["MINE"], found.env["RAY_DEDUP_LOGS"]) == ("{folder}", "1")
    assert found.env["PATH"].startswith(f"{tmp_path}/bin:")
    assert found.env["RAY_TMPDIR"] == "/ray"
    assert found.log_files == ("/run/metrics.jsonl",)
    assert found.ray_head is None
    quiet = launch(job("verl", PPO, quiet=False), "standard", 1)
    assert not [word for word in quiet.command if "save_freq" in word or "logger" in word]
    assert "++trainer.total_training_steps=10" in quiet.command


def test_a_ray_is_started_where_its_address_is_asked_for() -> None:
    asked = job("command", "ray job submit --address {ray_address}", ray="own")
    found = launch(asked, "standard", 1)
    assert found.ray_head == "127.0.0.1:6379"
    assert found.command[-1] == "127.0.0.1:6379"
    there = launch(job("command", "run {ray_address}", ray="head:6379"), "standard", 1)
    assert (there.command[-1], there.env["RAY_ADDRESS"], there.ray_head) == ("head:6379", "head:6379", None)


@given(st.text("{}$ax_1", max_size=12))
@example("{args}")
@example("${x}")
@example("{{x}}")
def test_a_command_that_is_to_stay_as_it_is_is_filled_with_nothing(text: str) -> None:
    assert fill(literal(text), {"x": "1", "a": "2"} | dict.fromkeys(NAMES, "3")) == text
    assert with_args([literal(text)], ["more"])[0] == literal(text)


@settings_of_hypothesis(max_examples=30)
@given(st.text(), st.dictionaries(st.sampled_from(sorted(NAMES)), st.text()))
def test_only_names_in_braces_are_filled(text: str, names: dict[str, str]) -> None:
    filled = fill(text, names)
    if "{" not in text:
        assert filled == text
    assert fill(f"a{{{{x}}}}b{text}", {})[:5] == "a{x}b"
    assert fill("${steps}", {"steps": "3"}) == "${steps}"


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=lambda adapter: adapter.name)
def test_every_framework_has_only_known_names(adapter: Any) -> None:
    where = (word for words in adapter.quiet_where.values() for word in words)
    texts = (*adapter.quiet, *where, *adapter.limits(3), *adapter.env.values(), *adapter.log_files)
    assert not {name for text in texts for name in re.findall(r"\{(\w+)\}", text)} - NAMES.keys()


def test_a_launch_that_lasts_until_the_command_ends_has_all_its_steps() -> None:
    command = {"command": ["true"]}
    assert JobSpec.model_validate(command).steps == 10
    assert JobSpec.model_validate({**command, "until_end": True}).steps == MOST_STEPS
    assert JobSpec.model_validate({**command, "until_end": True, "steps": 7}).steps == 7
