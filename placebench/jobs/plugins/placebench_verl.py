"""The placement of a verl job (0.9, trainers of `verl.trainer.ppo.v1`), which verl itself has no settings for.

verl loads it in each of its processes by `VERL_USE_EXTERNAL_MODULES`; nothing of verl is changed on disk. It reads

- `PLACEBENCH_PLACEMENT`, JSON: `pools`, the devices of each on every node; `roles`, the pools of actor, critic and ref;
  `overlap`: `none`, `updates` (the critic's update beside the actor's) or `all` (`values` beside `old_log_prob`, too).
  Without it every role stays where verl has it.
- `PLACEBENCH_POLL_S`: seconds from one look for finished responses to the next, 0.02 unless set; verl's own are 2.

Seconds of what overlaps stand in `timing_s` as they are elsewhere: from the start of the work to its end.
"""

import copy
import json
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ray
from verl.trainer.ppo.utils import Role, need_critic
from verl.trainer.ppo.v1 import (
    trainer_base,
    trainer_colocate_async,  # noqa: F401 - imported, it is registered
    trainer_separate_async,
    trainer_sync,  # noqa: F401 - likewise
)

_ASKED = json.loads(os.environ.get("PLACEBENCH_PLACEMENT", "{}"))
_POOLS: dict[str, list[int]] = _ASKED.get("pools", {})
_ROLES: dict[str, str] = _ASKED.get("roles", {})
_OVERLAP: str = _ASKED.get("overlap", "none")
_POLL_S = float(os.environ.get("PLACEBENCH_POLL_S", "0.02"))

_IS_CRITIC_APART = _ROLES.get("critic") != _ROLES.get("actor")
_IS_REF_APART = _ROLES.get("ref") != _ROLES.get("actor")


@dataclass
class _Ahead:
    """Values that the critic computes while the actor's log probabilities are."""

    answer: Any
    """What its worker group has returned, before it is done."""
    begun: float
    """When it was asked."""
    done: "Future[float]"
    """When it had answered."""


class _Placed:
    """Stands before one of verl's trainers in the order of bases, and puts its roles where they were asked for."""

    timing_raw: dict[str, float]
    _ahead: _Ahead | None = None
    _update: "Future[tuple[dict[str, Any], float]] | None" = None

    @property
    def _verl(self) -> Any:
        """The trainer of verl's behind this class."""
        return super()

    @cached_property
    def _beside(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="placebench")

    def _build_replay_buffer(self) -> Any:
        buffer = self._verl._build_replay_buffer()
        if hasattr(buffer, "poll_interval"):  # one of the user's own need not have it
            buffer.poll_interval = _POLL_S
        return buffer

    def _init_resource_pool_mgr(self) -> None:
        self._verl._init_resource_pool_mgr()
        if not _POOLS:
            return
        trainer: Any = self
        devices, pool_of = trainer.resource_pool_manager.resource_pool_spec, trainer.mapping
        devices["global_pool"] = list(_POOLS[_ROLES["actor"]])
        apart = {}
        if _IS_CRITIC_APART and need_critic(trainer.config):
            apart[Role.Critic] = _ROLES["critic"]
        if _IS_REF_APART and Role.RefPolicy in pool_of:  # elsewhere the reference is a part of the actor's workers
            apart[Role.RefPolicy] = _ROLES["ref"]
        for role, pool in apart.items():
            devices[pool] = list(_POOLS[pool])
            pool_of[role] = pool
        roles = {role.name: pool for role, pool in pool_of.items()}
        print(f"placebench: pools {devices}, roles {roles}", flush=True)

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        trainer: Any = self
        if _IS_CRITIC_APART and _OVERLAP == "all" and trainer.use_critic:
            ahead = _own_copy(batch)
            ahead.extra_info.update(
                compute_loss=False, temperature=trainer.config.actor_rollout_ref.rollout.temperature
            )
            begun, answer = time.perf_counter(), trainer.critic_wg.infer_batch(ahead)
            self._ahead = _Ahead(answer, begun, self._beside.submit(_time_of, answer.futures))
        return self._verl._compute_old_log_prob(batch, metrics)

    def _compute_values(self, batch: Any, metrics: dict[str, Any]) -> Any:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return self._verl._compute_values(batch, metrics)
        trainer: Any = self
        called, critic = time.perf_counter(), trainer.critic_wg
        ask, critic.infer_batch = critic.infer_batch, lambda _: ahead.answer
        try:
            batch = self._verl._compute_values(batch, metrics)
        finally:
            critic.infer_batch = ask
        # The timer around this method sees the wait alone.
        took, waited = ahead.done.result() - ahead.begun, time.perf_counter() - called
        self.timing_raw["values"] = self.timing_raw.get("values", 0.0) + took - waited
        return batch

    def _update_critic(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if not _IS_CRITIC_APART or _OVERLAP == "none":
            return self._verl._update_critic(batch, metrics)
        self._update = self._beside.submit(self._train_critic, self._verl._update_critic, _own_copy(batch))
        trainer: Any = self
        if trainer.config.trainer.critic_warmup > trainer.global_steps:  # the actor is not trained yet
            self._join(metrics)
        return batch

    @staticmethod
    def _train_critic(update: Any, batch: Any) -> tuple[dict[str, Any], float]:
        """The metrics of an update, and the seconds that it took."""
        begun, metrics = time.perf_counter(), dict[str, Any]()
        update(batch, metrics)
        return metrics, time.perf_counter() - begun

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = self._verl._update_actor(batch, metrics)
        self._join(metrics)
        return batch

    def _join(self, metrics: dict[str, Any]) -> None:
        """Wait for the critic's update, if there is one under way."""
        update, self._update = self._update, None
        if update is not None:
            found, took = update.result()
            metrics.update(found)
            # The timer around `_update_critic` has seen the submission alone.
            self.timing_raw["update_critic"] = self.timing_raw.get("update_critic", 0.0) + took


def _own_copy(batch: Any) -> Any:
    """A batch whose settings others may change."""
    batch = copy.copy(batch)
    batch.extra_info = dict(batch.extra_info)
    return batch


def _time_of(answers: Any) -> float:
    """When the last of some answers is there."""
    ray.get(answers)
    return time.perf_counter()


class _AnyLogger:
    """A logger that takes `flush`, which `trainer_separate_async` of verl 0.9.1 gives it and no logger knows."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def info(self, *args: Any, flush: bool = False, **kwargs: Any) -> None:
        """Log at the level info."""
        self._logger.info(*args, **kwargs)


trainer_separate_async.logger = _AnyLogger(trainer_separate_async.logger)
# Whatever of the user's is registered by now is placed, too.
for _name, _trainer in list(trainer_base.TRAINER_REGISTRY.items()):
    trainer_base.TRAINER_REGISTRY[_name] = type(_trainer.__name__, (_Placed, _trainer), {})
