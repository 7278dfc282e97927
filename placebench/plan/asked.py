"""What of a request can be read, as facts: the checks that every command begins with."""

from collections.abc import Sequence
from pathlib import Path

from placebench.errors import Reasons
from placebench.plan.request import DEFAULT_PLACEMENTS, RunRequest
from placebench.record.checkpoints import read_checkpoint
from placebench.spec.check import Check, Facts
from placebench.spec.launchers import RAY
from placebench.spec.words import readable_placements
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import read_workload


def request_facts(request: RunRequest) -> Facts:
    """What a request says."""
    return Facts(
        request.unknown,
        request=request,
        name=request.name,
        words=DEFAULT_PLACEMENTS if request.placements is None else request.placements,
        launcher=request.launcher or RAY,
        ray_address=request.ray_address,
        checkpoint_every=request.checkpoint_every,
        resume_from=request.resume_from,
    )


def _unreadable_options(request: RunRequest) -> Sequence[str]:
    """Options, settings and keys of the file that cannot be read."""
    return request.wrong


def _find_workload(request: RunRequest, facts: Facts) -> Sequence[str]:
    """The `workload`, as far as it can be read."""
    return read_workload(request.workload, request.origin, facts)


def _find_start(resume_from: Path, facts: Facts) -> None:
    """The checkpoint from which launches `start`, and the `steps_before`, which are in it.

    Raises:
        UsageError: it cannot be read.
    """
    start = read_checkpoint(resume_from)
    facts.add(start=start, steps_before=start.step)


def _find_placements(words: str, workload: Workload, facts: Facts, nodes: Sequence[int] | None = None) -> Sequence[str]:
    """The `placements` that can be on `nodes`, by the devices of each, and `others` as far as they can be read."""
    reasons = Reasons()
    has_critic = None if "algorithm.name" in facts.unknown else workload.algorithm.has_critic
    placements, others = readable_placements(words, nodes, reasons, has_critic=has_critic)
    facts.add(placements=placements, others=others)
    return reasons.lines


OPTIONS = Check(_unreadable_options)
WORKLOAD = Check(_find_workload)
START = Check(_find_start)
PLACEMENTS = Check(_find_placements, {"placements"})
