"""OpenRLHF 0.11: all roles together, or engines apart, in its asynchronous trainer or not.

Its switches have no opposite, so that one in the command of the user's is there in every placement.
"""

from collections.abc import Iterator

from placebench.jobs.adapter import TIMERS, Adapter, AskedPlacement, Settings
from placebench.jobs.adapters.common import (
    RAY_LINES,
    apart,
    node_count,
    not_taken_back,
    per_node,
    refuse,
    shared_by,
    undivided,
    uneven,
    unknown_critic,
)
from placebench.jobs.scripts import Given
from placebench.spec.placement import Placement, Role

_GROUPS = {"actor": Role.ACTOR, "ref": Role.REF, "critic": Role.CRITIC, "reward": Role.REWARD}
_SHARED_BY = "vllm.tensor_parallel_size"
_ESTIMATOR = "algo.advantage.estimator"
# What says where roles live, and nothing else.
_SWITCHES = (
    "train.colocate_all",
    "train.colocate_actor_ref",
    "train.colocate_critic_reward",
    "train.async_enable",
    "train.partial_rollout_enable",
    "vllm.enable_sleep",
)


def _settings(asked: AskedPlacement) -> Settings:
    refuse(asked, "OpenRLHF", _cannot_be(asked))
    placement, size = asked.placement, shared_by(asked, _SHARED_BY)
    args: list[str] = []
    for group, role in _GROUPS.items():
        pool = placement.pool_of(role)
        args += (f"--{group}.num_nodes", str(node_count(pool)), f"--{group}.num_gpus_per_node", str(per_node(pool)))
    engines = placement.pool_of(Role.ROLLOUT).size // size
    args += ("--vllm.num_engines", str(engines), f"--{_SHARED_BY}", str(size))
    args += (f"--{switch}" for switch in _switches(placement))
    if placement.staleness:
        args += ("--train.async_queue_size", str(placement.staleness))
    return Settings(tuple(args))


def _switches(placement: Placement) -> tuple[str, ...]:
    if not placement.has_engines:
        # Models that share devices give way to each other.
        return ("train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep")
    found = []
    if not apart(placement):
        # The asynchronous trainer leaves engines out of what is together.
        found.append("train.colocate_all" if placement.staleness else "train.colocate_actor_ref")
    else:
        found += [] if Role.REF in apart(placement) else ["train.colocate_actor_ref"]
        found += ["train.colocate_critic_reward"] if _are_together(placement) else []
    found += ["train.async_enable"] if placement.staleness else []
    found += ["train.partial_rollout_enable"] if placement.inflight_updates else []
    return tuple(found)


def _are_together(placement: Placement) -> bool:
    """Whether critic and reward model share a pool of their own."""
    roles = placement.roles
    return Role.CRITIC in apart(placement) and roles[Role.CRITIC] == roles[Role.REWARD]


def _cannot_be(asked: AskedPlacement) -> Iterator[str]:
    """Why OpenRLHF cannot be told a placement."""
    placement, given = asked.placement, asked.given
    yield from uneven(placement, "OpenRLHF")
    yield from undivided(placement.pool_of(Role.ROLLOUT), shared_by(asked, _SHARED_BY), f"--{_SHARED_BY}")
    if not placement.has_engines:
        if placement.staleness:
            nearest = f"learners:L+engines:E/staleness={placement.staleness}"
            yield f"OpenRLHF runs ahead only if engines have devices of their own; nearest: {nearest}"
        if apart(placement):
            yield (
                "OpenRLHF puts engines beside the actor only if all roles share the same devices; nearest: standard,"
                " or a file with actor, critic and rollout each in a pool of its own"
            )
    else:
        yield from _engines(placement, given)
    switches = {*_switches(placement)}
    if "train.colocate_all" in switches:
        switches.add("train.colocate_actor_ref")
    yield from not_taken_back(switch for switch in _SWITCHES if switch in given.flags - switches)


def _engines(placement: Placement, given: Given) -> Iterator[str]:
    """Roles that are in no pool where OpenRLHF can have them beside engines apart."""
    if placement.inflight_updates and not placement.staleness:
        yield "OpenRLHF takes weights in flight only in its asynchronous trainer; add staleness=1"
    roles = placement.roles
    together = [
        what
        for what, role, is_there in (
            ("critic", Role.CRITIC, given.settings.get(_ESTIMATOR, "gae") == "gae"),
            ("reward model", Role.REWARD, not {"reward.remote_url", "train.agent_func_path"} & given.flags),
        )
        if is_there and roles[role] == roles[Role.ACTOR]
    ]
    if together and not placement.staleness:
        yield (
            f"if engines have devices of their own, OpenRLHF needs the {' and '.join(together)} apart from the actor"
            " too, unless it is asynchronous; nearest: add staleness=1, or a file with critic and reward in a pool of"
            " their own"
        )
    if Role.REF in apart(placement) and len(placement.roles_in(roles[Role.REF])) > 1:
        yield (
            f"OpenRLHF puts its reference beside the actor or in a pool of its own; leave only ref in {roles[Role.REF]}"
        )


OPENRLHF = Adapter(
    name="openrlhf",
    reading="python -m openrlhf.cli.train_ppo_ray, version 0.11",
    example=("python", "-m", "openrlhf.cli.train_ppo_ray"),
    settings=_settings,
    quiet=(
        *("--eval.steps", "-1"),
        *("--ckpt.save_steps", "-1"),
        *("--ckpt.path", "{folder}/checkpoints"),
        *("--ckpt.output_dir", "{folder}/out"),
        *("--logger.logging_steps", "1"),
        # Without a key there is no W&B.
        *("--logger.wandb.key", ""),
        *("--logger.tensorboard_dir", "{folder}/tensorboard"),
    ),
    env=RAY_LINES,
    timers={**TIMERS, "broadcast": "update_weights"},
    log_format="openrlhf",
    ray="own",
    notes=("OpenRLHF cannot be told a number of steps; give the command enough data and episodes for them.",),
    remarks=unknown_critic(_ESTIMATOR),
)
