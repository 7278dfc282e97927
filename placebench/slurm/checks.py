"""What of a run cannot be, seen before its job is queued: nothing here asks SLURM, or what only the nodes know."""

from placebench.errors import UsageError
from placebench.plan.checks import no_checkpoints, wrong_name
from placebench.plan.job_checks import JOB, RESUMED_JOB_CHECKS, unused_kill
from placebench.plan.request import OPTIONS, PLACEMENTS, ROUNDS, START, WORKLOAD, RunRequest, request_facts
from placebench.plan.workload_checks import WORKLOAD_CHECKS
from placebench.record.checkpoints import START_CHECKS
from placebench.spec.check import Check, Facts, collect
from placebench.spec.devices import DeviceSpec, parse_devices
from placebench.spec.launchers import unusable_launcher
from placebench.spec.placement_checks import PLACEMENT_CHECKS

# What a node with cores enough gives where nobody says how many.
USUAL_CPU_DEVICES = 8


def refuse_impossible(request: RunRequest, nodes: int, gpus_per_node: int) -> None:
    """Check a run that a job is to start on its nodes.

    Memory is left out, since the card is not known, and so is what belongs to one host: its packages, disks, sandbox,
    the module of its reward.

    Raises:
        UsageError: one line for every reason why it cannot be.
    """
    facts = request_facts(request)
    facts.add(node_count=nodes, gpus_per_node=gpus_per_node)
    collect(_CHECKS if request.job is None else _JOB_CHECKS, facts).raise_any()


def _find_nodes(request: RunRequest, node_count: int, gpus_per_node: int, facts: Facts) -> None:
    """How many devices each of the `nodes` gives; where that depends on its cores, as many as is usual."""
    spec = _devices_of_each_node(request, gpus_per_node)
    facts.add(nodes=[spec.count or USUAL_CPU_DEVICES] * node_count, are_usual=spec.count is None)


def _impossible_placements(facts: Facts, are_usual: bool = False) -> tuple[str, ...]:
    """Placements that cannot be; with fewer devices than usual another batch or layout may be what divides."""
    return () if are_usual else collect(PLACEMENT_CHECKS, facts).lines


def _devices_of_each_node(request: RunRequest, gpus: int) -> DeviceSpec:
    """What every node is to give; without a number where that depends on its cores.

    Raises:
        UsageError: it cannot be read, or the job has not as many GPUs.
    """
    if request.devices is None:
        return DeviceSpec("gpu", gpus) if gpus else DeviceSpec("cpu")
    spec = parse_devices(request.devices)
    if spec.is_described:
        raise UsageError(
            f"--devices {spec} describes devices elsewhere, but the job takes those of its nodes: write"
            f" {spec.kind}:{spec.count} for that many on each node, or leave it out"
        )
    if spec.kind == "gpu" and (spec.count or 1) > gpus:
        raise UsageError(
            f"--devices {spec}: the job has {gpus} GPUs on each node; give --gpus-per-node {spec.count or 1} before --"
        )
    return DeviceSpec("gpu", gpus) if spec == DeviceSpec("gpu") else spec


_CHECKS = (
    OPTIONS,
    Check(unused_kill),
    WORKLOAD,
    *WORKLOAD_CHECKS,
    START,
    *START_CHECKS,
    Check(no_checkpoints, {"steps"}),
    Check(wrong_name),
    ROUNDS,
    Check(_find_nodes, {"devices"}),
    PLACEMENTS,
    Check(unusable_launcher, {"placements"}),
    Check(_impossible_placements),
)
# Placements of a job depend on the devices themselves.
_JOB_CHECKS = (
    OPTIONS,
    JOB,
    *RESUMED_JOB_CHECKS,
    Check(wrong_name),
    ROUNDS,
    Check(_find_nodes, {"devices"}),
)
