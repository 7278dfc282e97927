"""AReaL 1.0: each role has a backend with its parallelism, and devices of its own or those of another role."""

import re
from collections.abc import Iterator
from functools import partial
from math import prod

from placebench.jobs.adapter import Adapter, AskedPlacement, Settings
from placebench.jobs.adapters.common import apart, by_node, refuse
from placebench.jobs.scripts import Given
from placebench.logs.timer_names import AREAL_TIMERS
from placebench.spec.placement import Role
from placebench.spec.text import plural

# Roles that a configuration may be without.
_TRAINED = (Role.CRITIC, Role.REF)
_BACKEND = re.compile(r"(?P<name>[a-z]+):(?P<sizes>(?:[dptc][1-9][0-9]{0,5})+)")


def _settings(asked: AskedPlacement) -> Settings:
    refuse(asked, "AReaL", _cannot_be(asked))
    placement = asked.placement
    args = [
        f"++cluster.n_nodes={len(by_node(placement))}",
        f"++cluster.n_gpus_per_node={max(by_node(placement))}",
        f"++actor.backend={_backend(asked, Role.ACTOR)}",
        f"++rollout.backend={_backend(asked, Role.ROLLOUT)}",
        f"++rollout.max_head_offpolicyness={placement.staleness}",
        *_lives(Role.ROLLOUT, is_apart=placement.has_engines),
    ]
    if not placement.has_engines:
        # What sharing devices asks for.
        args += ["++enable_offload=true", "++actor.weight_update_mode=disk"]
    for role in filter(partial(_has, asked.given), _TRAINED):
        args.append(f"++{role}.backend={_backend(asked, role)}")
        args += _lives(role, is_apart=role in apart(placement))
    return Settings(tuple(args))


def _lives(role: Role, *, is_apart: bool) -> tuple[str, str]:
    """On devices of its own, or on those of the actor."""
    kind, target = ("separation", "null") if is_apart else ("colocation", "actor")
    return f"++{role}.scheduling_strategy.type={kind}", f"++{role}.scheduling_strategy.target={target}"


def _cannot_be(asked: AskedPlacement) -> Iterator[str]:
    """Why AReaL cannot be told a placement."""
    placement, given = asked.placement, asked.given
    # What computes rewards has no devices.
    moved = apart(placement) - {Role.REWARD}
    for role in sorted(moved):
        others = set(placement.roles_in(placement.roles[role])) - {role, Role.REWARD}
        if not _has(given, role):
            yield f"{placement.roles[role]} would be idle: the command's configuration has no {role}"
        if others:
            yield (
                f"AReaL puts {role} beside the actor or in a pool of its own; leave only {role} in"
                f" {placement.roles[role]}"
            )
    for role in (Role.ACTOR, Role.ROLLOUT, *filter(partial(_has, given), _TRAINED)):
        if _sizes(given, role) is None:
            yield (
                f"{role}.backend is not known: add one to the command, such as {role}.backend={_EXAMPLES[role]}, or"
                " --config with the file that has it"
            )
        elif placement.pool_of(role).size % _within(asked, role):
            pool = placement.pool_of(role)
            yield (
                f"replicas of {_within(asked, role)} devices ({role}.backend) do not divide the"
                f" {plural(pool.size, 'device')} of {pool.name}"
            )
    if not placement.has_engines and _within(asked, Role.ROLLOUT) > 1:
        yield "beside the actor, AReaL gives each rank an engine of one device; give engines one device each"
    if placement.staleness and not placement.has_engines:
        yield (
            "AReaL runs ahead only if engines have devices of their own; nearest:"
            f" learners:L+engines:E/staleness={placement.staleness}/inflight_updates=true"
        )
    elif bool(placement.staleness) != placement.inflight_updates:
        yield (
            "AReaL's engines take weights in flight if they run ahead, and only then: say"
            " staleness=K/inflight_updates=true, or neither"
        )


_EXAMPLES = {Role.ACTOR: "fsdp:d4", Role.ROLLOUT: "vllm:d4t1"}


def _has(given: Given, role: Role) -> bool:
    return any(key.startswith(f"{role}.") for key in given.settings)


def _sizes(given: Given, role: Role) -> tuple[str, dict[str, int]] | None:
    """A role's backend and its sizes but for data parallelism; None where the command does not say them.

    A role without a backend that can be read has the actor's.
    """
    text = given.settings.get(f"{role}.backend", "")
    if match := _BACKEND.fullmatch(text):
        sizes = {letter: int(size) for letter, size in re.findall("([a-z])([0-9]+)", match["sizes"])}
        return match["name"], {letter: size for letter, size in sizes.items() if letter != "d"}
    return _sizes(given, Role.ACTOR) if role not in (Role.ACTOR, Role.ROLLOUT) else None


def _parallel(asked: AskedPlacement, role: Role) -> tuple[str, dict[str, int]]:
    name, sizes = _sizes(asked.given, role) or ("", {})
    shared_by = asked.placement.tensor_parallel
    return name, {**sizes, "t": shared_by} if shared_by and role is Role.ROLLOUT else sizes


def _within(asked: AskedPlacement, role: Role) -> int:
    """Devices of one replica."""
    return prod(_parallel(asked, role)[1].values())


def _backend(asked: AskedPlacement, role: Role) -> str:
    name, sizes = _parallel(asked, role)
    replicas = asked.placement.pool_of(role).size // _within(asked, role)
    return f"{name}:d{replicas}{''.join(f'{letter}{size}' for letter, size in sizes.items())}"


AREAL = Adapter(
    name="areal",
    reading="a training script of AReaL 1.0 with --config FILE",
    example=(
        *("python", "examples/math/gsm8k_rl.py", "--config", "examples/math/gsm8k_grpo.yaml"),
        *("scheduler.type=local", "actor.backend=fsdp:d4", "rollout.backend=vllm:d4"),
    ),
    settings=_settings,
    limits=lambda steps: (f"++total_train_steps={steps}",),
    quiet=(
        *(f"++{timer}.freq_{unit}=null" for timer in ("saver", "evaluator") for unit in ("epochs", "steps", "secs")),
        "++evaluator.eval_before_train=false",
        "++recover.mode=disabled",
        "++stats_logger.wandb.mode=disabled",
        "++stats_logger.swanlab.mode=disabled",
        '++cluster.fileroot="{folder}/areal"',
        '++cluster.name_resolve.nfs_record_root="{folder}/name_resolve"',
    ),
    timers={**AREAL_TIMERS, "update_weights": "update_weights"},
    log_format="areal",
    notes=(
        "AReaL's log has no times of whole steps; they are taken from the log's clock.",
        "AReaL updates actor and critic one after the other, even if they are on different devices.",
    ),
)
