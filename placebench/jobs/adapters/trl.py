"""TRL: ranks under `accelerate launch` or `torchrun`, with vLLM in each of them, in a server apart, or without it.

GRPO and its like have no critic. Where engines are apart, `trl vllm-serve` runs beside the trainer.
"""

from collections.abc import Iterator
from pathlib import Path

from placebench.errors import Reasons
from placebench.jobs.adapter import LOGGED, TRAINER_STEP, Adapter, AskedPlacement, Beside, Settings, Training
from placebench.jobs.adapters.common import by_node, is_off, is_on
from placebench.jobs.nested import WITHIN
from placebench.jobs.scripts import Given
from placebench.spec.phases import UPDATE_ACTOR
from placebench.spec.placement import Placement, Role
from placebench.spec.text import plural

_TORCHRUN_ON_NODES = (
    *("--nproc-per-node", "{n_local}", "--node-rank", "{node_rank}"),
    *("--master-addr", "{master}", "--master-port", "{master_port}"),
)
_ACCELERATE_ON_NODES = (
    *("--machine_rank", "{node_rank}", "--main_process_ip", "{master}"),
    *("--main_process_port", "{master_port}"),
)
_MODEL = ("model_name_or_path", "model")


def _settings(asked: AskedPlacement) -> Settings:
    reasons = Reasons()
    reasons.add(_cannot_be(asked))
    reasons.raise_any()
    placement, given = asked.placement, asked.given
    ranks = placement.pool_of(Role.ACTOR).size
    args: tuple[str, ...] = ()
    beside: tuple[Beside, ...] = ()
    if placement.has_engines:
        url = "http://localhost:{port1}"
        args = ("--use_vllm", "true", "--vllm_mode", "server", "--vllm_server_base_url", url)
        args += ("--vllm_group_port", "{port2}")
        beside = (_server(placement, given),)
    elif _uses_vllm(given):
        args = ("--vllm_mode", "colocate")
        if placement.tensor_parallel:
            args += ("--vllm_tensor_parallel_size", str(placement.tensor_parallel))
    return Settings(args, _rank_arguments(given, ranks, len(by_node(placement))), beside=beside)


def _server(placement: Placement, given: Given) -> Beside:
    engines, shared_by = placement.pool_of(Role.ROLLOUT), placement.tensor_parallel or 1
    size = ("--tensor-parallel-size", str(shared_by), "--data-parallel-size", str(engines.size // shared_by))
    command = ("trl", "vllm-serve", "--model", _model(given) or "", *size, "--port", "{port1}")
    return Beside("vllm-server", command, engines.name)


def _cannot_be(asked: AskedPlacement) -> Iterator[str]:
    """Why TRL cannot be told a placement."""
    placement, given = asked.placement, asked.given
    if placement.scaling is not None:
        yield (
            "TRL's own configuration (DDP, FSDP, DeepSpeed) decides how a model is sharded or replicated; nearest:"
            " standard"
        )
        return
    pools = {placement.roles[role] for role in Role if role is not Role.ROLLOUT}
    if len(pools) > 1:
        yield (
            "TRL's trainers have no critic, and keep reference and reward in the trainer's ranks; nearest: standard, or"
            " learners:L+engines:E"
        )
    if placement.staleness or placement.inflight_updates:
        yield (
            "TRL's trainers generate with the weights that they have just trained; leave staleness and"
            " inflight_updates out"
        )
    if placement.has_engines:
        if len(by_node(placement)) > 1:
            yield "placebench starts vLLM's server beside TRL's ranks on one node; nearest: standard, or fewer devices"
        if asked.kind == "cpu":
            yield "TRL sends weights to a vLLM server by NCCL, which needs GPUs; nearest: standard"
        if _model(given) is None:
            yield "vLLM's server needs the model, which the command does not name: add --model_name_or_path to it"
    elif (placement.tensor_parallel or 1) > 1 and not _uses_vllm(given):
        yield "only vLLM has engines of several devices: add --use_vllm true to the command"
    ranks = placement.pool_of(Role.ACTOR).size
    if ranks > 1 and asked.kind == "cpu" and _is_accelerate(given):
        yield "without GPUs accelerate launch starts a single rank: begin the command with torchrun"
    if ranks > 1 and not _rank_arguments(given, ranks, 1) and not any("{n_ranks}" in word for word in given.command):
        yield (
            f"the command starts one rank, and {plural(ranks, 'device')} need one each: begin it with accelerate"
            " launch or torchrun, or write {n_ranks} in it where the number of ranks belongs"
        )


def _rank_arguments(given: Given, ranks: int, nodes: int) -> tuple[str, ...]:
    """What tells the launcher of ranks how many there are, and of which nodes; nothing where there is no launcher."""
    if any("{n_ranks}" in word for word in given.command):
        return ()
    if Path(given.command[0]).name == "torchrun":
        return ("--nproc-per-node", str(ranks)) if nodes == 1 else ("--nnodes", str(nodes), *_TORCHRUN_ON_NODES)
    if not _is_accelerate(given):
        return ()
    on_nodes = ("--num_machines", str(nodes), *_ACCELERATE_ON_NODES) if nodes > 1 else ()
    return ("--num_processes", str(ranks), *on_nodes)


def _is_accelerate(given: Given) -> bool:
    return Path(given.command[0]).name == "accelerate" and given.command[1:2] == ("launch",)


def _uses_vllm(given: Given) -> bool:
    return is_on(given.settings.get("use_vllm", "false"))


def _model(given: Given) -> str | None:
    return given.told(*_MODEL)


def _training(given: Given) -> Training | None:
    """GRPO in bfloat16 that makes an optimizer step of all that it has generated, whole models trained."""
    model, size = _model(given), given.number("per_device_train_batch_size")
    others = ("no_bf16", "steps_per_generation", "generation_batch_size", "num_iterations")
    is_plain = is_on(given.said.get("bf16", "true")) and given.said.keys().isdisjoint(others)
    is_plain = is_plain and all(is_off(given.said.get(key, "false")) for key in ("use_peft", "fp16"))
    if not model or not size or not is_plain:
        return None
    steps = given.number("gradient_accumulation_steps") if "gradient_accumulation_steps" in given.said else 1
    # Passes of the reference and of the old policy have one name with it, so that theirs cannot be told apart.
    return Training(model, frozenset({UPDATE_ACTOR}), size * steps if steps else None, per_rank=True)


TRL = Adapter(
    name="trl",
    reading="a script with GRPOTrainer or its like, whose arguments TrlParser reads",
    example=("accelerate", "launch", "train.py", "--model_name_or_path", "MODEL", "--use_vllm", "true"),
    settings=_settings,
    limits=lambda steps: ("--max_steps", str(steps)),
    quiet=(
        *("--logging_steps", "1"),
        *("--save_strategy", "no"),
        *("--eval_strategy", "no"),
        *("--report_to", "none"),
        *("--disable_tqdm", "true"),
        *("--output_dir", "{folder}/out"),
    ),
    timers={
        "step": "step",
        TRAINER_STEP: TRAINER_STEP,
        LOGGED: LOGGED,
        "training_step": "update_actor",
        "optimizer_step": "update_actor",
        "_prepare_inputs": "",
        "vLLM.generate": "gen",
        "transformers.generate": "gen",
        "transformers.generate_batch": "gen",
        "sync_weights": "update_weights",
        "_calculate_rewards": "reward",
        # Within the loss it is a part of the update.
        f"_prepare_inputs{WITHIN}_get_per_token_logps_and_entropies": "old_log_prob",
        "testing": "testing",
        "save_checkpoint": "save_checkpoint",
    },
    training=_training,
    log_format="trl",
    settled=("trl-step-time",),
    notes=(
        "Each of TRL's ranks draws responses of its own, so placements with different numbers of ranks do different"
        " work.",
    ),
)
