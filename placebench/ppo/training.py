"""One model in one rank: micro-batches, forward passes, and optimizer steps over the pool's ranks."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from placebench.ppo.batch import SequenceBatch, micro_batches
from placebench.ppo.losses import LossSums
from placebench.workload import Optimizer, Workload

ForwardLoss = Callable[[nn.Module, dict[str, Tensor]], LossSums]


def spread_over_ranks(module: nn.Module, workload: Workload) -> nn.Module:
    """Shard a model over the pool's ranks (FSDP2) or replicate it (DDP averages its gradients)."""
    if workload.activation_checkpointing:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

        layers = set(module.layers)  # type: ignore[arg-type]  # PolicyModel and ValueModel name their blocks so
        apply_activation_checkpointing(module, check_fn=lambda part: part in layers)
    if workload.sharding == "replicate":
        trains = any(parameter.requires_grad for parameter in module.parameters())
        return DistributedDataParallel(module) if trains else module
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    casts = workload.precision == "bfloat16"
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if casts else MixedPrecisionPolicy()
    for layer in module.layers:  # type: ignore[union-attr]
        fully_shard(layer, mp_policy=policy)
    fully_shard(module, mp_policy=policy)
    return module


class SequenceModel:
    """Forward passes of a model over a rank's sequences, in micro-batches without much padding.

    Weights and optimizer states are float32; with `precision: bfloat16` only the computing is in bfloat16.
    """

    def __init__(self, module: nn.Module, workload: Workload, device: torch.device) -> None:
        self.module = spread_over_ranks(module.to(device), workload)
        self._token_budget = workload.batch.micro_batch_tokens
        self._device = device
        self._must_agree = workload.sharding == "shard"
        # A sharded model's parts cast by themselves.
        self._casts = workload.precision == "bfloat16" and workload.sharding == "replicate"

    def autocast(self) -> AbstractContextManager[object]:
        """The context of every forward pass: computing in bfloat16 where the workload says so."""
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._casts)

    def per_token(
        self, batch: SequenceBatch, forward: Callable[[nn.Module, dict[str, Tensor]], Tensor]
    ) -> NDArray[np.float32]:
        """Apply `forward` to every micro-batch without gradient.

        Returns:
            One value per response token, float32 [sum of response lengths], in the batch's order.
        """
        groups = self._groups(batch)
        values: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(batch)
        with torch.no_grad(), self.autocast():
            results = [forward(self.module, self.inputs(batch.select(group))) for group in groups]
        for group, result in zip(groups, results, strict=True):
            parts = np.split(result.float().cpu().numpy(), np.cumsum(batch.response_lengths[group])[:-1])
            for index, part in zip(group, parts, strict=True):
                values[index] = part
        return np.concatenate(values)

    def _groups(self, batch: SequenceBatch) -> list[NDArray[np.intp]]:
        groups = micro_batches(batch.lengths, self._token_budget)
        if self._must_agree:
            # Every forward pass of a sharded model gathers weights, so that all ranks must do equally many.
            wanted = torch.tensor(len(groups), device=self._device)
            dist.all_reduce(wanted, dist.ReduceOp.MAX)
            groups = micro_batches(batch.lengths, self._token_budget, at_least=int(wanted))
        return groups

    def inputs(self, batch: SequenceBatch) -> dict[str, Tensor]:
        """A micro-batch on the device: padded tokens, where they predict a response token, and per-token fields."""
        longest = int(batch.lengths.max())
        tokens = np.zeros((len(batch), longest), np.int64)
        positions = np.arange(longest)
        tokens[positions < batch.lengths[:, None]] = batch.tokens
        is_response = (positions >= batch.prompt_lengths[:, None]) & (positions < batch.lengths[:, None])
        arrays: dict[str, Any] = {
            "input_ids": tokens,
            "predicts": np.roll(is_response, -1, axis=1),
            "targets": tokens[is_response],
            **batch.per_token,
        }
        return {name: torch.from_numpy(values).to(self._device) for name, values in arrays.items()}


class TrainedModel(SequenceModel):
    """A model with its optimizer."""

    def __init__(self, module: nn.Module, workload: Workload, device: torch.device, learning_rate: float) -> None:
        super().__init__(module, workload, device)
        self._settings: Optimizer = workload.optimizer
        self.optimizer = torch.optim.AdamW(
            self.module.parameters(),
            lr=learning_rate,
            betas=self._settings.betas,
            eps=self._settings.eps,
            weight_decay=self._settings.weight_decay,
        )

    def update(self, batch: SequenceBatch, mini_batch_tokens: Sequence[int], epochs: int, loss: ForwardLoss) -> Any:
        """Train on a rank's sequences.

        Args:
            batch: the rank's sequences; equal parts of them, in order, are its share of each mini-batch.
            mini_batch_tokens: response tokens of each mini-batch over all ranks; losses are means over these.
            epochs: passes over the batch.
            loss: runs the module on a micro-batch and returns sums over its tokens.

        Returns:
            Metrics, each a float: sums over the rank's tokens of all mini-batches and epochs, and `grad_norm`, the
            mean gradient norm before clipping.
        """
        self.module.train()
        totals: dict[str, float] = {}
        norms: list[float] = []
        for _ in range(epochs):
            shares = np.split(np.arange(len(batch)), len(mini_batch_tokens))
            for share, tokens in zip(shares, mini_batch_tokens, strict=True):
                for name, value in self._accumulate(batch.select(share), tokens, loss).items():
                    totals[name] = totals.get(name, 0.0) + value
                norms.append(self._step())
        self.module.eval()
        return {**totals, "grad_norm": float(np.mean(norms))}

    def _accumulate(self, share: SequenceBatch, tokens: int, loss: ForwardLoss) -> dict[str, float]:
        # The wrappers average gradients over ranks; a mean over all ranks' tokens needs the sum.
        scale = dist.get_world_size() / tokens
        groups = self._groups(share)
        sums: dict[str, Tensor] = {}
        for number, group in enumerate(groups):
            self._synchronize_gradients(number == len(groups) - 1)
            with self.autocast():
                result = loss(self.module, self.inputs(share.select(group)))
            torch.autograd.backward(result.loss * scale)
            for name, value in result.metrics.items():
                sums[name] = sums[name] + value if name in sums else value
        return {name: float(value) for name, value in sums.items()}

    def _synchronize_gradients(self, last: bool) -> None:
        if isinstance(self.module, DistributedDataParallel):
            self.module.require_backward_grad_sync = last
        else:
            self.module.set_requires_gradient_sync(last)  # type: ignore[operator]  # an FSDPModule

    def _step(self) -> float:
        norm = nn.utils.clip_grad_norm_(self.module.parameters(), self._settings.grad_clip)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(norm)
