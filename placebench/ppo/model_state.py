"""Weights and optimizer of a trained model, whole, between the pool's ranks and one file.

The files do not depend on how a model is spread: what sharded ranks wrote, replicas read, and the other way round.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)

from placebench.errors import LaunchError, UsageError


def save_model(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a model from its pool's first rank; all ranks have to call it.

    The first rank holds weights and optimizer states in the host's memory meanwhile, 12 bytes a parameter.

    Raises:
        LaunchError: the file cannot be written, for example because the disk is full.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, states = get_state_dict(module, optimizer, options=options)
    if dist.get_rank() == 0:
        _write({"weights": weights, "optimizer": states, "rng": _rng_states()}, path)
    dist.barrier()


def _write(content: dict[str, Any], path: Path) -> None:
    try:
        # Of a path that it opens itself, torch says only at which byte it stopped.
        with path.open("wb") as stream:
            torch.save(content, stream)
    except (OSError, RuntimeError) as error:
        found = error if isinstance(error, OSError) else error.__context__
        if not isinstance(found, OSError):
            raise
        raise LaunchError(f"cannot write the checkpoint {path}: {found.strerror}") from error


def load_model(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Read a model that `save_model` wrote, in all ranks of its pool.

    Of the optimizer its states are read; learning rate and other settings stay those that it was made with.

    Raises:
        UsageError: the file cannot be read, or is another model's.
    """
    content: dict[str, Any] = {"weights": {}, "optimizer": {}, "rng": {}}
    settings = [{name: one for name, one in group.items() if name != "params"} for group in optimizer.param_groups]
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(
            module,
            optimizer,
            model_state_dict=content["weights"],
            optim_state_dict=content["optimizer"],
            options=options,
        )
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise UsageError(f"--resume-from {path}: cannot be loaded: {str(error).splitlines()[0]}") from error
    # The states come with the settings of the job that wrote them.
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
    _set_rng_states(content["rng"])


def _rng_states() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_rng_states(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
