"""What of a framework depends on the user's command or on several nodes; docs/jobs has the settings of each word."""

import json
import re
import shlex
from pathlib import Path

import pytest
from fake_jobs import write
from told_settings import job, launch, reasons, settings

from placebench.jobs.registry import ADAPTERS
from placebench.jobs.usable import unusable
from placebench.logs.registry import DIALECTS, format_named
from placebench.spec.shapes import PRESETS

OPENRLHF = "python -m openrlhf.cli.train_ppo_ray"
SKYRL = "python -m skyrl.train.entrypoints.main_base"
FULLY = "python -m examples.train.fully_async.main_fully_async"
AREAL = "python rl.py --config grpo.yaml actor.backend=fsdp:d8 rollout.backend=vllm:d4t2"
AHEAD = "/staleness=1/inflight_updates=true"
THREE = "pools: {a: [2], c: [1], e: [1]}\nroles: {actor: a, ref: a, critic: c, reward: c, rollout: e}\n"
ON_GPUS = [name for name in ADAPTERS if name not in ("verl", "trl", "command")]
EXAMPLES = {name: shlex.join(adapter.example) for name, adapter in ADAPTERS.items()}


def test_every_framework_whose_log_is_read_can_be_started() -> None:
    frameworks = {dialect.framework.lower() for dialect in DIALECTS} - {"placebench"}
    assert frameworks == ADAPTERS.keys() - {"command"}


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_framework_s_log_has_a_reader_that_calls_its_timers_alike(name: str) -> None:
    adapter = ADAPTERS[name]
    if adapter.log_format is None:
        return
    dialect = format_named(adapter.log_format).dialect
    if dialect is None:
        assert adapter.log_format == "jsonl"  # of several frameworks
        return
    assert dialect.framework.lower() == name
    phases = {timer: phase for timer, phase in dialect.timing.phases.items() if timer in adapter.timers}
    assert phases.items() <= adapter.timers.items()


@pytest.mark.parametrize("name", ON_GPUS)
def test_frameworks_that_need_gpus_say_so(name: str) -> None:
    assert "trains only on GPUs; name some with --devices" in reasons(
        name, EXAMPLES[name], f"learners:1+engines:1{AHEAD}", 2, kind="cpu"
    )


@pytest.mark.parametrize(
    ("name", "command", "word", "expected"),
    [
        ("openrlhf", OPENRLHF, "standard", "--actor.num_nodes 2 --actor.num_gpus_per_node 8"),
        ("skyrl", SKYRL, "standard", "policy_num_nodes=2 trainer.placement.policy_num_gpus_per_node=8"),
        (
            "open-instruct",
            EXAMPLES["open-instruct"],
            "learners:8,4+engines:2xtp2/staleness=2",
            "--num_learners_per_node 8 4 --single_gpu_mode=False --vllm_num_engines=2 --vllm_tensor_parallel_size=2",
        ),
        (
            "nemo-rl",
            EXAMPLES["nemo-rl"],
            "learners:8+engines:4xtp2",
            "++cluster.gpus_per_node=8 ++cluster.num_nodes=2 ++policy.generation.colocated.enabled=false"
            " ++policy.generation.colocated.resources.gpus_per_node=8"
            " ++policy.generation.colocated.resources.num_nodes=1",
        ),
        (
            "slime",
            "python train.py",
            "learners:8+engines:4xtp2",
            "--actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-num-gpus 8 --rollout-num-gpus-per-engine 2",
        ),
        ("areal", AREAL, "learners:8+engines:4xtp2", "++cluster.n_nodes=2 ++cluster.n_gpus_per_node=8"),
    ],
)
def test_nodes_are_counted(name: str, command: str, word: str, expected: str) -> None:
    assert expected in settings(name, command, word, 8, 8)


@pytest.mark.parametrize(
    ("name", "command", "expected"),
    [
        (
            "openrlhf",
            OPENRLHF,
            "--reward.num_gpus_per_node 1 --vllm.num_engines 1 --vllm.tensor_parallel_size 1"
            " --train.colocate_actor_ref --train.colocate_critic_reward",
        ),
        (
            "skyrl",
            f"{SKYRL} trainer.critic.model.path=MODEL",
            "trainer.placement.critic_num_nodes=1 trainer.placement.critic_num_gpus_per_node=1"
            " generator.inference_engine.num_engines=1",
        ),
        (
            "areal",
            f"{AREAL} critic.path=MODEL rollout.backend=vllm:d4",
            "++critic.backend=fsdp:d1 ++critic.scheduling_strategy.type=separation"
            " ++critic.scheduling_strategy.target=null",
        ),
    ],
)
def test_actor_critic_and_engines_can_be_three_pools(tmp_path: Path, name: str, command: str, expected: str) -> None:
    assert expected in settings(name, command, str(write(tmp_path, "three.yaml", THREE)), 4)


def test_areal_has_a_critic_apart_with_engines_beside_the_actor() -> None:
    told = settings(
        "areal", "python rl.py actor.backend=fsdp:d2t2 rollout.backend=vllm:d4 critic.path=M", "split:4+2", 6
    )
    assert "++actor.backend=fsdp:d2t2 ++rollout.backend=vllm:d4" in told
    assert "++critic.backend=fsdp:d1t2 ++critic.scheduling_strategy.type=separation" in told


@pytest.mark.parametrize(
    ("name", "command", "word", "nodes", "reason"),
    [
        ("openrlhf", OPENRLHF, "standard", (4, 2), "global_pool has 4, 2 devices on its nodes"),
        ("openrlhf", f"{OPENRLHF} --vllm.tensor_parallel_size 2", "standard", (3,), "do not divide the 3 devices"),
        (
            "openrlhf",
            f"{OPENRLHF} --train.colocate_all --algo.advantage.estimator rloo --reward.remote_url $URL",
            "learners:1+engines:1",
            (2,),
            "the command gives --train.colocate_all, which no argument can undo",
        ),
        ("openrlhf", OPENRLHF, "learners:1+engines:1/inflight_updates=true", (2,), "add staleness=1"),
        ("skyrl", f"{SKYRL} generator.inference_engine.data_parallel_size=2", "standard", (3,), "engines of 2 devices"),
        (
            "skyrl",
            f"{SKYRL} trainer.critic.model.path=M",
            "learners:1+engines:1",
            (2,),
            "SkyRL gives the critic its own, too",
        ),
        ("skyrl", FULLY, "learners:1+engines:1", (2,), "say staleness=K/inflight_updates=true"),
        ("skyrl", FULLY, "standard", (2,), "whose engines have devices of their own"),
        (
            "skyrl",
            f"{FULLY} trainer.policy_mini_batch_size=8 trainer.fully_async.num_parallel_generation_workers=32",
            f"learners:1+engines:1{AHEAD}",
            (2,),
            "num_parallel_generation_workers (32) must be from 8 (the mini-batch) to 16",
        ),
        ("open-instruct", "python grpo_fast.py grpo.yaml", "standard/staleness=1", (1,), "after a YAML file"),
        ("nemo-rl", "python run_ppo.py", "standard", (2,), "does not know the settings of NeMo-RL's PPO"),
        ("nemo-rl", EXAMPLES["nemo-rl"], "learners:4,2+engines:2", (4, 4), "gives generation whole nodes"),
        ("nemo-rl", EXAMPLES["nemo-rl"], "learners:1+engines:1/inflight_updates=true", (2,), "add staleness=1"),
        ("slime", "python train.py --colocate", "learners:1+engines:1", (2,), "which no argument can undo"),
        ("areal", "python rl.py", "standard", (2,), "actor.backend is not known"),
        (
            "areal",
            "python rl.py actor.backend=megatron:(attn:d2|ffn:d2)",
            "standard",
            (2,),
            "actor.backend is not known",
        ),
        (
            "areal",
            "python rl.py actor.backend=fsdp:d1t4 rollout.backend=vllm:d2",
            "standard",
            (2,),
            "replicas of 4 devices",
        ),
        ("areal", AREAL, "standard", (8,), "give engines one device each"),
        ("areal", "python rl.py actor.backend=fsdp:d0", "standard", (2,), "actor.backend is not known"),
        ("areal", f"{AREAL} critic.backend=fsdp:d1t4", "learners:2+engines:2", (4,), "replicas of 4 devices (critic"),
        ("prime-rl", EXAMPLES["prime-rl"], f"learners:2+engines:2{AHEAD}", (2, 2), "name devices of one node"),
    ],
)
def test_what_a_command_or_its_nodes_do_not_allow(
    name: str, command: str, word: str, nodes: tuple[int, ...], reason: str
) -> None:
    assert reason in reasons(name, command, word, *nodes)


def test_openrlhf_without_critic_and_reward_model_has_engines_apart() -> None:
    command = f"{OPENRLHF} --algo.advantage.estimator group_norm --reward.remote_url $URL"
    assert settings("openrlhf", command, "learners:2+engines:2", 4).endswith("--train.colocate_actor_ref")


def test_no_two_pools_share_what_a_framework_keeps_apart(tmp_path: Path) -> None:
    with_engines = write(
        tmp_path, "e.yaml", "pools: {a: [1], b: [1]}\nroles: {actor: a, ref: a, critic: b, reward: b, rollout: b}\n"
    )
    scorers = write(
        tmp_path,
        "s.yaml",
        "pools: {a: [1], b: [1], e: [1]}\nroles: {actor: a, ref: b, critic: b, reward: b, rollout: e}\n",
    )
    critic = " trainer.critic.model.path=M"
    assert "leave only rollout in b" in reasons("openrlhf", OPENRLHF, str(with_engines), 2)
    assert "leave only ref in b" in reasons("openrlhf", OPENRLHF, str(scorers), 3)
    assert "put ref into the actor's pool" in reasons("skyrl", SKYRL + critic, str(scorers), 3)
    assert "leave only critic in b" in reasons("areal", f"{AREAL} critic.path=M ref.path=M", str(scorers), 3)


def test_a_configuration_file_says_what_the_command_leaves_out(tmp_path: Path) -> None:
    write(tmp_path, "ppo.yaml", "actor: {backend: 'fsdp:d8'}\nrollout: {backend: 'sglang:d8'}\ncritic: {path: M}\n")
    write(tmp_path, "rl.toml", "[inference.vllm]\ntensor_parallel_size = 2\n")
    areal = job("areal", "python rl.py --config ppo.yaml", tmp_path).settings_of("standard", (2,), "gpu")
    assert "++critic.scheduling_strategy.target=actor" in areal.args
    file = write(tmp_path, "two.yaml", f"{THREE.replace('c: [1], ', '').replace(': c', ': a')}staleness: 1\n")
    file.write_text(f"{file.read_text()}inflight_updates: true\n".replace("e: [1]", "e: [2]"))
    prime = job("prime-rl", "rl @ rl.toml", tmp_path).settings_of(str(file), (4,), "gpu")
    assert shlex.join(prime.args).endswith(
        "--inference.vllm.tensor-parallel-size 2 --orchestrator.max-off-policy-steps 1"
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "--skip-eval-before-train --wandb-mode disabled"),
        (
            "--eval-interval 5 --save-interval $EVERY --save /mine",
            "--skip-eval-before-train --wandb-mode disabled --eval-interval 1000000000 --save-interval 1000000000"
            " --save /run/checkpoints",
        ),
    ],
)
def test_what_a_command_asks_for_beside_training_is_switched_off(flags: str, expected: str) -> None:
    found = launch(job("slime", f"python train.py {flags}"), "standard", 2)
    assert shlex.join(found.command).endswith(f"--colocate --num-rollout 11 {expected}")
    loud = launch(job("slime", f"python train.py {flags}", quiet=False), "standard", 2)
    assert shlex.join(loud.command).endswith("--colocate --num-rollout 11")


@pytest.mark.parametrize("name", ["verl", "nemo-rl", "areal"])
def test_hydra_is_given_paths_in_quotes(name: str) -> None:
    """Without them it takes no path with an equals sign, as a folder of staleness=1 has."""
    paths = [word for word in ADAPTERS[name].quiet if "{folder}" in word]
    assert paths
    assert all(re.fullmatch(r'[\w.+]+="[^"]+"', word) for word in paths)


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_script_that_takes_no_arguments_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, "run.sh", f"{EXAMPLES[name]}\n")
    (reason,) = unusable(job(name, "bash run.sh", tmp_path, quiet=False))
    assert reason.startswith(f"command: run.sh takes no arguments, and those of --job {name} would be lost")


TRAINED = "--model_name_or_path model --per_device_train_batch_size 4 --gradient_accumulation_steps 8"
PPO = (
    "actor_rollout_ref.model.path=model critic.model.path=model data.train_batch_size=64 actor_rollout_ref.rollout.n=2"
)

EVERY = {"old_log_prob", "ref", "values", "update_critic", "update_actor"}


@pytest.mark.parametrize(
    ("name", "options", "sequences", "phases"),
    [
        ("trl", TRAINED, 4 * 8 * 2, {"update_actor"}),
        ("trl", f"{TRAINED} --use_peft true", None, None),
        ("trl", f"{TRAINED} --use_peft", None, None),
        ("trl", f"--use_peft {TRAINED}", None, None),
        ("trl", f"{TRAINED} --use_peft False --fp16 no", 4 * 8 * 2, {"update_actor"}),
        ("trl", f"{TRAINED} --bf16 false", None, None),
        ("trl", f"{TRAINED} --bf16 True", 4 * 8 * 2, {"update_actor"}),
        ("trl", f"{TRAINED} --bf16", 4 * 8 * 2, {"update_actor"}),
        ("trl", "--model_name_or_path model", None, None),
        ("trl", f"{TRAINED} --gradient_accumulation_steps $MORE", None, {"update_actor"}),
        ("verl", PPO, 128, EVERY),
        ("verl", f"{PPO} algorithm.adv_estimator=grpo", 128, {"old_log_prob", "ref", "update_actor"}),
        ("verl", f"{PPO} critic.ppo_epochs=4", 128, {"old_log_prob", "ref", "values", "update_actor"}),
        ("verl", f"{PPO} actor_rollout_ref.rollout.n=${{N:-4}} actor_rollout_ref.actor.ppo_epochs=2", None, EVERY),
        ("verl", f"{PPO} actor_rollout_ref.actor.ppo_epochs=$EPOCHS", None, None),
        ("verl", f"{PPO} actor_rollout_ref.model.lora_rank=8", None, None),
        ("verl", f"{PPO} actor_rollout_ref.model.lora_rank=0 critic.model.lora_path=NULL", 128, EVERY),
        ("verl", f"{PPO} actor_rollout_ref.actor.fsdp_config.dtype=float32", None, None),
        ("verl", f"{PPO} actor_rollout_ref.model.path=elsewhere", 128, EVERY),
        ("command", TRAINED, None, None),
    ],
)
def test_what_a_step_computes_is_known_where_the_command_says_all_of_it(
    tmp_path: Path, name: str, options: str, sequences: int | None, phases: set[str] | None
) -> None:
    write(tmp_path / "model", "config.json", json.dumps(PRESETS["tiny"].config() | {"model_type": "qwen2"}))
    found = job(name, f"torchrun train.py {options}", tmp_path)
    work, shapes = found.record.work, found.shapes
    assert launch(found, "standard", 2).sequences == sequences
    if phases is None or "elsewhere" in options:
        assert shapes is None
        assert (work is None) == (phases is None)
        return
    assert shapes
    assert work
    assert {*work.phases} == phases
    assert shapes.actor.parameters == PRESETS["tiny"].parameters
    mine = job(name, f"torchrun train.py {options}", tmp_path, placements={"standard": {"args": "--lr 1"}})
    assert mine.record.work is None
