"""The workload: everything that must be equal for a comparison of placements to be fair.

The defaults here are a small job that learns within a minute on two cores. Every field validates beside its
definition, so that a message names the full key. What other models start from, and how files and options are laid over
it: see `workload_reading`.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.nested import flatten
from placebench.spec.placement import Placement, Role, Scaling
from placebench.spec.text import plural

# The preset that learns within a minute on two cores; the defaults below are for it.
SMALL_MODEL = "tiny"

EngineSize = Literal[1, 2, 4, 8]
"""Devices that share one vLLM engine."""
# What a number may be: far beyond all that is trained with, and near enough that no sum, plan or kernel overflows.
MOST = 2**31 - 1
"""The largest count of anything."""
Positive = Annotated[int, Field(gt=0, le=MOST)]
Steps = Annotated[int, Field(gt=0, le=MOST_STEPS)]
Passes = Annotated[int, Field(gt=0, le=1000)]
MOST_SEQUENCES = 10_000_000
Sequences = Annotated[int, Field(gt=0, le=MOST_SEQUENCES)]
Tokens = Annotated[int, Field(gt=0, le=10_000_000)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=1e-6, le=1)]
Coefficient = Annotated[float, Field(ge=0, le=1e6)]
Factor = Annotated[float, Field(ge=1e-12, le=1e12)]
"""Of a limit, which users raise far to have none."""
LearningRate = Annotated[float, Field(ge=1e-30, le=100)]

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

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: object, info: ValidationInfo) -> object:
        """A yes or no where a number belongs is a slip, which pydantic reads as 1 or 0."""
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and get_args(kind) == get_args(EngineSize):
            raise PydanticCustomError("literal_error", "Input should be 1, 2, 4 or 8")
        if isinstance(value, bool) and kind in (int, float, Share | None):
            raise PydanticCustomError("int_type" if kind is int else "float_type", "Input should be a number")
        return value

    @model_validator(mode="after")
    def _goes_together(self, info: ValidationInfo) -> Self:
        if info.context != EACH_ALONE and (reasons := [conflict.reason for conflict in self.conflicts()]):
            raise ValueError("; ".join(reasons))
        return self


class Data(_Section):
    """Where prompts come from and how a response is scored."""

    source: str = Field(
        "arithmetic",
        description="arithmetic (sums, drawn by the seed), code (programming problems), a .jsonl or a .parquet file",
    )
    prompt_key: str = Field("prompt", description="field of the file with the prompt")
    answer_key: str = Field("answer", description="field of the file with the answer that the reward gets")
    reward: str = Field(
        "prefix_match",
        description="prefix_match, exact_match, last_number, code_tests, or a function of your own, module:function",
    )
    operand_max: Positive = Field(4, description="largest number in a sum")
    fill_prompts: bool = Field(
        False,
        description="fill every arithmetic prompt with solved sums up to the longest length; true by default for"
        " presets other than tiny",
    )


class Batch(_Section):
    """How much work one step is, summed over all devices."""

    size: Sequences = Field(128, description="sequences a step, over all devices")
    group_size: Sequences = Field(1, description="responses to each prompt")
    mini_batch_size: Sequences = Field(
        32,
        description="sequences an optimizer step; chosen to fit where only batch.size is given and the default does not"
        " divide it",
    )
    micro_batch_tokens: Positive = Field(
        16384,
        description="most tokens that a device takes in one pass; lower it where memory is short",
    )
    max_prompt_length: Tokens = Field(16, description="tokens; a longer prompt is refused")
    max_response_length: Tokens = Field(8, description="tokens, at which generation stops")

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

    backend: Literal["torch", "vllm"] = Field("torch", description="what generates")
    temperature: Annotated[float, Field(ge=1e-3, le=1000)] = Field(1.0, description="of sampling")
    top_p: Share = Field(
        1.0,
        description="sample from the likeliest words of this total probability",
    )
    ignore_eos: bool = Field(
        False, description="a response ends only at its length; true by default for presets other than tiny"
    )
    response_lengths: Literal["longest", "lognormal"] = Field(
        "longest",
        description="length of a response that nothing else ends: longest (batch.max_response_length) or lognormal"
        " (drawn)",
    )
    response_length_median: Tokens = Field(256, description="median of drawn lengths, tokens")
    response_length_sigma: Annotated[float, Field(ge=1e-12, le=10)] = Field(
        0.8, description="standard deviation of the drawn lengths' logarithm"
    )
    tensor_parallel_size: EngineSize = Field(
        1,
        description="devices that share one vLLM engine: 1, 2, 4 or 8; for learners:…+engines:… the word sets it",
    )
    memory_share: Share | None = Field(
        None,
        description="largest fraction of a device's memory that a vLLM engine may take for weights, working memory,"
        " keys and values; null: as much as the whole batch needs",
    )
    log_probs: Literal["needed", "always"] = Field(
        "needed",
        description="steps in which a vLLM engine, too, returns the log-probability of each token, which the policy"
        " computes in any case: needed (all steps where older weights may have generated, else those of the warm-up)"
        " or always",
    )
    sleep: bool = Field(True, description="a vLLM engine gives back its GPU memory while its pool trains")
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
        if self.response_lengths == "longest":
            for key in ("response_length_median", "response_length_sigma"):
                if (value := getattr(self, key)) != Rollout.model_fields[key].default:
                    yield Conflict(
                        ("rollout.response_lengths", f"rollout.{key}"),
                        f"{key} {value} needs response_lengths lognormal: with longest no length is drawn",
                    )


class Algorithm(_Section):
    """Settings of PPO and GRPO, under verl's names; GRPO has no critic and so no use for gamma, lam and clip_value."""

    name: Literal["ppo", "grpo"] = Field("ppo", description="ppo or grpo")
    gamma: Fraction = Field(1.0, description="γ of generalized advantage estimation")
    lam: Fraction = Field(0.95, description="λ of generalized advantage estimation")
    clip_ratio: Factor = Field(0.2, description="how far from 1 the policy's ratio may be before it is clipped")
    clip_value: Factor = Field(0.5, description="how far a value may move from the old one before its loss is clipped")
    importance_cap: Factor = Field(2.0, description="largest weight of a token that older weights generated")
    entropy_coeff: Coefficient = Field(0.01, description="weight of the entropy in the policy's loss")
    epochs: Passes = Field(2, description="passes over a step's batch")
    kl_in_reward: bool = Field(True, description="the KL to the reference lowers every token's reward")
    kl_loss: bool = Field(
        False,
        description="the KL to the reference is a part of the policy's loss; with k3, since the gradient of k1 is 0 on"
        " average",
    )
    kl_estimator: Literal["k1", "k3"] = Field("k1", description="k1, log π − log π_ref; or k3, which is never negative")
    kl_coef: Coefficient = Field(0.001, description="weight of the KL")
    kl_control: Literal["fixed", "adaptive"] = Field(
        "fixed",
        description="fixed, or adaptive: the weight follows the KL measured",
    )
    kl_target: Factor = Field(0.1, description="for adaptive: the KL wanted")
    kl_horizon: Positive = Field(
        10_000, description="for adaptive: a number of sequences; the larger, the slower the weight changes"
    )
    whiten_advantages: bool = Field(True, description="advantages of a step have mean 0 and deviation 1")
    whiten_rewards: bool = Field(False, description="scale the rewards of a step to deviation 1 and keep their mean")
    norm_adv_by_std_in_grpo: bool = Field(True, description="divide by the deviation of a group's rewards")

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

    actor_lr: LearningRate = Field(1e-3, description="learning rate of the actor")
    critic_lr: LearningRate = Field(3e-3, description="learning rate of the critic")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="of AdamW")
    eps: Annotated[float, Field(ge=1e-30, le=1)] = Field(1e-8, description="of AdamW")
    weight_decay: Annotated[float, Field(ge=0, le=1000)] = Field(0.0, description="of AdamW")
    grad_clip: Factor = Field(1.0, description="largest norm of the gradient")


class Workload(_Section):
    """One training job, the same under every placement.

    `steps` counts every step of a launch; the first `warmup_steps` of them are kept in the files and
    left out of the numbers.
    """

    model: str = Field(
        SMALL_MODEL,
        description="tiny, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-7b, llama-3.1-8b: shapes with random weights; a folder"
        " with config.json; or a hub id, owner/name",
    )
    critic_model: str | None = Field(None, description="the critic's model, in the same words; by default the actor's")
    reward_model: str | None = Field(None, description="a model that scores in place of data.reward, see placements")
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = Field(0, description="of data, random weights and sampling")
    steps: Steps = Field(6, description="training steps of a launch")
    warmup_steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] = Field(
        2,
        description="first steps of a launch, which are left out of the numbers",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="of computation; master weights and Adam's states are float32",
    )
    sharding: Literal["replicate", "shard"] = Field(
        "replicate",
        description="whole models on every device of a pool, or FSDP2 over the pool",
    )
    activation_checkpointing: bool = Field(
        False,
        description="recompute activations instead of keeping them: less memory, more work",
    )
    torch_compile: bool = Field(False, description="compile the transformer blocks for training and scoring")
    trace_kernels: bool = Field(
        True,
        description="on GPUs, run one more step in each launch of the first round, to trace what it spends its time on",
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
                f"warmup_steps {self.warmup_steps} leaves none of {self.steps} steps to measure: raise steps or"
                " lower warmup_steps",
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


def step_text(workload: Workload) -> str:
    """What a step is, for people: `ppo, 256 sequences of up to 512 + 512 tokens, 2 mini-batches × 1 epoch`."""
    batch, epochs = workload.batch, workload.algorithm.epochs
    prompts = plural(batch.size // batch.group_size, "prompt")
    groups = f" ({prompts} × {batch.group_size} responses)" if batch.group_size > 1 else ""
    return (
        f"{workload.algorithm.name}, {plural(batch.size, 'sequence')}{groups} of up to"
        f" {batch.max_prompt_length} + {batch.max_response_length} tokens,"
        f" {plural(batch.size // batch.mini_batch_size, 'mini-batch', 'mini-batches')} × {plural(epochs, 'epoch')}"
    )


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
