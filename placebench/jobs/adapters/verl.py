"""verl 0.9: its own settings say one pool for all, and engines apart, with staleness or without.

A critic apart, and what overlaps then, is said to a module that verl loads by VERL_USE_EXTERNAL_MODULES.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from placebench.errors import Reasons
from placebench.jobs.adapter import Adapter, AskedPlacement, Settings, Training
from placebench.jobs.adapters.common import RAY_LINES, is_off, is_on, node_count, per_node, uneven, unknown_critic
from placebench.jobs.scripts import Given
from placebench.spec.phases import UPDATE_ACTOR
from placebench.spec.placement import Overlap, Placement, Role
from placebench.spec.text import plural

# The module that verl loads in each of its processes; it reads `PLACEBENCH_PLACEMENT`.
_LOADS_MODULE = {
    "VERL_USE_EXTERNAL_MODULES": "placebench_verl",
    "PYTHONPATH": str(Path(__file__).parents[1] / "plugins"),
}
_ROLLOUT = "actor_rollout_ref.rollout"
_SHARED_BY = f"{_ROLLOUT}.tensor_model_parallel_size"
_ACTOR = "actor_rollout_ref.actor"
_BATCH, _MINI_BATCH = "data.train_batch_size", f"{_ACTOR}.ppo_mini_batch_size"
_ESTIMATOR = "algorithm.adv_estimator"
# The advantage estimator that needs a critic, which is verl's default.
_OF_A_CRITIC = "gae"
_VALUE_HEAD = (
    "verl starts a critic's value head from new random weights in every launch, so its losses differ between launches."
)


def _settings(asked: AskedPlacement) -> Settings:
    reasons = Reasons()
    reasons.add(_cannot_be(asked))
    reasons.raise_any()
    placement = asked.placement
    actor = placement.pool_of(Role.ACTOR)
    args = [f"++trainer.n_gpus_per_node={per_node(actor)}", f"++trainer.nnodes={node_count(actor)}"]
    if placement.has_engines:
        args += _engines(placement)
    elif placement.tensor_parallel:
        args.append(f"++{_SHARED_BY}={placement.tensor_parallel}")
    if _reward_apart(placement):
        reward = placement.pool_of(Role.REWARD)
        args += [
            "++reward.reward_model.enable_resource_pool=True",
            f"++reward.reward_model.n_gpus_per_node={per_node(reward)}",
            f"++reward.reward_model.nnodes={node_count(reward)}",
        ]
    moved = {role: placement.roles[role] for role in (Role.ACTOR, Role.CRITIC, Role.REF)}
    if len(set(moved.values())) == 1:
        return Settings(args=tuple(args))
    asks = {
        "pools": {pool.name: [count for count in pool.counts if count] for pool in placement.pools},
        "roles": {role.value: pool for role, pool in moved.items()},
        "overlap": placement.overlap.value,
    }
    return Settings(args=tuple(args), env={**_LOADS_MODULE, "PLACEBENCH_PLACEMENT": json.dumps(asks)})


def _engines(placement: Placement) -> list[str]:
    engines = placement.pool_of(Role.ROLLOUT)
    return [
        "++trainer.v1.trainer_mode=separate_async",
        "++trainer.v1.separate_async.parameter_sync_step=1",
        f"++trainer.v1.separate_async.num_warmup_batches={placement.staleness}",
        "++actor_rollout_ref.hybrid_engine=False",
        f"++{_ROLLOUT}.nnodes={node_count(engines)}",
        f"++{_ROLLOUT}.n_gpus_per_node={per_node(engines)}",
        f"++{_SHARED_BY}={placement.tensor_parallel or 1}",
        f"++{_ROLLOUT}.checkpoint_engine.backend=nccl",
    ]


def _cannot_be(asked: AskedPlacement) -> Iterator[str]:
    """Why verl cannot be told a placement."""
    placement, given = asked.placement, asked.given
    if placement.scaling is not None:
        yield "verl shards every model over its devices and has no replicas of whole ones; nearest: standard"
        return
    if placement.inflight_updates:
        yield "verl's engines stop while they take new weights; leave inflight_updates out"
    if placement.staleness and not placement.has_engines:
        yield (
            "on shared devices verl runs ahead only by partial rollouts, which are not what staleness means; nearest:"
            f" learners:L+engines:E/staleness={placement.staleness}, or trainer.v1.trainer_mode=colocate_async as args"
        )
    if placement.has_engines and placement.overlap is not Overlap.ALL:
        yield f"verl takes overlap={placement.overlap} only without engines in a pool of their own; leave it out"
    yield from uneven(placement, "verl")
    yield from _roles(placement, given)
    yield from _batches(placement, given)
    shared_by = placement.tensor_parallel or given.number(_SHARED_BY) or 1
    rollout = placement.pool_of(Role.ROLLOUT)
    if rollout.size % shared_by:
        yield (
            f"engines of {shared_by} devices ({_SHARED_BY}) do not divide the {plural(rollout.size, 'device')} of"
            f" {rollout.name}; verl would leave the rest idle"
        )


def _roles(placement: Placement, given: Given) -> Iterator[str]:
    """Roles in pools where verl cannot put them."""
    roles = placement.roles
    critic_apart = roles[Role.CRITIC] != roles[Role.ACTOR]
    if critic_apart and not _has_critic(given):
        yield (
            f"{_ESTIMATOR}={given.settings[_ESTIMATOR]} trains no critic, and verl computes reference and reward"
            " beside the actor, so there is nothing to put on other devices; nearest: standard, or"
            " learners:L+engines:E"
        )
    if roles[Role.REF] != roles[Role.ACTOR] and not placement.has_engines:
        yield (
            "verl keeps the reference in the actor's workers unless engines have devices of their own; put ref into"
            f" {roles[Role.ACTOR]}"
        )
    if roles[Role.REWARD] == roles[Role.ACTOR]:
        return
    has_model = is_on(given.settings.get("reward.reward_model.enable", "False"))
    if has_model and not _reward_apart(placement):
        yield (
            "verl puts a reward model beside the actor or in a pool of its own; write a file with reward in"
            f" {roles[Role.ACTOR]} or alone in a pool"
        )
    if _reward_apart(placement) and not has_model:
        yield f"{roles[Role.REWARD]} would be idle: the command does not set reward.reward_model.enable=True"


def _batches(placement: Placement, given: Given) -> Iterator[str]:
    """Sizes of batches that a placement does not go with, as far as the command says them."""
    batch, mini_batch = given.number(_BATCH), given.number(_MINI_BATCH)
    if placement.has_engines and batch and mini_batch and batch != mini_batch:
        yield (
            f"engines on devices of their own take new weights after every mini-batch, so {_BATCH} ({batch}) must"
            f" equal {_MINI_BATCH} ({mini_batch}); set them equal for all placements, which changes how often the job"
            " updates"
        )
    critic = placement.pool_of(Role.CRITIC)
    if critic.name != placement.roles[Role.ACTOR] and _has_critic(given):
        size = given.number("critic.ppo_mini_batch_size", _MINI_BATCH)
        responses = given.number(f"{_ROLLOUT}.n") or 1
        if size and (size * responses) % critic.size:
            yield (
                f"the {plural(critic.size, 'device')} of {critic.name} do not divide the critic's mini-batch of"
                f" {size * responses} sequences; change critic.ppo_mini_batch_size or the pool"
            )


def _has_critic(given: Given) -> bool:
    return given.settings.get(_ESTIMATOR, _OF_A_CRITIC) == _OF_A_CRITIC  # of one that is not known, see its remark


def _reward_apart(placement: Placement) -> bool:
    return placement.roles_in(placement.roles[Role.REWARD]) == (Role.REWARD,)


def _training(given: Given) -> Training | None:
    """PPO or GRPO in bfloat16, whole models trained."""
    said = given.said
    model, critic = (given.settings.get(f"{name}.model.path") for name in ("actor_rollout_ref", "critic"))
    lora = [value for key, value in said.items() if "lora" in key and not is_off(value)]
    precisions = {value for key, value in said.items() if key.endswith(("param_dtype", "fsdp_config.dtype"))}
    epochs = given.number(f"{_ACTOR}.ppo_epochs") if f"{_ACTOR}.ppo_epochs" in said else 1
    if not model or not epochs or lora or precisions - {"bf16", "bfloat16"}:
        return None
    phases = {"old_log_prob", "ref", UPDATE_ACTOR}
    if critic and _has_critic(given):
        phases |= {"values"} if "critic.ppo_epochs" in said else {"values", "update_critic"}
    batch, responses = given.number(_BATCH), given.number(f"{_ROLLOUT}.n") if f"{_ROLLOUT}.n" in said else 1
    sequences = batch * responses if batch and responses else None
    return Training(model, frozenset(phases), sequences, critic if "values" in phases else None, epochs)


def _remarks(given: Given) -> tuple[str, ...]:
    """What is to be known of a command of which a critic is, or may be, trained."""
    found = unknown_critic(_ESTIMATOR)(given)
    return (*found, _VALUE_HEAD) if _has_critic(given) else found


VERL = Adapter(
    name="verl",
    reading="python -m verl.trainer.main_ppo, version 0.9",
    example=("python", "-m", "verl.trainer.main_ppo"),
    settings=_settings,
    limits=lambda steps: (f"++trainer.total_training_steps={steps}",),
    quiet=(
        "++trainer.val_before_train=False",
        "++trainer.test_freq=-1",
        "++trainer.save_freq=-1",
        "++trainer.resume_mode=disable",
        "++trainer.logger=[console,file]",
        '++trainer.default_local_dir="{folder}/checkpoints"',
        'hydra.run.dir="{folder}/hydra"',
    ),
    env={
        "VERL_FILE_LOGGER_PATH": "{folder}/metrics.jsonl",
        # In every placement, so that all wait alike.
        **_LOADS_MODULE,
        **RAY_LINES,
    },
    training=_training,
    log_files=("{folder}/metrics.jsonl",),
    settled=("verl-gen-polls",),
    # ray.init() refuses these where there is a Ray; a script has them for one of its own.
    joining=tuple(
        f"++ray_kwargs.ray_init.{name}=null"
        for name in ("num_cpus", "num_gpus", "object_store_memory", "include_dashboard")
    ),
    ray="own",
    notes=(
        "verl's replay buffer is polled every 0.02 s instead of every 2 s, so that the time of gen is not rounded up;"
        " PLACEBENCH_POLL_S=2 restores verl's own interval.",
    ),
    remarks=_remarks,
)
