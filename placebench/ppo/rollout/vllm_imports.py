"""What a worker with a vLLM engine imports until its first step, for a server from which such workers are forked.

To import this module is to import it. vLLM's optional use of Ray is left out: Ray reads its settings as it is imported,
and an engine in a worker's process has no need of it.
"""

import importlib
import sys
from contextlib import suppress
from typing import Any

from placebench.ppo.rollout import vllm_build

# Imported by vLLM where an engine is built. In a version that names them otherwise the worker imports them itself.
_ENGINE = (
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.models.qwen2",
    "vllm.model_executor.model_loader",
    "vllm.compilation.backends",
    "vllm.v1.attention.backends.flash_attn",
)


def _import_engine() -> None:
    vllm_build.set_environment()
    modules: dict[str, Any] = sys.modules
    modules["ray"] = None  # an import of it fails as if it were not installed
    try:
        importlib.import_module("vllm.entrypoints.llm")
        for name in _ENGINE:
            with suppress(ModuleNotFoundError):
                importlib.import_module(name)
    finally:
        del modules["ray"]


_import_engine()
