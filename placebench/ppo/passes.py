"""What each phase computes of one micro-batch: the forward passes and losses that models are run with."""

from torch import Tensor, nn

from placebench.ppo.losses import LossSums, policy_loss, value_loss
from placebench.ppo.packing import Pack
from placebench.ppo.training import ForwardLoss
from placebench.spec.workload import Algorithm


def log_probs(module: nn.Module, pack: Pack) -> Tensor:
    """Log-probabilities of the response tokens under a `PolicyModel`, float32 [response tokens]."""
    found: Tensor = module(pack.inputs, pack.predict_positions, pack.targets)
    return found


def values(module: nn.Module, pack: Pack) -> Tensor:
    """A `ValueModel`'s values where a response token is predicted, float32 [response tokens]."""
    found: Tensor = module(pack.inputs, pack.predict_positions)
    return found


def scores(module: nn.Module, pack: Pack) -> Tensor:
    """A `ValueModel`'s values at the response tokens themselves, one behind where they are predicted."""
    found: Tensor = module(pack.inputs, pack.predict_positions + 1)
    return found


def actor_loss(algorithm: Algorithm, kl_coef: float) -> ForwardLoss:
    """The policy's loss; `kl_coef` is the coefficient of the KL where it is a part of the loss."""

    def loss(module: nn.Module, pack: Pack, scale: float) -> LossSums:
        def of_tokens(log_probs: Tensor, entropy: Tensor, tokens: slice) -> LossSums:
            fields = {name: values[tokens] for name, values in pack.fields.items()}
            old, ref, advantages = (fields[name] for name in ("old_log_probs", "ref_log_probs", "advantages"))
            rollout = fields.get("rollout_log_probs")
            sums = policy_loss(log_probs, entropy, old, ref, advantages, algorithm, kl_coef, rollout)
            return LossSums(sums.loss * scale, sums.metrics)

        return LossSums(*module(pack.inputs, pack.predict_positions, pack.targets, of_tokens))

    return loss


def critic_loss(algorithm: Algorithm) -> ForwardLoss:
    """The critic's loss."""

    def loss(module: nn.Module, pack: Pack, scale: float) -> LossSums:
        fields = pack.fields
        sums = value_loss(values(module, pack), fields["values"], fields["returns"], algorithm.clip_value)
        return LossSums(sums.loss * scale, sums.metrics)

    return loss
