"""NeMo-RL's GRPO: generation on the training's GPUs, or on GPUs of its own, asynchronously or not."""

from collections.abc import Iterator

from placebench.jobs.adapter import Adapter, AskedPlacement, Settings
from placebench.jobs.adapters.common import (
    RAY_LINES,
    apart,
    by_node,
    is_on,
    node_count,
    per_node,
    refuse,
    shared_by,
    undivided,
    uneven,
    word,
)
from placebench.spec.placement import Placement, Role

_GENERATION = "policy.generation"
_APART = f"{_GENERATION}.colocated"
_SHARED_BY = f"{_GENERATION}.vllm_cfg.tensor_parallel_size"
# What asynchronous GRPO asks for; both change the job, so that all placements must have them.
_FOR_ASYNC = ("loss_fn.use_importance_sampling_correction", f"{_GENERATION}.vllm_cfg.async_engine")


def _settings(asked: AskedPlacement) -> Settings:
    refuse(asked, "NeMo-RL", _cannot_be(asked))
    placement = asked.placement
    args = [
        f"++cluster.gpus_per_node={max(by_node(placement))}",
        f"++cluster.num_nodes={len(by_node(placement))}",
        f"++{_APART}.enabled={word(not placement.has_engines)}",
    ]
    if placement.has_engines:
        engines = placement.pool_of(Role.ROLLOUT)
        args.append(f"++{_APART}.resources.gpus_per_node={per_node(engines)}")
        args.append(f"++{_APART}.resources.num_nodes={node_count(engines)}")
    if placement.tensor_parallel:
        args.append(f"++{_SHARED_BY}={placement.tensor_parallel}")
    args.append(f"++grpo.async_grpo.enabled={word(bool(placement.staleness))}")
    if placement.staleness:
        args.append(f"++grpo.async_grpo.max_trajectory_age_steps={placement.staleness}")
        args.append(f"++grpo.async_grpo.in_flight_weight_updates={word(placement.inflight_updates)}")
    return Settings(tuple(args))


def _cannot_be(asked: AskedPlacement) -> Iterator[str]:
    """Why NeMo-RL cannot be told a placement."""
    placement, given = asked.placement, asked.given
    if given.starts(r"\brun_ppo\b"):
        yield (
            "placebench does not know the settings of NeMo-RL's PPO; start examples/run_grpo.py, or give placements"
            " their args"
        )
    if apart(placement):
        yield (
            "NeMo-RL's GRPO trains no critic, and keeps the reference with the policy; nearest: standard, or"
            " learners:L+engines:E"
        )
    yield from uneven(placement, "NeMo-RL")
    yield from undivided(placement.pool_of(Role.ROLLOUT), shared_by(asked, _SHARED_BY), _SHARED_BY)
    if placement.has_engines and len(by_node(placement)) > 1 and _shares_nodes(placement):
        yield (
            "over several nodes NeMo-RL gives generation whole nodes with equal numbers of GPUs; give learners and"
            " engines whole nodes"
        )
    if placement.staleness:
        yield from _asynchronous(asked)
    elif placement.inflight_updates:
        yield "NeMo-RL takes weights in flight only in asynchronous GRPO; add staleness=1"


def _asynchronous(asked: AskedPlacement) -> Iterator[str]:
    placement, given = asked.placement, asked.given
    if not placement.has_engines:
        yield (
            "NeMo-RL runs ahead only if generation has GPUs of its own; nearest:"
            f" learners:L+engines:E/staleness={placement.staleness}"
        )
    if lacking := [key for key in _FOR_ASYNC if not is_on(given.settings.get(key, ""))]:
        named = " ".join(f"++{key}=true" for key in lacking)
        yield f"asynchronous GRPO needs {named}, which changes the job: add it to the command, for all placements"


def _shares_nodes(placement: Placement) -> bool:
    """Whether pools share a node, or nodes have unlike numbers of devices."""
    shared = any(sum(map(bool, counts)) > 1 for counts in zip(*(pool.counts for pool in placement.pools), strict=True))
    return shared or len(set(by_node(placement))) > 1


NEMO_RL = Adapter(
    name="nemo-rl",
    reading="python examples/run_grpo.py of NeMo-RL",
    example=("python", "examples/run_grpo.py", "--config", "examples/configs/grpo_math_1B.yaml"),
    settings=_settings,
    limits=lambda steps: (f"++grpo.max_num_steps={steps}",),
    quiet=(
        "++grpo.val_period=0",
        "++grpo.val_at_start=false",
        "++grpo.val_at_end=false",
        "++checkpointing.enabled=false",
        "++logger.wandb_enabled=false",
        "++logger.tensorboard_enabled=false",
        "++logger.mlflow_enabled=false",
        "++logger.swanlab_enabled=false",
        '++logger.log_dir="{folder}/logs"',
    ),
    env=RAY_LINES,
    # Not `total_step_time`: its workers time nothing, and a device of which a step knows no work would seem to wait.
    timers={
        "generation": "gen",
        "reward_calculation": "reward",
        "advantage_calculation": "adv",
        "policy_training": "update_actor",
        "weight_sync": "update_weights",
        "checkpointing": "save_checkpoint",
        "total_validation_time": "testing",
    },
    log_format="nemo-rl",
    ray="own",
)
