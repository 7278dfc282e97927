"""Hooks a framework's timers as soon as the job has imported their module.

Loaded at the start of every Python of the job, so that it imports nothing but what Python has there anyway.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

# The module that a framework's hook waits for, and its function in `frameworks`.
HOOKED: dict[str, str] = {
    "verl.utils.profiler.performance": "verl_timers",
    "verl.single_controller.base.decorator": "verl_workers",
    "verl.utils.torch_functional": "verl_log_probs",
    "trl.extras.profiling": "trl_timers",
    "transformers.trainer": "transformers_trainer",
    "accelerate.optimizer": "accelerate_optimizer",
    "openrlhf.trainer.ppo_trainer": "openrlhf_trainer",
    "openrlhf.trainer.ppo_utils.experience_maker": "openrlhf_experience",
    "openrlhf.trainer.ray.ppo_actor": "openrlhf_actor",
    "openrlhf.trainer.ray.ppo_critic": "openrlhf_critic",
    "openrlhf.trainer.ray.launcher": "openrlhf_scorers",
    "skyrl.train.utils.utils": "skyrl_timers",
    "skyrl_train.utils.utils": "skyrl_timers",
    "open_instruct.rl_utils": "open_instruct_timers",
    "nemo_rl.utils.timer": "nemo_rl_timers",
    "slime.observability.timer": "slime_timers",
    "slime.utils.timer": "slime_timers",
    "areal.utils.stats_tracker": "areal_timers",
    "vllm.v1.engine.core": "vllm_engine",
    "vllm.v1.worker.gpu_worker": "vllm_worker",
    "sglang.srt.managers.scheduler": "sglang_scheduler",
}


class HookFinder:
    """Finds a hooked module as the other finders do, and has its hook run once it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The module's spec, its loader prepared; None for every module without a hook."""
        if name not in HOOKED:
            return None
        finders: Any = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _hook_after(spec.loader)
        return spec


def _hook_after(loader: Any) -> None:
    execute = loader.exec_module

    def execute_and_hook(module: ModuleType) -> None:
        del loader.exec_module  # the loader is as it was
        execute(module)
        _hook(module)

    loader.exec_module = execute_and_hook


def _hook(module: ModuleType) -> None:
    from placebench_attach import frameworks
    from placebench_attach.spans import note

    try:
        getattr(frameworks, HOOKED[module.__name__])(module)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not break the job that is watched
        note(f"{module.__name__} is not as this version of placebench knows it; its phases are not recorded: {error!r}")


def watch_imports() -> None:
    """Hook what is imported from now on."""
    finders: Any = sys.meta_path
    finders.insert(0, HookFinder())
