"""prime-rl: trainer and engines on GPUs apart, always asynchronous, weights taken in flight."""

from collections.abc import Iterator

from placebench.jobs.adapter import Adapter, AskedPlacement, Settings
from placebench.jobs.adapters.common import apart, by_node, refuse, shared_by, undivided
from placebench.spec.placement import Placement, Role

_TRAINER_STEPS = "{folder}/trainer.jsonl"
_SHARED_BY = "inference.vllm.tensor-parallel-size"


def _settings(asked: AskedPlacement) -> Settings:
    placement = asked.placement
    refuse(asked, "prime-rl", _cannot_be(asked), f"learners:L+engines:E/{_ahead(placement)}")
    args = (
        *("--deployment.num-train-gpus", str(placement.pool_of(Role.ACTOR).size)),
        *("--deployment.num-infer-gpus", str(placement.pool_of(Role.ROLLOUT).size)),
        *(f"--{_SHARED_BY}", str(_engine_size(asked))),
        *("--orchestrator.max-off-policy-steps", str(placement.staleness)),
    )
    return Settings(args)


def _cannot_be(asked: AskedPlacement) -> Iterator[str]:
    """Why prime-rl cannot be told a placement."""
    placement = asked.placement
    ahead = _ahead(placement)
    if not placement.has_engines:
        yield f"prime-rl has its engines on GPUs of their own; nearest: learners:L+engines:E/{ahead}"
    elif not placement.staleness or not placement.inflight_updates:
        yield (
            "prime-rl is always ahead, and its engines go on generating with new weights; nearest:"
            f" {placement.name.split('/')[0]}/{ahead}"
        )
    elif apart(placement):
        yield f"prime-rl has only a trainer, without a critic, and engines; nearest: learners:L+engines:E/{ahead}"
    if len(by_node(placement)) > 1:
        yield "prime-rl starts on several nodes only through SLURM; name devices of one node"
    yield from undivided(placement.pool_of(Role.ROLLOUT), _engine_size(asked), f"--{_SHARED_BY}")


def _ahead(placement: Placement) -> str:
    """The settings that a placement must have."""
    return f"staleness={placement.staleness or 1}/inflight_updates=true"


def _engine_size(asked: AskedPlacement) -> int:
    """As arguments say it, or the TOML file, which has underscores."""
    return shared_by(asked, _SHARED_BY, _SHARED_BY.replace("-", "_"))


PRIME_RL = Adapter(
    name="prime-rl",
    reading="rl of prime-rl, with a TOML file",
    example=("rl", "@", "rl.toml"),
    settings=_settings,
    word="learners:1+engines:1/staleness=1/inflight_updates=true",
    # Trainer and orchestrator have steps of their own, and by default write them into one file.
    limits=lambda steps: ("--max-steps", str(steps), "--trainer.monitors.file.path", _TRAINER_STEPS),
    quiet=(
        "--no-ckpt",
        "--no-orchestrator.eval",
        "--no-monitors.wandb",
        "--no-orchestrator.monitors.prime",
        *("--output-dir", "{folder}/out"),
    ),
    log_format="jsonl",
    log_files=(_TRAINER_STEPS,),
    notes=("prime-rl's steps are those of its trainer.",),
)
