"""The workload: everything that must be equal for a comparison of placements to be fair.

The defaults here are a small job that learns within a minute on two cores; any other model starts from
`REAL_MODEL`. A YAML file goes over that, options and `--set key=value` over the file. Every field validates beside
its definition, so that a message names the full key.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from placebench.config import merge
from placebench.errors import Reasons
from placebench.models import PRESETS
from placebench.placement import Role

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

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


_Location = tuple[int | str, ...]
# Of a validation that looks at each value alone.
_EACH_ALONE = "each value alone"


class Conflict(NamedTuple):
    """Values that do not go together.

    Attributes:
        keys: of these values, dotted.
        reason: in words.
    """

    keys: tuple[str, ...]
    reason: str


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def conflicts(self) -> Iterator[Conflict]:
        """Values that do not go together."""
        yield from ()

    @model_validator(mode="after")
    def _goes_together(self, info: ValidationInfo) -> Self:
        if info.context != _EACH_ALONE and (reasons := [conflict.reason for conflict in self.conflicts()]):
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


_SECTIONS = tuple(name for name, info in Workload.model_fields.items() if isinstance(info.default, _Section))

# What a model of real size starts from: verl's learning rates, one epoch, 512 + 512 tokens, bf16, vLLM.
REAL_MODEL: Mapping[str, Any] = {
    "precision": "bfloat16",
    "sharding": "shard",
    "torch_compile": True,
    "rollout": {"backend": "vllm"},
    "batch": {
        "size": 256,
        "mini_batch_size": 128,
        "micro_batch_tokens": 16_384,
        "max_prompt_length": 512,
        "max_response_length": 512,
    },
    "algorithm": {"epochs": 1, "entropy_coeff": 0.0},
    "optimizer": {"actor_lr": 1e-6, "critic_lr": 1e-5},
}
# The KL to the reference is a loss, and advantages are used as they are (Shao et al. 2024, arXiv:2402.03300).
GRPO: Mapping[str, Any] = {
    "batch": {"group_size": 8},
    "algorithm": {"kl_in_reward": False, "kl_loss": True, "kl_estimator": "k3", "whiten_advantages": False},
}
# Programming problems, judged by running what was written; the lengths suit a model whose tokens are characters.
CODE: Mapping[str, Any] = {
    "data": {"reward": "code_tests"},
    "batch": {"max_prompt_length": 128, "max_response_length": 64},
}
# With random weights nothing is learned, and lengths would be noise: prompts and responses are as long as can be.
RANDOM_WEIGHTS: Mapping[str, Any] = {"data": {"fill_prompts": True}, "rollout": {"ignore_eos": True}}


@dataclass(frozen=True)
class Reading:
    """A workload as far as it can be read.

    Attributes:
        workload: with defaults in place of what could not be read; its values need not go together.
        unread: dotted keys whose values are not known, since what sets them is wrong.
        goes_together: whether its values do.
    """

    workload: Workload
    unread: frozenset[str]
    goes_together: bool


def build_workload(content: Mapping[str, Any], origin: str | Callable[[str], str] = "workload") -> Workload:
    """Lay a nested mapping on the preset of its model and validate the result.

    Args:
        content: sections and values as in the YAML file.
        origin: what to call the source in an error message, or what tells it for a dotted key.

    Raises:
        UsageError: one line for every reason, with the wrong key, what is wrong and the value found.
    """
    reasons = Reasons()
    reading = read_workload(content, reasons, origin)
    reasons.raise_any()
    return reading.workload


def read_workload(
    content: Mapping[str, Any],
    reasons: Reasons,
    origin: str | Callable[[str], str] = "workload",
    unread: frozenset[str] = frozenset(),
) -> Reading:
    """As `build_workload`, but what is wrong goes to `reasons`, and all else is read.

    Args:
        content: sections and values as in the YAML file.
        reasons: told one line for every wrong value, and for all that do not go together.
        origin: what to call the source in an error message, or what tells it for a dotted key.
        unread: dotted keys that are set to what nobody could read.
    """
    wrong, given = set(unread), content
    source = (lambda _: origin) if isinstance(origin, str) else origin
    content = _over_presets(content)
    try:
        workload = Workload.model_validate(content, context=_EACH_ALONE)
    except ValidationError as error:
        for one in error.errors():
            location = one["loc"]
            reasons.add([f"{source(_dotted(location))}: {_told(one)}"])
            if one["type"] == "extra_forbidden":
                wrong |= {key for key in _near(location)[:1] if not gives(given, key)}
            else:
                wrong |= keys_below(_dotted(location[:2]))
        workload = Workload.model_validate(
            _without(content, [one["loc"] for one in error.errors()]), context=_EACH_ALONE
        )
    if "model" in wrong:  # whose presets would say the rest
        wrong |= {key for key in workload_keys() if not gives(given, key)}
    parts = {name: getattr(workload, name) for name in _SECTIONS} | {"workload": workload}
    conflicts = [(place, conflict) for place, part in parts.items() for conflict in part.conflicts()]
    reasons.add(
        f"{source(place)}: {place}: {conflict.reason}"
        for place, conflict in conflicts
        if wrong.isdisjoint(conflict.keys)
    )
    return Reading(workload, frozenset(wrong), goes_together=not conflicts)


def _over_presets(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The content over what its model, algorithm and prompts start from."""
    model = content.get("model", SMALL_MODEL)
    if model != SMALL_MODEL:
        is_preset = isinstance(model, str) and model in PRESETS
        content = merge(merge(REAL_MODEL, RANDOM_WEIGHTS if is_preset else {}), content)
    if not asks_for_critic(content):
        content = merge(GRPO, content)
    data = content.get("data")
    if isinstance(data, Mapping) and data.get("source") == "code":
        content = merge(CODE, content)
    return content


def _told(error: "ErrorDetails") -> str:
    """What is wrong with one value, in words."""
    key = _dotted(error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {key!r}{_suggestion(error['loc'])}"
    value = error["input"] if not isinstance(error["input"], Mapping) else None
    found = f" (got {value!r})" if value is not None else ""
    message = error["msg"]
    return f"{key}: {message[0].lower() + message[1:]}{found}"


def _dotted(location: _Location) -> str:
    return ".".join(map(str, location))


def keys_below(key: str) -> set[str]:
    """A dotted key, or all of a section; none for what is neither."""
    return {known for known in workload_keys() if known == key or known.startswith(f"{key}.")}


def gives(content: Mapping[str, Any], key: str) -> bool:
    """Whether a content sets a dotted key."""
    section, _, name = key.rpartition(".")
    below = content.get(section, {}) if section else content
    return isinstance(below, Mapping) and name in below


def _without(content: Mapping[str, Any], locations: Iterable[_Location]) -> dict[str, Any]:
    """A content without its wrong values; locations below a value leave all of it out.

    Keys that are no text are left out too: a location has their text alone.
    """
    left: dict[str, Any] = {
        name: {key: below for key, below in value.items() if isinstance(key, str)}
        if isinstance(value, Mapping)
        else value
        for name, value in content.items()
        if isinstance(name, str)
    }
    for name, *below in locations:
        if below and isinstance(section := left.get(str(name)), Mapping):
            left[str(name)] = {key: value for key, value in section.items() if key != below[0]}
        else:
            left.pop(str(name), None)
    return left


def asks_for_critic(content: Mapping[str, Any]) -> bool:
    """Whether a workload's content, right or wrong, is of an algorithm that trains a critic."""
    algorithm = content.get("algorithm")
    return not (isinstance(algorithm, Mapping) and algorithm.get("name") == "grpo")


def workload_keys() -> tuple[str, ...]:
    """Every dotted key that `--set` and the YAML file know, in order."""
    keys: list[str] = []
    for name, info in Workload.model_fields.items():
        keys += [f"{name}.{key}" for key in type(info.default).model_fields] if name in _SECTIONS else [name]
    return tuple(keys)


def _suggestion(location: _Location) -> str:
    best = _near(location)[:1]
    if best and "." in best[0] and "." in str(location[-1]):
        section, _, key = best[0].partition(".")
        return f"; write it as a section, {section}: {{{key}: ...}}"
    return f"; did you mean {best[0]!r}?" if best else f"; the keys are {', '.join(workload_keys())}"


def _near(location: _Location) -> list[str]:
    """Keys that an unknown one may have been meant to be, the nearest first."""
    import difflib

    # A dotted key of the file says all of where it belongs, in a section too.
    wanted = str(location[-1]) if "." in str(location[-1]) else _dotted(location)
    near = difflib.get_close_matches(wanted, workload_keys(), n=1)
    return near or [key for key in workload_keys() if key.rsplit(".", 1)[-1] == str(location[-1])]
