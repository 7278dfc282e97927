"""What is hooked in each framework: its own timers, its workers' methods, its engines.

A function for each module in `imports.HOOKED`, called with the module as soon as it is imported.
"""

from __future__ import annotations

from typing import Any

from placebench_attach.spans import introduce
from placebench_attach.wrapping import (
    BusyEngine,
    before_return,
    called,
    from_call_to_call,
    moments_of_calls,
    noted_calls,
    start_and_stop,
    timed_methods,
    timing_context,
    timing_generator,
    timing_method,
    worker_methods,
)

# Methods of verl's workers, and the phase that each is.
_VERL_METHODS = {
    "generate_sequences": "gen",
    "compute_log_prob": "old_log_prob",
    "compute_ref_log_prob": "ref",
    "compute_values": "values",
    "compute_rm_score": "reward",
    "update_critic": "update_critic",
    "update_actor": "update_actor",
    "update_weights": "update_weights",
}
# Since 0.8 the critic is a worker without a class of its own, whose methods say only what is done.
_VERL_CRITIC_METHODS = {"infer_batch": "values", "train_mini_batch": "update_critic"}


def verl_timers(module: Any) -> None:
    """All of verl's `marked_timer` and `simple_timer`, which its controller logs as `timing_s`."""
    timing_generator(module, "_timer")


def verl_workers(module: Any) -> None:
    """Every method that verl registers for its worker groups."""
    register = module.register

    def register_and_hook(*args: Any, **kwargs: Any) -> Any:
        decorate = register(*args, **kwargs)

        def decorator(function: Any) -> Any:
            name = function.__name__
            if name in _VERL_CRITIC_METHODS:
                return decorate(called(function, lambda worker: _verl_critic_phase(worker, name)))
            if name in _VERL_METHODS:
                return decorate(called(function, lambda _: _VERL_METHODS[name]))
            return decorate(function)

        return decorator

    module.register = register_and_hook


def _verl_critic_phase(worker: Any, method: str) -> str | None:
    is_critic = getattr(getattr(worker, "config", None), "model_type", None) == "value_model"
    return _VERL_CRITIC_METHODS[method] if is_critic else None


def verl_log_probs(module: Any) -> None:
    """Whether verl goes through a batch token by token, as it does without flash-attn where sequences are packed."""

    def says(logits: Any) -> str | None:
        if logits.dim() != 2:
            return None
        return (
            "verl computes log-probabilities one token at a time, so devices wait for the host, because the job has no"
            " flash-attn: install it, or set actor_rollout_ref.model.use_fused_kernels=True"
        )

    noted_calls(module, "logprobs_from_logits_v2", says)


def trl_timers(module: Any) -> None:
    """What TRL's trainers time for their own profile."""
    timing_context(module.ProfilingContext, "name")


def transformers_trainer(module: Any) -> None:
    """The steps of a trainer, which of them it logs, and what a user may have left on between them."""
    names = {"training_step": "training_step", "_save_checkpoint": "save_checkpoint", "evaluate": "testing"}
    timed_methods(module.Trainer, names)
    steps: list[int] = [0]

    def has_stepped(trainer: Any) -> bool:
        # It is asked at the end of an epoch, too.
        before, steps[0] = steps[0], trainer.state.global_step
        return bool(steps[0] != before)

    from_call_to_call(module.Trainer, "training_step", "_maybe_log_save_evaluate", "trainer_step", has_stepped)
    # What it says of an evaluation, and of the whole training at its end, has no loss under this name.
    moments_of_calls(module.Trainer, "log", "logged", lambda logs: "loss" in logs)


def accelerate_optimizer(module: Any) -> None:
    """The optimizer's steps, which stand outside a trainer's `training_step`."""
    timed_methods(module.AcceleratedOptimizer, {"step": "optimizer_step"})


def openrlhf_trainer(module: Any) -> None:
    """The controller's view: OpenRLHF has no timers of its own."""
    names = {"train_step": "train_step", "ppo_train": "ppo_train", "broadcast_to_vllm": "broadcast"}
    timed_methods(module.BasePPOTrainer, names)


def openrlhf_experience(module: Any) -> None:
    """The controller's view of generating and scoring."""
    timed_methods(module.RemoteExperienceMaker, {"make_experience_batch": "make_experience"})


def openrlhf_actor(module: Any) -> None:
    """The actor's workers."""
    phases = {"fit": "update_actor", "forward": "old_log_prob", "broadcast_to_vllm": "update_weights"}
    worker_methods(_behind_remote(module.PolicyModelActor), phases)


def openrlhf_critic(module: Any) -> None:
    """The critic's workers."""
    worker_methods(_behind_remote(module.CriticModelActor), {"fit": "update_critic", "forward": "values"})


def openrlhf_scorers(module: Any) -> None:
    """The workers of the reference and of the reward model."""
    worker_methods(_behind_remote(module.ReferenceModelActor), {"forward": "ref"})
    worker_methods(_behind_remote(module.RewardModelActor), {"forward": "reward"})


def _behind_remote(cls: Any) -> Any:
    """The class that `@ray.remote` was put before."""
    return getattr(getattr(cls, "__ray_metadata__", None), "modified_class", cls)


def skyrl_timers(module: Any) -> None:
    """SkyRL's timers, under the message that they print."""
    timing_context(module.Timer, "message")


def open_instruct_timers(module: Any) -> None:
    """open-instruct's timers, under the description that they print."""
    timing_context(module.Timer, "description")


def nemo_rl_timers(module: Any) -> None:
    """NeMo-RL's timer."""
    start_and_stop(module.Timer, "start", "stop")


def slime_timers(module: Any) -> None:
    """Slime's timer."""
    start_and_stop(module.Timer, "start", "end")


def areal_timers(module: Any) -> None:
    """AReaL's statistics, of which the times are a part."""
    timing_method(module.DistributedStatsTracker, "record_timing")
    # All of AReaL times by the method that the module has taken from its tracker.
    module.record_timing = module.DEFAULT_TRACKER.record_timing


def vllm_engine(module: Any) -> None:
    """The core of a vLLM engine, in whichever process it runs, for any framework."""
    engine = BusyEngine()
    for method in ("step", "step_with_batch_queue"):
        engine.watch(module.EngineCore, method, lambda core: core.scheduler.has_unfinished_requests())


def vllm_worker(module: Any) -> None:
    """The worker of a vLLM engine: its device is also that of an engine whose core runs in the parent's process."""
    before_return(module.Worker, "init_device", introduce)


def sglang_scheduler(module: Any) -> None:
    """The scheduler of an SGLang engine; what it has left to do is not asked, its spans end by time."""
    BusyEngine().watch(module.Scheduler, "run_batch", lambda _: True)
