"""One model in one rank: micro-batches, forward passes, and optimizer steps over the pool's ranks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from placebench.ppo.batch import SequenceBatch, micro_batches
from placebench.ppo.losses import LossSums
from placebench.ppo.models import DecoderModel
from placebench.ppo.packing import Pack, pack
from placebench.predict.memory.model import KEPT_WHOLE
from placebench.spec.workload import Optimizer, Workload

Forward = Callable[[nn.Module, Pack], Tensor]
ForwardLoss = Callable[[nn.Module, Pack, float], LossSums]
"""Runs a module on a micro-batch and returns sums over its tokens, the loss times a factor."""


def place(module: DecoderModel, workload: Workload, device: torch.device, seed: int, *, trained: bool) -> nn.Module:
    """Give a model its weights on the device and spread it over the pool's ranks: sharded (FSDP2) or replicated (DDP).

    A sharded model is never whole on a device: each block is split among the ranks before the next one gets memory.
    Weights that are trained are float32, others have the precision of the computing. Collective over the pool.

    Args:
        module: its weights saved ones, or on the meta device, for which they are drawn.
        workload: says how it is spread, compiled and computed.
        device: this rank's.
        seed: of the draws, the same in all ranks.
        trained: whether it gets gradients.

    Returns:
        The module itself, or DDP around it.
    """
    precision: torch.dtype = getattr(torch, workload.precision)
    if workload.torch_compile:
        # Inside DDP torch would compile the parts of a block between buckets of gradients apart, to send each as soon
        # as it is there: blocks are small enough, and parts keep more activations.
        torch._dynamo.config.optimize_ddp = False
    torch.manual_seed(seed)
    whole = workload.sharding == "shard" and stays_whole(module)
    for part in (*module.layers, module):
        module.materialize(part, device, torch.float32 if trained else precision)
        if part is module:
            module.tie_weights()
        else:
            _wrap_forward(part, workload, trained)
        if workload.sharding == "shard":
            _shard(part, precision, whole=whole)
    if workload.sharding == "replicate" and trained:
        return DistributedDataParallel(module)
    return module


def _wrap_forward(layer: nn.Module, workload: Workload, trained: bool) -> None:
    """Compile a block, or let the backward pass compute its activations anew, below the hooks that shard it."""
    forward: Callable[..., Any] = layer.forward
    if workload.torch_compile:
        forward = torch.compile(forward)
    if workload.activation_checkpointing and trained:
        forward = partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)
    layer.forward = forward


def stays_whole(module: nn.Module) -> bool:
    """Whether the weights that a sharded model computes with stay from one micro-batch to the next, block by block.

    So it is on a single rank, which has no others to gather them from and would only cast them anew, twice a
    micro-batch, as long as the copy is small.
    """
    return dist.get_world_size() == 1 and sum(one.numel() for one in module.parameters()) <= KEPT_WHOLE


def _shard(part: nn.Module, precision: torch.dtype, *, whole: bool) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
    # None lets torch keep the root whole, whose weights the backward pass needs first.
    fully_shard(part, mp_policy=policy, reshard_after_forward=False if whole else None)


def whole_weights(module: DecoderModel, language_model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight of the language model in `module` by its name there; sharded ones are gathered block by block.

    Collective: all ranks of the pool iterate to the end. A tensor is valid until the next one is asked for.
    """
    names = {part: f"{name}." for name, part in language_model.named_modules()}
    for layer in module.layers:
        with _gathered(layer):
            yield from ((names[layer] + name, weight.detach()) for name, weight in layer.named_parameters())
    in_layers = tuple(names[layer] for layer in module.layers)
    with _gathered(module):
        for name, weight in language_model.named_parameters():
            if not name.startswith(in_layers):
                yield name, weight.detach()


def _reshard(module: nn.Module) -> None:
    """Give back the memory of all weights that a pass without gradient has left whole, the root's at least."""
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


@contextmanager
def _gathered(part: nn.Module) -> Iterator[None]:
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(part, FSDPModule):
        yield
        return
    part.unshard()
    try:
        yield
    finally:
        part.reshard()


class SequenceModel:
    """Forward passes of a model over a rank's sequences, packed into micro-batches.

    With `precision: bfloat16` the computing is in bfloat16; weights that are trained, their gradients over the ranks
    and optimizer states are float32.

    Attributes:
        module: the model, spread over the pool's ranks.
        unwrapped: the model without what spreads it around it.
    """

    def __init__(
        self, module: DecoderModel, workload: Workload, device: torch.device, seed: int, *, trained: bool = False
    ) -> None:
        self.unwrapped = module
        # Dropout, of models that have any, would part the policy that is trained from the one that generated.
        self.module = place(module, workload, device, seed, trained=trained).eval()
        self._batch = workload.batch
        self._device = device
        self._precision: torch.dtype = getattr(torch, workload.precision)
        self._is_sharded = workload.sharding == "shard"

    def autocast(self) -> AbstractContextManager[object]:
        """The context of every forward pass: a replicated model computes in bfloat16 where the workload says so."""
        casts = self._precision is torch.bfloat16 and not self._is_sharded
        return torch.autocast(self._device.type, torch.bfloat16, enabled=casts)

    def per_token(self, batch: SequenceBatch, forward: Forward) -> NDArray[np.float32]:
        """Apply `forward` to every micro-batch without gradient.

        Returns:
            One value per response token, float32 [sum of response lengths], in the batch's order.
        """
        (groups,) = self._groups([batch])
        with torch.no_grad(), self.autocast():
            results = [forward(self.module, self._pack(batch.select(group))) for group in groups]
        if self._is_sharded:
            _reshard(self.module)
        values: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(batch)
        for group, result in zip(groups, results, strict=True):
            parts = np.split(result.float().cpu().numpy(), np.cumsum(batch.response_lengths[group])[:-1])
            for index, part in zip(group, parts, strict=True):
                values[index] = part
        return np.concatenate(values)

    def held_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds of the model between its passes, by what they are."""
        return {"weights": sum(_bytes(parameter) for parameter in self.module.parameters())}

    def per_sequence(self, batch: SequenceBatch, forward: Forward) -> NDArray[np.float32]:
        """Apply `forward` likewise and keep each response's last value, float32 [sequences]."""
        values: NDArray[np.float32] = self.per_token(batch, forward)[np.cumsum(batch.response_lengths) - 1]
        return values

    def _groups(self, batches: Sequence[SequenceBatch]) -> list[list[NDArray[np.intp]]]:
        """The micro-batches of each of the batches; the host waits once for what the ranks agree on."""
        budget = self._batch.micro_batch_tokens
        groups = [micro_batches(batch.lengths, budget) for batch in batches]
        if self._is_sharded:
            # Every forward pass of a sharded model gathers weights, so that all ranks must do equally many.
            wanted = torch.tensor([len(one) for one in groups], device=self._device)
            dist.all_reduce(wanted, dist.ReduceOp.MAX)
            counts = wanted.tolist()
            groups = [micro_batches(one.lengths, budget, count) for one, count in zip(batches, counts, strict=True)]
        return groups

    def _pack(self, batch: SequenceBatch) -> Pack:
        longest = self._batch.max_prompt_length + self._batch.max_response_length
        return pack(batch, longest, self._device, self._precision)


class TrainedModel(SequenceModel):
    """A model with its optimizer."""

    def __init__(
        self, module: DecoderModel, workload: Workload, device: torch.device, seed: int, learning_rate: float
    ) -> None:
        super().__init__(module, workload, device, seed, trained=True)
        self._settings: Optimizer = workload.optimizer
        self._parameters = list(self.module.parameters())
        self._stays_whole = self._is_sharded and stays_whole(module)
        self.optimizer = ShardAdamW(
            self._parameters,
            lr=learning_rate,
            betas=self._settings.betas,
            eps=self._settings.eps,
            weight_decay=self._settings.weight_decay,
            fused=device.type == "cuda",
        )

    def held_bytes(self) -> dict[str, int]:
        """Bytes that this rank holds of the model and its training, by what they are."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return super().held_bytes() | {
            "gradients": sum(_bytes(gradient) for gradient in gradients),
            "optimizer": sum(_bytes(value) for value in states if isinstance(value, Tensor)),
        }

    def update(
        self, batch: SequenceBatch, mini_batch_tokens: Sequence[int], epochs: int, loss: ForwardLoss
    ) -> dict[str, float]:
        """Train on a rank's sequences.

        Args:
            batch: the rank's sequences; equal parts of them, in order, are its share of each mini-batch.
            mini_batch_tokens: response tokens of each mini-batch over all ranks; losses are means over these.
            epochs: passes over the batch.
            loss: of a micro-batch.

        Returns:
            Metrics: sums over the rank's tokens of all mini-batches and epochs; `grad_norm`, the mean gradient norm
            before clipping; and `lr`, the optimizer's learning rate.
        """
        totals: dict[str, Tensor] = {}
        norms: list[Tensor] = []
        shares = [batch.select(part) for part in np.split(np.arange(len(batch)), len(mini_batch_tokens))]
        groups = self._groups(shares)
        for _ in range(epochs):
            for share, parts, tokens in zip(shares, groups, mini_batch_tokens, strict=True):
                self._accumulate([share.select(part) for part in parts], tokens, loss, totals)
                norms.append(self._step())
        # Read only now, so that the device never waits for the host in between.
        sums = {name: float(value) for name, value in totals.items()}
        norm, rate = float(torch.stack(norms).mean()), float(self.optimizer.param_groups[0]["lr"])
        return sums | {"grad_norm": norm, "lr": rate}

    def _accumulate(
        self, parts: Sequence[SequenceBatch], tokens: int, loss: ForwardLoss, totals: dict[str, Tensor]
    ) -> None:
        """Add up the gradients of a mini-batch's micro-batches."""
        # The wrappers average gradients over ranks; a mean over all ranks' tokens needs the sum.
        scale = dist.get_world_size() / tokens
        for number, part in enumerate(parts):
            self._announce(is_last=number == len(parts) - 1)
            with self.autocast():
                result = loss(self.module, self._pack(part), scale)
            torch.autograd.backward(result.loss)
            for name, value in result.metrics.items():
                totals[name] = totals[name] + value if name in totals else value

    def _announce(self, *, is_last: bool) -> None:
        """Tell what spreads the model whether a backward pass is the last one before a step of the optimizer."""
        if isinstance(self.module, DistributedDataParallel):
            self.module.require_backward_grad_sync = is_last
        elif self._is_sharded and dist.get_world_size() == 1:
            from torch.distributed.fsdp import FSDPModule

            assert isinstance(self.module, FSDPModule)
            # Ranks that are several spread gradients after each micro-batch, so that none holds them whole.
            self.module.set_requires_gradient_sync(is_last)
            self.module.set_reshard_after_backward(is_last or not self._stays_whole)

    def _step(self) -> Tensor:
        norm = self._gradient_norm()
        self.optimizer.scaled_step((self._settings.grad_clip / (norm + 1e-6)).clamp(max=1.0))
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _gradient_norm(self) -> Tensor:
        """The norm of all gradients, from each rank's own shards, with one sum over the ranks."""
        gradients = [_local(parameter.grad) for parameter in self._parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self._is_sharded:
            squares = norm.square()
            dist.all_reduce(squares)
            norm = squares.sqrt()
        return norm


class ShardAdamW(torch.optim.AdamW):
    """AdamW that computes on what a rank has of its parameters; its states are spread like these.

    The update is elementwise, so that no shard takes part in another's, and the numbers are the same. Torch's own hands
    DTensors on: with torch 2.11 every fused step over them leaves five objects a parameter behind for good, which full
    passes of the garbage collector visit.
    """

    grad_scale: Tensor | None = None
    """What the fused kernel divides gradients by, which torch reads here."""

    def scaled_step(self, factor: Tensor) -> None:
        """Step with every gradient times `factor`, float32 on the gradients' device.

        The fused kernel does that as it reads them, so that they are not read and written once more before it.
        """
        if self.defaults["fused"]:
            self.grad_scale = factor.reciprocal()
        else:
            gradients = [
                _local(one.grad) for group in self.param_groups for one in group["params"] if one.grad is not None
            ]
            torch._foreach_mul_(gradients, factor)
        self.step()

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        has_complex: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        for tensors in lists:
            tensors[:] = [_local(tensor) for tensor in tensors]
        return has_complex


def _local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor: of a sharded one, its shard."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _bytes(tensor: Tensor) -> int:
    """Bytes of a tensor on this rank."""
    local = _local(tensor)
    return local.numel() * local.element_size()
