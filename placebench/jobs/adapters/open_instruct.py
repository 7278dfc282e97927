"""open-instruct's GRPO: always at least a step ahead, with engines apart, or all of it on one GPU."""

from collections.abc import Iterator

from placebench.jobs.adapter import Adapter, AskedPlacement, Settings
from placebench.jobs.adapters.common import RAY_LINES, apart, refuse, shared_by, undivided
from placebench.spec.placement import Role

_SHARED_BY = "vllm_tensor_parallel_size"


def _settings(asked: AskedPlacement) -> Settings:
    refuse(asked, "open-instruct", _cannot_be(asked), "learners:L+engines:E/staleness=1")
    placement, size = asked.placement, shared_by(asked, _SHARED_BY)
    learners = [str(count) for count in placement.pool_of(Role.ACTOR).counts if count]
    return Settings(
        (
            *("--num_learners_per_node", *learners),
            f"--single_gpu_mode={not placement.has_engines}",
            f"--vllm_num_engines={placement.pool_of(Role.ROLLOUT).size // size}",
            f"--{_SHARED_BY}={size}",
            f"--async_steps={placement.staleness}",
            f"--inflight_updates={placement.inflight_updates}",
        )
    )


def _cannot_be(asked: AskedPlacement) -> Iterator[str]:
    """Why open-instruct cannot be told a placement."""
    placement, given = asked.placement, asked.given
    nearest = f"learners:L+engines:E/staleness={placement.staleness or 1}"
    if apart(placement):
        yield f"open-instruct trains no critic, and keeps reference and rewards with its learners; nearest: {nearest}"
    elif not placement.has_engines and (placement.size > 1 or shared_by(asked, _SHARED_BY) > 1):
        yield (
            "open-instruct has engine and learner together only on a single GPU (--single_gpu_mode); nearest:"
            f" {nearest}"
        )
    elif not placement.staleness:
        yield f"open-instruct is never synchronous; nearest: {placement.name}/staleness=1"
    if placement.has_engines:
        yield from undivided(placement.pool_of(Role.ROLLOUT), shared_by(asked, _SHARED_BY), f"--{_SHARED_BY}")
    if any(word.endswith((".yaml", ".yml")) for word in given.command):
        yield (
            "open-instruct cannot read lists from arguments after a YAML file; give the command arguments instead of"
            " the file"
        )


OPEN_INSTRUCT = Adapter(
    name="open-instruct",
    reading="python open_instruct/grpo_fast.py",
    example=("python", "open_instruct/grpo_fast.py"),
    settings=_settings,
    word="learners:1+engines:1/staleness=1",
    quiet=(
        "--local_eval_every=-1",
        "--eval_on_step_0=False",
        "--save_freq=-1",
        # It must be above 0 where states are kept.
        "--checkpoint_state_freq=1000000000",
        "--with_tracking=False",
        "--push_to_hub=False",
        "--try_launch_beaker_eval_jobs_on_weka=False",
        "--try_auto_save_to_beaker=False",
        "--output_dir={folder}/out",
    ),
    quiet_where={"checkpoint_state_dir": ("--checkpoint_state_dir={folder}/checkpoints",)},
    # Its table of a step is as wide as the terminal, and cuts what is wider.
    env={"COLUMNS": "4000", **RAY_LINES},
    timers={
        "Inference Calculation": "ref",
        "Old logprobs Calculation": "old_log_prob",
        "[Training Processes] Loss calculation": "update_actor",
        "[Main Thread] 🗡️ Saving model": "save_checkpoint",
        "[Main Thread] 🗡️ Saving checkpoint state": "save_checkpoint",
    },
    log_format="open-instruct",
    ray="own",
    notes=("open-instruct cannot be told a number of steps: set the command's --total_episodes high enough for them.",),
)
