"""The cases of `memory.py`: the workload of a length, and the estimate of its peak memory on one device."""

from collections.abc import Sequence

from placebench.predict.memory.estimate import MemoryEstimate
from placebench.spec.config import parse_settings
from placebench.spec.devices import Kind
from placebench.spec.nested import merge
from placebench.spec.placement import Role
from placebench.spec.shapes import job_shapes
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload

PROMPT = 512
# Tokens of a step: four micro-batches of the usual size.
STEP_TOKENS = 65_536


def workload_of(model: str, length: int, settings: Sequence[str] = ()) -> Workload:
    """A step over sequences of so many tokens, as many as a step has room for."""
    sequences = max(1, STEP_TOKENS // length)
    batch = {
        "size": sequences,
        "mini_batch_size": sequences,
        "micro_batch_tokens": max(16_384, length),
        "max_prompt_length": min(PROMPT, length // 2),
        "max_response_length": length - min(PROMPT, length // 2),
    }
    return build_workload(merge({"model": model, "batch": batch}, parse_settings(settings)))


def estimate_of(workload: Workload, roles: Sequence[Role], kind: Kind, have: int) -> MemoryEstimate:
    """The estimate for one device with `have` bytes, on which these roles are."""
    shapes = job_shapes(workload)
    return MemoryEstimate(workload, shapes.actor, shapes.critic, roles, 1, kind, shapes.reward, have)
