"""A placement for verl 0.9 that its configuration cannot say: a critic or a reference apart, and what overlaps then.

verl loads this in each of its processes, since VERL_USE_EXTERNAL_MODULES names it. PLACEBENCH_PLACEMENT is a JSON
object with `pools` (devices on each node by name), `roles` (the pool of actor, critic and ref) and `overlap` (`none`,
`updates` or `all`); without it, roles stay where verl puts them. PLACEBENCH_POLL_S is how often the replay buffer is
asked for sequences, seconds.

`updates` lets the critic train beside the actor, `all` also lets it compute values beside the actor's log
probabilities. Neither changes what is computed: both only start earlier what verl would have waited for.
"""

import copy
import json
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from verl.trainer.ppo.utils import Role, need_critic
from verl.trainer.ppo.v1 import trainer_base, trainer_colocate_async, trainer_separate_async, trainer_sync

ASKED = json.loads(os.environ.get("PLACEBENCH_PLACEMENT", "{}"))
POOLS = ASKED.get("pools", {})
ROLES = ASKED.get("roles", {})
OVERLAP = ASKED.get("overlap", "none")
POLL_S = float(os.environ.get("PLACEBENCH_POLL_S", "0.02"))
HAS_CRITIC_APART = ROLES.get("critic") != ROLES.get("actor")
# Those that register the trainers that are placed.
TRAINERS = (trainer_sync, trainer_colocate_async, trainer_separate_async)


class _FlushingLogger:
    """A logger that takes the `flush` with which verl 0.9.1 calls it as if it were print."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def info(self, *args: Any, flush: bool = False, **kwargs: Any) -> None:
        self._logger.info(*args, **kwargs)


def _apart(batch: Any) -> Any:
    """A batch whose notes can be changed without those of the original."""
    batch = copy.copy(batch)
    batch.extra_info = dict(batch.extra_info)
    return batch


def placed(trainer: type) -> type:
    """A trainer of verl's that puts roles where they are asked to be and lets them overlap."""

    class Placed(trainer):  # type: ignore[misc]
        _values: Any = None
        _update: "Future[tuple[float, dict[str, Any]]] | None" = None
        _beside: ThreadPoolExecutor | None = None

        def _build_replay_buffer(self) -> Any:
            buffer = super()._build_replay_buffer()
            if hasattr(buffer, "poll_interval"):
                buffer.poll_interval = POLL_S
            return buffer

        def _init_resource_pool_mgr(self) -> None:
            super()._init_resource_pool_mgr()
            if not POOLS:
                return
            pools, where = self.resource_pool_manager.resource_pool_spec, self.mapping
            pools["global_pool"] = list(POOLS[ROLES["actor"]])
            moved = [(Role.Critic, "critic")] if need_critic(self.config) else []
            # A worker of its own with hybrid_engine=False alone; else the reference is the actor's.
            moved += [(Role.RefPolicy, "ref")] if Role.RefPolicy in where else []
            for role, name in moved:
                if ROLES[name] != ROLES["actor"]:
                    pools[ROLES[name]] = list(POOLS[ROLES[name]])
                    where[role] = ROLES[name]
            print("placebench: pools", pools, {role.name: pool for role, pool in where.items()}, flush=True)

        def _compute_old_log_prob(self, batch: Any, metrics: Any) -> Any:
            if HAS_CRITIC_APART and OVERLAP == "all" and self.use_critic:
                ahead = _apart(batch)
                temperature = self.config.actor_rollout_ref.rollout.temperature
                ahead.extra_info.update(compute_loss=False, temperature=temperature)
                self._values = self.critic_wg.infer_batch(ahead)
            return super()._compute_old_log_prob(batch, metrics)

        def _compute_values(self, batch: Any, metrics: Any) -> Any:
            if self._values is None:
                return super()._compute_values(batch, metrics)
            pending, self._values = self._values, None
            ask, self.critic_wg.infer_batch = self.critic_wg.infer_batch, lambda _: pending
            try:
                return super()._compute_values(batch, metrics)
            finally:
                self.critic_wg.infer_batch = ask

        def _update_critic(self, batch: Any, metrics: Any) -> Any:
            if not HAS_CRITIC_APART or OVERLAP == "none":
                return super()._update_critic(batch, metrics)
            self._beside = self._beside or ThreadPoolExecutor(1)
            update, ahead, begun = super()._update_critic, _apart(batch), time.perf_counter()

            def train() -> "tuple[float, dict[str, Any]]":
                found: dict[str, Any] = {}
                update(ahead, found)
                return time.perf_counter() - begun, found

            self._update = self._beside.submit(train)
            if self.config.trainer.critic_warmup > self.global_steps:  # no actor trains in this step
                self._wait_for_critic(metrics)
            return batch

        def _update_actor(self, batch: Any, metrics: Any) -> Any:
            batch = super()._update_actor(batch, metrics)
            self._wait_for_critic(metrics)
            return batch

        def _wait_for_critic(self, metrics: Any) -> None:
            if self._update is None:
                return
            seconds, found = self._update.result()
            self._update = None
            metrics.update(found)
            # verl's timer has seen no more than the start of it.
            self.timing_raw["update_critic"] = self.timing_raw.get("update_critic", 0.0) + seconds

    Placed.__name__ = trainer.__name__
    return Placed


trainer_separate_async.logger = _FlushingLogger(trainer_separate_async.logger)
for _name, _trainer in list(trainer_base.TRAINER_REGISTRY.items()):
    trainer_base.TRAINER_REGISTRY[_name] = placed(_trainer)
