"""Reasons why a job of the user's cannot be run as it is asked for, each one line with what to do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from placebench.errors import Reasons
from placebench.jobs.adapters.command import COMMAND
from placebench.jobs.job import Job
from placebench.jobs.spec import read_job
from placebench.jobs.usable import dangers, lacks_ray, unusable
from placebench.plan.request import RunRequest
from placebench.record.job_record import JobRecord
from placebench.spec.check import Check, Facts
from placebench.spec.devices import Device, devices_per_node
from placebench.spec.legible import shown
from placebench.spec.placement import Placement
from placebench.spec.placement_checks import shared_folders, unreached_staleness


def _find_job(job_keys: Mapping[str, Any], request: RunRequest, facts: Facts) -> tuple[str, ...]:
    """The `job`, where nothing of it is wrong."""
    found = Facts()
    lines = read_job(job_keys, request.origin, found)
    facts.add(job=Job(found["job"]) if "job" in found else None)
    return lines


def _find_placements(job: Job, words: str, devices: Sequence[Device], facts: Facts) -> tuple[str, ...]:
    """The `placements` that can be on the devices, of words and of names that the job gives."""
    reasons = Reasons()
    placements = job.placements(words, devices_per_node(devices), devices[0].kind, reasons)
    facts.add(placements=placements)
    return reasons.lines


def _unreached_staleness(job: Job, placements: Sequence[Placement]) -> Iterator[str]:
    for one in () if job.spec.until_end else placements:
        yield from (f"placement {shown(one.name)}: {reason}" for reason in unreached_staleness(one, job.spec.steps))


def _unused_first_node(job: Job, placements: Sequence[Placement], devices: Sequence[Device]) -> Iterator[str]:
    """The command starts on the first node of a SLURM job, with what it needs on the others."""
    for one in placements if job.spec.ray_address is None else ():
        if not any(pool.counts[0] for pool in one.pools):
            yield (
                f"placement {shown(one.name)}: it has no device on {devices[0].node}, the first node, where the command"
                " starts: give it one there"
            )


def _no_ray_over_nodes(job: Job, placements: Sequence[Placement]) -> Iterator[str]:
    """A Ray over the nodes of a SLURM job is started with the job's own program."""
    yield from lacks_ray(job, max(map(_node_count, placements), default=1))


def _node_count(placement: Placement) -> int:
    """On how many nodes it has devices."""
    return sum(any(counts) for counts in zip(*(pool.counts for pool in placement.pools), strict=True))


def _nobody_starts_ranks(job: Job, placements: Sequence[Placement]) -> Iterator[str]:
    """A framework without Ray is started on each node of a SLURM job, and on no others."""
    is_started = job.spec.ray_use == "none" and job.spec.each_node
    for one in placements if job.adapter.ray == "none" and job.adapter is not COMMAND and not is_started else ():
        if _node_count(one) > 1:
            yield (
                f"placement {shown(one.name)}: it is on several nodes, but {job.spec.job} starts ranks on one only:"
                f" leave out {'each_node: false' if job.spec.ray_use == 'none' else 'ray'}, or name devices of one node"
            )


def _dangers(job: Job, request: RunRequest) -> Iterator[str]:
    if not request.allow_kill:
        yield from dangers(job)


def unused_kill(request: RunRequest) -> Iterator[str]:
    """Leave to end processes where there are no scripts of the user's that might."""
    if request.allow_kill:
        yield "--allow-kill is for the scripts of a job of yours: give --job too, or leave it out"


def recorded_job(record: JobRecord) -> Job:
    """The job of a run.

    Raises:
        UsageError: what is recorded is no job, or cannot be here.
    """
    found = Facts()
    reasons = Reasons()
    reasons.add(read_job(record.spec, lambda key: f"run.json: job.{key}", found))
    reasons.raise_any()
    return Job(found["job"])


JOB = Check(_find_job, {"job"})
RESUMED_JOB_CHECKS = (Check(unusable), Check(_dangers))
JOB_CHECKS = (
    *RESUMED_JOB_CHECKS,
    Check(_find_placements, {"placements"}),
    Check(_unreached_staleness),
    Check(_unused_first_node),
    Check(_no_ray_over_nodes, {"host"}),
    Check(_nobody_starts_ranks),
    Check(lambda placements: shared_folders(placements, ())),
)
