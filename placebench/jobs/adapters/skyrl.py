"""SkyRL 0.3: all roles together, or engines apart; each of its trainers is a program of its own.

The command says which: `main_base` is synchronous, `main_async` one step ahead, `main_fully_async` several.
"""

from collections.abc import Iterator
from enum import StrEnum

from placebench.jobs.adapter import Adapter, AskedPlacement, Settings
from placebench.jobs.adapters.common import (
    RAY_LINES,
    apart,
    node_count,
    per_node,
    refuse,
    shared_by,
    undivided,
    uneven,
    word,
)
from placebench.jobs.scripts import Given
from placebench.logs.timer_names import SKYRL_TIMERS
from placebench.spec.placement import Placement, Role

_PLACEMENT, _ENGINE, _ASYNC = "trainer.placement", "generator.inference_engine", "trainer.fully_async"
_GROUPS = {"policy": Role.ACTOR, "ref": Role.REF, "critic": Role.CRITIC}
_SHARED_BY = f"{_ENGINE}.tensor_parallel_size"


class _Trainer(StrEnum):
    SYNCHRONOUS = "synchronous"
    ONE_AHEAD = "one-step asynchronous"
    FULLY_ASYNC = "fully asynchronous"

    @property
    def words(self) -> str:
        """What placements of it say."""
        return "staleness=1" if self is _Trainer.ONE_AHEAD else "staleness=K/inflight_updates=true"


def _trainer(given: Given) -> _Trainer:
    if given.starts(r"\bmain_\w*fully_async\b"):
        return _Trainer.FULLY_ASYNC
    return _Trainer.ONE_AHEAD if given.starts(r"\bmain_async\b") else _Trainer.SYNCHRONOUS


def _settings(asked: AskedPlacement) -> Settings:
    refuse(asked, "SkyRL", _cannot_be(asked))
    placement, size = asked.placement, shared_by(asked, _SHARED_BY)
    has_ref = Role.REF not in apart(placement)
    args = [
        f"{_PLACEMENT}.colocate_all={word(not placement.has_engines)}",
        f"{_PLACEMENT}.colocate_policy_ref={word(has_ref)}",
    ]
    for group, role in _GROUPS.items():
        pool = placement.pool_of(role)
        args.append(f"{_PLACEMENT}.{group}_num_nodes={node_count(pool)}")
        args.append(f"{_PLACEMENT}.{group}_num_gpus_per_node={per_node(pool)}")
    args.append(f"{_ENGINE}.num_engines={placement.pool_of(Role.ROLLOUT).size // _devices_of_engine(asked)}")
    args.append(f"{_SHARED_BY}={size}")
    if _trainer(asked.given) is _Trainer.FULLY_ASYNC:
        args += [f"{_ASYNC}.enabled=true", f"{_ASYNC}.max_staleness_steps={placement.staleness}"]
    return Settings(tuple(args))


def _cannot_be(asked: AskedPlacement) -> Iterator[str]:
    """Why SkyRL cannot be told a placement."""
    placement, given = asked.placement, asked.given
    yield from uneven(placement, "SkyRL")
    yield from undivided(placement.pool_of(Role.ROLLOUT), _devices_of_engine(asked), _SHARED_BY)
    trainer = _trainer(given)
    if trainer is not _Trainer.SYNCHRONOUS and not placement.has_engines:
        nearest = f"learners:L+engines:E/{trainer.words}"
        yield (
            f"the command starts SkyRL's {trainer} trainer, whose engines have devices of their own; nearest: {nearest}"
        )
        return
    yield from _ahead(placement, given)
    # What computes rewards has no devices.
    moved = apart(placement) - {Role.REWARD}
    has_critic = "trainer.critic.model.path" in given.settings
    if moved and not placement.has_engines:
        yield (
            "SkyRL puts engines beside the policy only if all models share the same devices; nearest: standard, or a"
            " file with actor, critic and rollout each in a pool of its own"
        )
    elif placement.has_engines and has_critic and Role.CRITIC not in moved:
        yield (
            "if engines have devices of their own, SkyRL gives the critic its own, too; nearest: a file with actor,"
            " critic and rollout each in a pool of its own"
        )
    elif Role.CRITIC in moved and not has_critic:
        yield f"{placement.roles[Role.CRITIC]} would be idle: the command does not set trainer.critic.model.path"
    if moved >= {Role.CRITIC, Role.REF} and placement.roles[Role.CRITIC] == placement.roles[Role.REF]:
        yield "SkyRL has critic and reference in one pool only if all roles share it; put ref into the actor's pool"


def _ahead(placement: Placement, given: Given) -> Iterator[str]:
    """How far ahead of training the trainer that the command starts does not run."""
    trainer, staleness, in_flight = _trainer(given), placement.staleness, placement.inflight_updates
    if trainer is _Trainer.SYNCHRONOUS:
        if staleness or in_flight:
            yield (
                "the command starts SkyRL's synchronous trainer; to run ahead, start another program:"
                " examples.train.async.main_async for staleness=1, examples.train.fully_async.main_fully_async for"
                " staleness=K/inflight_updates=true"
            )
        return
    fits = staleness and in_flight if trainer is _Trainer.FULLY_ASYNC else staleness == 1 and not in_flight
    if not fits:
        what = (
            "goes on generating with" if trainer is _Trainer.FULLY_ASYNC else "finishes its responses before it takes"
        )
        yield f"the command starts SkyRL's {trainer} trainer, which {what} new weights: say {trainer.words}"
    if trainer is _Trainer.FULLY_ASYNC:
        yield from _workers(placement, given)


def _workers(placement: Placement, given: Given) -> Iterator[str]:
    key = f"{_ASYNC}.num_parallel_generation_workers"
    batch, workers = given.number("trainer.policy_mini_batch_size"), given.number(key)
    most = (batch or 0) * (placement.staleness + 1)
    if batch and workers and not batch <= workers <= most:
        yield f"{key} ({workers}) must be from {batch} (the mini-batch) to {most} (the mini-batch times staleness + 1)"


def _devices_of_engine(asked: AskedPlacement) -> int:
    sizes = (asked.given.number(f"{_ENGINE}.{name}_parallel_size") or 1 for name in ("pipeline", "data"))
    pipeline, data = sizes
    return shared_by(asked, _SHARED_BY) * pipeline * data


SKYRL = Adapter(
    name="skyrl",
    reading="python -m skyrl.train.entrypoints.main_base, version 0.3, or one of its asynchronous programs",
    example=("python", "-m", "skyrl.train.entrypoints.main_base"),
    settings=_settings,
    limits=lambda steps: (f"trainer.max_training_steps={steps}",),
    quiet=(
        "trainer.eval_before_train=false",
        "trainer.eval_interval=-1",
        "trainer.ckpt_interval=-1",
        "trainer.hf_save_interval=-1",
        "trainer.resume_mode=none",
        "trainer.logger=console",
        "trainer.ckpt_path={folder}/checkpoints",
        "trainer.export_path={folder}/exports",
        "trainer.log_path={folder}/skyrl-logs",
    ),
    env=RAY_LINES,
    # Not `step`: its workers time nothing, and a device of which a step knows no work would seem to wait.
    timers=SKYRL_TIMERS,
    log_format="skyrl",
    ray="own",
)
