"""The workload: everything that must be equal for a comparison of placements to be fair.

The defaults here are a small job that learns within a minute on two cores. Every field validates beside its
definition, so that a message names the full key. What other models start from, and how files and options are laid over
it: see `workload_reading`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from placebench.spec.config import flatten
from placebench.spec.placement import Placement, Role, Scaling

# The preset that learns within a minute on two cores; the defaults below are for it.
SMALL_MODEL = "tiny"

EngineSize = Literal[1, 2, 4, 8]
"""Devices that share one vLLM engine."""
MOST = 2**31 - 1
"""The largest count of anything."""
Positive = Annotated[int, Field(gt=0, le=MOST)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Coefficient = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]

EACH_ALONE = "each value alone"
"""Context of a validation that leaves out which values go together."""


class Conflict(NamedTuple):
    """Values that do not go together."""

    keys: tuple[str, ...]
    """Dotted keys of these values."""
    reason: str
    """Why they do not go together."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def conflicts(self) -> Iterator[Conflict]:
        """Values that do not go together."""
        yield from ()

    @model_validator(mode="after")
    def _goes_together(self, info: ValidationInfo) -> Self:
        if info.context != EACH_ALONE and (reasons := [conflict.reason for conflict in self.conflicts()]):
            raise ValueError("; ".join(reasons))
        return self


class Data(_Section):
    """Where prompts come from and how a response is scored."""

    source: str = Field(
        "arithmetic",
        description="'arithmetic' (generated from the seed), 'code' (small programming problems), a .jsonl or a"
        " .parquet file",
    )
    prompt_key: str = Field("prompt", description="field of the file that holds the prompt")
    answer_key: str = Field("answer", description="field of the file that holds the answer handed to the reward")
    reward: str = Field("prefix_match", description="a built-in reward's name, or module:function")
    operand_max: Positive = Field(4, description="largest operand of the arithmetic task")
    fill_prompts: bool = Field(
        False, description="solved examples fill every arithmetic prompt up to batch.max_prompt_length characters"
    )


class Batch(_Section):
    """How much work one step is, summed over all devices."""

    size: Positive = Field(128, description="sequences per step")
    group_size: Positive = Field(1, description="responses to each prompt of a step")
    mini_batch_size: Positive = Field(32, description="sequences per optimizer step")
    micro_batch_tokens: Positive = Field(16384, description="most tokens in one forward pass of one device")
    max_prompt_length: Positive = Field(16, description="tokens; longer prompts are refused")
    max_response_length: Positive = Field(8, description="tokens; generation stops there")

    def conflicts(self) -> Iterator[Conflict]:
        """Values that do not go together."""
        for key, divisor in (("mini_batch_size", self.mini_batch_size), ("group_size", self.group_size)):
            if self.size % divisor:
                yield Conflict(("batch.size", f"batch.{key}"), f"size {self.size} is not a multiple of {key} {divisor}")
        if self.micro_batch_tokens < self.max_prompt_length + self.max_response_length:
            yield Conflict(
                ("batch.micro_batch_tokens", "batch.max_prompt_length", "batch.max_response_length"),
                f"micro_batch_tokens {self.micro_batch_tokens} cannot hold one sequence of"
                f" {self.max_prompt_length + self.max_response_length} tokens",
            )


class Rollout(_Section):
    """How responses are generated."""

    backend: Literal["torch", "vllm"] = "torch"
    temperature: Rate = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    ignore_eos: bool = Field(False, description="a response ends at its length, never at an end-of-sequence token")
    response_lengths: Literal["longest", "lognormal"] = Field(
        "longest", description="length of a response that nothing else ends: max_response_length, or drawn"
    )
    response_length_median: Positive = Field(256, description="median of the drawn lengths, tokens")
    response_length_sigma: Rate = Field(0.8, description="standard deviation of the drawn lengths' logarithm")
    tensor_parallel_size: EngineSize = Field(1, description="devices that share one vLLM engine")
    memory_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="most of a device's memory that a vLLM engine may take: weights, working memory, keys and values;"
        " null for those of the whole batch",
    )
    sleep: bool = Field(True, description="a vLLM engine gives its GPU memory back while the pool trains")
    cuda_graphs: bool = Field(True, description="vLLM replays decoding as CUDA graphs")

    def conflicts(self) -> Iterator[Conflict]:
        """Values that do not go together."""
        if self.backend == "torch" and self.tensor_parallel_size > 1:
            yield Conflict(
                ("rollout.backend", "rollout.tensor_parallel_size"),
                f"tensor_parallel_size {self.tensor_parallel_size} needs backend vllm: torch generates on single"
                " devices",
            )
        if self.backend == "torch" and self.memory_share is not None:
            yield Conflict(
                ("rollout.backend", "rollout.memory_share"),
                f"memory_share {self.memory_share} needs backend vllm: with torch all sequences of a step generate at"
                " once",
            )


class Algorithm(_Section):
    """Settings of PPO and GRPO, under verl's names; GRPO has no critic and so no use for gamma, lam and clip_value."""

    name: Literal["ppo", "grpo"] = "ppo"
    gamma: Fraction = 1.0
    lam: Fraction = 0.95
    clip_ratio: Rate = 0.2
    clip_value: Rate = 0.5
    importance_cap: Rate = Field(2.0, description="largest importance weight of a token that older weights generated")
    entropy_coeff: Coefficient = 0.01
    epochs: Positive = 2
    kl_in_reward: bool = True
    kl_loss: bool = Field(
        False, description="add the KL to the actor's loss, with kl_estimator k3: k1's gradient is 0 on average"
    )
    kl_estimator: Literal["k1", "k3"] = "k1"
    kl_coef: Coefficient = 0.001
    kl_control: Literal["fixed", "adaptive"] = "fixed"
    kl_target: Rate = 0.1
    kl_horizon: Positive = 10_000
    whiten_advantages: bool = True
    whiten_rewards: bool = False
    norm_adv_by_std_in_grpo: bool = Field(
        True, description="divide a response's advantage by the standard deviation of its group's rewards"
    )

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained beside the actor."""
        return self.name == "ppo"

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        """The roles whose models are trained."""
        return (Role.ACTOR, Role.CRITIC) if self.has_critic else (Role.ACTOR,)


class Optimizer(_Section):
    """AdamW at constant rates, and clipping of the global gradient norm, for actor and critic.

    Weight decay is decoupled (Loshchilov and Hutter 2019, arXiv:1711.05101) and goes over all parameters.
    """

    actor_lr: Rate = 1e-3
    critic_lr: Rate = 3e-3
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: Rate = 1e-8
    weight_decay: Coefficient = 0.0
    grad_clip: Rate = 1.0


class Workload(_Section):
    """One training job, the same under every placement.

    `steps` counts every step of a launch; the first `warmup_steps` of them are kept in the files and
    left out of the numbers.
    """

    model: str = Field(SMALL_MODEL, description="a preset, a folder, or a hub id")
    critic_model: str | None = Field(None, description="the critic's model; the actor's when not given")
    reward_model: str | None = Field(
        None, description="a model with one score, of the actor's vocabulary, in place of data.reward"
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    steps: Positive = 10
    warmup_steps: Annotated[int, Field(ge=0)] = 2
    precision: Literal["float32", "bfloat16"] = "float32"
    sharding: Literal["replicate", "shard"] = "replicate"
    activation_checkpointing: bool = False
    torch_compile: bool = Field(False, description="compile the transformer blocks for training and scoring")
    trace_kernels: bool = Field(
        True, description="on GPUs, run in the first round one step more than `steps`, to trace what it spends time on"
    )
    data: Data = Data()
    batch: Batch = Batch()
    rollout: Rollout = Rollout()
    algorithm: Algorithm = Algorithm()
    optimizer: Optimizer = Optimizer()

    def conflicts(self) -> Iterator[Conflict]:
        """Values of several sections, or of none, that do not go together."""
        if self.warmup_steps >= self.steps:
            yield Conflict(
                ("warmup_steps", "steps"),
                f"warmup_steps {self.warmup_steps} leaves none of {self.steps} steps to measure",
            )
        if not self.algorithm.has_critic:
            if self.batch.group_size < 2:
                yield Conflict(
                    ("algorithm.name", "batch.group_size"),
                    "batch.group_size must be at least 2: grpo compares a response with others to its prompt",
                )
            if self.critic_model is not None:
                yield Conflict(
                    ("algorithm.name", "critic_model"),
                    "critic_model: grpo trains no critic; leave it out, or set algorithm.name=ppo",
                )


SECTIONS = tuple(name for name, info in Workload.model_fields.items() if isinstance(info.default, _Section))
"""Fields that are sections, in order."""


def workload_keys() -> tuple[str, ...]:
    """Every dotted key that `--set` and the YAML file know, in order."""
    return tuple(flatten(Workload().model_dump()))


def choices_of(key: str) -> tuple[str, ...]:
    """The values that a dotted key may have, where they are a few words; empty for any other key."""
    section: type[BaseModel] = Workload
    for name in key.split("."):
        info = section.model_fields.get(name)
        kind = info.annotation if info else None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            section = kind
    if kind is bool:
        return "true", "false"
    return get_args(kind) if get_origin(kind) is Literal else ()


def keys_below(key: str) -> set[str]:
    """A dotted key, or all of a section; none for what is neither."""
    return {known for known in workload_keys() if known == key or known.startswith(f"{key}.")}


def placed_workload(workload: Workload, placement: Placement) -> Workload:
    """The workload that a launch of the placement trains.

    Devices that are replicas each hold whole models. Under weak scaling the workload's batch is what one device works
    on, so that batch and mini-batch grow with the devices; otherwise the workload stays what it is.
    """
    changes: dict[str, object] = {}
    if placement.tensor_parallel is not None:
        shared = {"tensor_parallel_size": placement.tensor_parallel}
        changes["rollout"] = workload.rollout.model_copy(update=shared)
    if placement.scaling is not None:
        changes["sharding"] = "replicate"
    if placement.scaling is Scaling.WEAK:
        batch, devices = workload.batch, placement.size
        larger = {"size": batch.size * devices, "mini_batch_size": batch.mini_batch_size * devices}
        changes["batch"] = batch.model_copy(update=larger)
    return workload.model_copy(update=changes)
