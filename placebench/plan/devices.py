"""The devices that a request means: of this host, of a Ray cluster, of the SLURM job, or only described."""

import platform
from collections.abc import Iterator, Sequence

from placebench.errors import UsageError
from placebench.host.devices import discover
from placebench.jobs.job import Job
from placebench.jobs.spec import JobSpec
from placebench.plan.request import RunRequest
from placebench.sessions.ray_cluster.discovery import (
    DEFAULT_PLACEMENT_TIMEOUT_S,
    Cluster,
    discover_cluster,
    refuse_unreachable,
)
from placebench.sessions.slurm_steps import several_nodes
from placebench.sessions.torchrun.nodes import JobNodes, discover_nodes
from placebench.spec.check import Check, Facts
from placebench.spec.devices import Device, DeviceSpec, devices_per_node, parse_devices
from placebench.spec.launchers import TORCHRUN


def find_devices(
    request: RunRequest, job: JobSpec | None = None
) -> tuple[Cluster | JobNodes | None, tuple[Device, ...]]:
    """The devices that the user asks for, of this host, or of every node of a cluster or of the SLURM job.

    Args:
        request: what is asked for.
        job: the job of the user's that is run; None for placebench's own.

    Raises:
        UsageError: they are not there.
    """
    spec = None if request.devices is None else parse_devices(request.devices)
    if job and job.ray_address:
        return _devices_of_users_ray(job.ray_address, spec)
    if request.ray_address is None:
        listed = several_nodes() if job or request.launcher == TORCHRUN else None
        if listed is None or (spec is not None and spec.is_described):
            return None, discover(spec)
        return discover_nodes(listed, spec)
    if spec is not None and spec.is_described:
        raise UsageError(f"--devices {spec} describes devices and --ray-address looks for them: leave one of them out")
    timeout_s = DEFAULT_PLACEMENT_TIMEOUT_S if request.placement_timeout_s is None else request.placement_timeout_s
    return discover_cluster(request.ray_address, spec, timeout_s)


def _devices_of_users_ray(address: str, spec: DeviceSpec | None) -> tuple[Cluster | None, tuple[Device, ...]]:
    """The devices of the Ray cluster of a job of the user's; those of this host where it is the only node.

    Raises:
        UsageError: nothing answers there, or the devices are not there.
    """
    cluster, devices = discover_cluster(address, spec)
    if len(cluster.nodes) == 1 and cluster.nodes[0].host["hostname"] == platform.node():
        return None, discover(spec)
    return cluster, devices


def are_described(request: RunRequest) -> bool:
    """Whether the devices are only described, so that the plan says nothing of this host."""
    try:
        return request.devices is not None and parse_devices(request.devices).is_described
    except UsageError:  # which the search for the devices says
        return False


def _search(request: RunRequest, facts: Facts) -> None:
    """Find the `devices`, the `cluster` to which they belong, and how many each of the `nodes` has."""
    job: Job | None = facts.get("job")
    try:
        cluster, devices = find_devices(request, job.spec if job else None)
    except UsageError as error:
        if job is None or job.spec.ray_address is None:
            raise
        # Its Ray may be another version, or its nodes without placebench: the job itself runs all the same.
        refuse_unreachable(job.spec.ray_address)
        cluster, devices = find_devices(request)
        facts.add(unasked=str(error))
    facts.add(cluster=cluster, devices=devices, nodes=devices_per_node(devices))


def cluster_options(request: RunRequest) -> Iterator[str]:
    """Options of a Ray cluster where there is none."""
    if request.ray_address is None and request.placement_timeout_s is not None:
        yield "--placement-timeout is for a Ray cluster: give --ray-address too, or leave it out"


def devices_elsewhere(request: RunRequest, devices: Sequence[Device]) -> Iterator[str]:
    """Devices that are only described, where something is to start."""
    if request.devices is not None and not request.dry_run and are_described(request):
        yield (
            f"--devices {parse_devices(request.devices)} describes devices for a plan only: add --dry-run, or"
            f" write {devices[0].kind}:{devices_per_node(devices)[0]} for devices that are here"
        )


DEVICES = Check(_search, {"devices"})
