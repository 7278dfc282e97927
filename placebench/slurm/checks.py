"""What of a run cannot be, seen before its job is queued: nothing here asks SLURM, or what only the nodes know."""

from placebench.errors import Reasons, UsageError
from placebench.plan import checks
from placebench.plan.request import DEFAULT_PLACEMENTS, RunRequest
from placebench.plan.rounds import auto_rounds
from placebench.record.checkpoints import differences, read_checkpoint
from placebench.spec.devices import DeviceSpec, parse_devices
from placebench.spec.launchers import RAY, unusable_launcher
from placebench.spec.placement_checks import impossible_placements
from placebench.spec.words import readable_placements
from placebench.spec.workload_reading import asks_for_critic, read_workload

# What a node with cores enough gives where nobody says how many.
USUAL_CPU_DEVICES = 8


def refuse_impossible(request: RunRequest, nodes: int, gpus_per_node: int) -> None:
    """Check a run that a job is to start on its nodes.

    Memory is left out, since the card is not known, and so is what belongs to one host: its packages, disks, sandbox,
    the module of its reward.

    Raises:
        UsageError: one line for every reason why it cannot be.
    """
    reasons = Reasons()
    reasons.add(request.wrong)
    reading = read_workload(request.workload, reasons, request.origin, request.unread)
    workload, unread = reading.workload, reading.unread
    reasons.add(checks.unusable_workload(workload, elsewhere=True, tries_reward=False, unread=unread))
    path = request.resume_from
    start = reasons.attempt(lambda: read_checkpoint(path)) if path is not None else None
    if start:
        reasons.add(differences(start, workload, unread))
    if request.checkpoint_every and "steps" not in unread:
        reasons.add(checks.no_checkpoints(request.checkpoint_every, workload.steps))
    if request.name is not None:
        reasons.add(checks.wrong_name(request.name))
    if "rounds" not in unread:
        reasons.attempt(lambda: auto_rounds(request))
    spec = reasons.attempt(lambda: _devices_of_each_node(request, gpus_per_node)) if "devices" not in unread else None
    if "placements" not in unread:
        words = DEFAULT_PLACEMENTS if request.placements is None else request.placements
        each = [spec.count or USUAL_CPU_DEVICES] * nodes if spec else None
        has_critic = None if "algorithm.name" in unread else asks_for_critic(request.workload)
        named, others = readable_placements(words, each, reasons, has_critic=has_critic)
        reasons.add(unusable_launcher(request.launcher or RAY, (*named, *others), request.ray_address))
        # With fewer devices than usual another batch or layout may be what divides.
        if spec is None or spec.count is not None:
            reasons.add(impossible_placements(named, workload, start.step if start else 0, unread, others))
    reasons.raise_any()


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
            f"--devices {spec} describes devices, and the job takes those of its nodes: write {spec.kind}:{spec.count}"
            " for so many of each, or leave it out"
        )
    if spec.kind == "gpu" and (spec.count or 1) > gpus:
        raise UsageError(
            f"--devices {spec}: the job has {gpus} GPUs on each node; give --gpus-per-node {spec.count or 1} before --"
        )
    return DeviceSpec("gpu", gpus) if spec == DeviceSpec("gpu") else spec
