"""Slime: engines on the actor's GPUs or apart; `train.py` is synchronous, `train_async.py` one rollout ahead."""

from collections.abc import Iterator

from placebench.jobs.adapter import Adapter, AskedPlacement, Settings
from placebench.jobs.adapters.common import (
    RAY_LINES,
    apart,
    by_node,
    node_count,
    not_taken_back,
    per_node,
    refuse,
    shared_by,
    undivided,
    uneven,
)
from placebench.spec.placement import Role

_SHARED_BY = "rollout-num-gpus-per-engine"
_NEVER = "1000000000"


def _settings(asked: AskedPlacement) -> Settings:
    refuse(asked, "slime", _cannot_be(asked))
    placement = asked.placement
    actor = placement.pool_of(Role.ACTOR)
    args = (
        *("--actor-num-nodes", str(node_count(actor))),
        *("--actor-num-gpus-per-node", str(per_node(actor))),
        *("--rollout-num-gpus", str(placement.pool_of(Role.ROLLOUT).size)),
        *(f"--{_SHARED_BY}", str(shared_by(asked, _SHARED_BY))),
        *("--num-gpus-per-node", str(max(by_node(placement)))),
    )
    if placement.has_engines:
        return Settings((*args, "--update-weights-interval", "1") if placement.staleness else args)
    return Settings((*args, "--colocate"))


def _cannot_be(asked: AskedPlacement) -> Iterator[str]:
    """Why slime cannot be told a placement."""
    placement, given = asked.placement, asked.given
    yield from uneven(placement, "slime")
    yield from undivided(placement.pool_of(Role.ROLLOUT), shared_by(asked, _SHARED_BY), f"--{_SHARED_BY}")
    if apart(placement):
        yield "slime keeps critic and reference on the actor's GPUs; nearest: standard, or learners:L+engines:E"
    if placement.inflight_updates:
        yield "slime's engines finish their responses before they take new weights; leave inflight_updates out"
    if placement.has_engines:
        yield from not_taken_back({"colocate"} & given.flags)
    if given.starts(r"\btrain_async\b"):
        if not placement.has_engines or placement.staleness != 1:
            yield "the command starts train_async.py, which is one rollout ahead: say learners:L+engines:E/staleness=1"
    elif placement.staleness:
        yield (
            "the command starts train.py, which is synchronous: to run one rollout ahead, start train_async.py and say"
            " learners:L+engines:E/staleness=1"
        )


SLIME = Adapter(
    name="slime",
    reading="python train.py or train_async.py of slime",
    example=("python", "train.py"),
    settings=_settings,
    # Behind the last rollout it saves, which is thus one that is never reached.
    limits=lambda steps: ("--num-rollout", str(steps + 1)),
    quiet=("--skip-eval-before-train", "--wandb-mode", "disabled"),
    quiet_where={
        "eval-interval": ("--eval-interval", _NEVER),
        "save-interval": ("--save-interval", _NEVER),
        "save": ("--save", "{folder}/checkpoints"),
        "use-tensorboard": ("--tb-project-name", "{folder}/tensorboard"),
    },
    env=RAY_LINES,
    timers={
        "ref_log_probs": "ref",
        "log_probs": "old_log_prob",
        "actor_train": "update_actor",
        "update_weights": "update_weights",
        "save_model": "save_checkpoint",
    },
    log_format="slime",
    ray="own",
    notes=("slime also saves and evaluates at the end of its data; give it enough data for the steps.",),
)
