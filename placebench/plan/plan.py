"""Placements × workload × devices → a plan that can run, or every reason why it cannot, before anything starts."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from placebench.errors import Reasons, UsageError
from placebench.host.devices import discover, sharing_note
from placebench.plan import checks, headroom
from placebench.plan.request import DEFAULT_PLACEMENTS, RunRequest
from placebench.plan.rounds import auto_rounds, planned_rounds
from placebench.predict.expectation import Expectation, expect_from_arithmetic, expect_from_runs, reachable_flops
from placebench.predict.memory import fitting
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.record.checkpoints import Checkpoint, changes, checkpoint_bytes, differences, read_checkpoint
from placebench.record.folder import RunFolder
from placebench.sessions.ray_cluster.discovery import DEFAULT_PLACEMENT_TIMEOUT_S, Cluster, discover_cluster
from placebench.sessions.slurm_steps import several_nodes
from placebench.sessions.torchrun.nodes import JobNodes, discover_nodes
from placebench.spec.auto_rounds import AutoRounds
from placebench.spec.bound import RunPlacement, bind
from placebench.spec.devices import Device, devices_per_node, parse_devices
from placebench.spec.launchers import RAY, TORCHRUN, unusable_launcher
from placebench.spec.placement import Placement
from placebench.spec.placement_checks import impossible_placements
from placebench.spec.shapes import JobShapes, job_shapes
from placebench.spec.text import slug
from placebench.spec.words import readable_placements
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import asks_for_critic, read_workload
from placebench.telemetry.samples import DEFAULT_HZ

_LONGEST_NAME = 60


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch to come.

    Attributes:
        round: counted from 1.
        placement: what to launch.
    """

    round: int
    placement: RunPlacement


@dataclass(frozen=True)
class Plan:
    """A run that has passed every check.

    Attributes:
        name: of the run.
        folder: where it will lie, or lies when it is resumed.
        placements: in the order given.
        workload: the job.
        devices: all that the placements may use.
        rounds: launches of each placement; with `auto`, those that are run in any case.
        auto: when rounds are added and when that ends; None for a fixed number.
        min_effect: smallest effect of interest, as a fraction; None for the comparison's default.
        calibrates: whether the run compares its only placement with itself.
        step_timeout_s: seconds without progress after which a launch is given up.
        time_limit_s: seconds after which the whole run ends; None for no limit.
        sample_hz: device samples a second; 0 for none.
        done: launches that an earlier start of this run has finished, as (round, placement name).
        resumed: whether the folder is there already.
        checkpoint_every: steps from one checkpoint of a launch to the next; None for none.
        start: the checkpoint that every launch goes on from; None to begin.
        launcher: what starts the workers, one of `launchers.LAUNCHERS`.
        cluster: the Ray cluster the devices belong to, or the nodes of the SLURM job; None for this host.
    """

    name: str
    folder: RunFolder
    placements: tuple[RunPlacement, ...]
    workload: Workload
    devices: tuple[Device, ...]
    rounds: int
    step_timeout_s: float
    time_limit_s: float | None = None
    sample_hz: float = DEFAULT_HZ
    auto: AutoRounds | None = None
    min_effect: float | None = None
    calibrates: bool = False
    done: frozenset[tuple[int, str]] = frozenset()
    resumed: bool = False
    checkpoint_every: int | None = None
    start: Checkpoint | None = None
    launcher: str = RAY
    cluster: Cluster | JobNodes | None = None

    @property
    def steps_before(self) -> int:
        """Steps that are in the checkpoint; a launch runs those of the workload after them."""
        return self.start.step if self.start else 0

    @property
    def order(self) -> tuple[tuple[str, ...], ...]:
        """Names of the placements by round; every second round is reversed, so that drift hits all alike."""
        return tuple(tuple(placement.name for placement in self._round(number)) for number in self._rounds)

    @property
    def launches(self) -> tuple[PlannedLaunch, ...]:
        """The launches still to come, in order."""
        return tuple(
            PlannedLaunch(number, placement)
            for number in self._rounds
            for placement in self._round(number)
            if (number, placement.name) not in self.done
        )

    @property
    def total(self) -> int:
        """Launches of the whole run, done ones included."""
        return self.rounds * len(self.placements)

    @cached_property
    def shapes(self) -> JobShapes:
        """Shapes of the job's models."""
        return job_shapes(self.workload)

    @property
    def memory(self) -> Mapping[tuple[str, str], MemoryEstimate]:
        """Estimated memory of each device by (placement, pool)."""
        return {
            (bound.name, pool): estimate
            for bound in self.placements
            for pool, estimate in fitting.pool_estimates(self.workload, self.shapes, bound).items()
        }

    def relief(self, bound: RunPlacement) -> tuple[str, ...]:
        """What lowers a placement's estimated memory most."""
        return headroom.relief(self._case(bound))

    @property
    def expectation(self) -> Expectation:
        """How long the launches still to come will take."""
        known = expect_from_runs(
            self.folder.path.parent,
            self.workload.model_dump(mode="json"),
            self.devices,
            [launch.placement.name for launch in self.launches],
        )
        cores = {core for device in self.devices for core in device.cores}
        flops = reachable_flops(cores, [device.name for device in self.devices if device.kind == "gpu"])
        return known or expect_from_arithmetic(self.workload, self.shapes, flops, len(self.launches))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know before the start, one line each."""
        shared = sharing_note(self.devices)
        placements = [bound.placement for bound in self.placements]
        changed = changes(self.start, self.workload, placements) if self.start else ()
        tight = (line for bound in self.placements for line in headroom.tight(self._case(bound)))
        return (*((shared,) if shared else ()), *changed, *tight)

    def _case(self, bound: RunPlacement) -> headroom.Case:
        placements = [one.placement for one in self.placements]
        return headroom.Case(self.workload, self.shapes, bound, self.devices, placements)

    @property
    def _rounds(self) -> range:
        return range(1, self.rounds + 1)

    def _round(self, number: int) -> tuple[RunPlacement, ...]:
        return self.placements if number % 2 else self.placements[::-1]


def make_plan(request: RunRequest) -> Plan:
    """Check what the user asks for.

    Raises:
        UsageError: one line for every reason why it cannot run.
    """
    words = DEFAULT_PLACEMENTS if request.placements is None else request.placements
    wrong_name = () if request.name is None else tuple(checks.wrong_name(request.name))
    name = default_name(words) if request.name is None or wrong_name else request.name
    folder = RunFolder((request.out or Path("runs")) / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}")
    reasons, unread = Reasons(), request.unread
    reasons.add(request.wrong)
    elsewhere = _is_for_elsewhere(request)
    launcher = request.launcher or RAY
    reasons.add(() if elsewhere else checks.missing_packages(launcher))
    unusable = tuple(checks.unusable_folder(folder.path)) if "out" not in unread else ()
    reasons.add((*wrong_name, *unusable))
    reading = read_workload(request.workload, reasons, request.origin, unread)
    workload = reading.workload
    reasons.add(checks.unusable_workload(workload, elsewhere=elsewhere, unread=reading.unread))
    found = reasons.attempt(lambda: find_devices(request)) if "devices" not in unread else None
    cluster, devices = found or (None, None)
    reasons.add(cluster_options(request))
    if devices:
        reasons.add(_not_here(request))
    nodes = devices_per_node(devices) if devices else None
    has_critic = None if "algorithm.name" in reading.unread else asks_for_critic(request.workload)
    named: tuple[Placement, ...] = ()
    others: tuple[Placement, ...] = ()
    if "placements" not in unread:
        named, others = readable_placements(words, nodes, reasons, has_critic=has_critic)
    reasons.add(unusable_launcher(launcher, (*named, *others), request.ray_address))
    placements = tuple(bind(placement, devices) for placement in named) if devices else ()
    path = request.resume_from
    start = reasons.attempt(lambda: read_checkpoint(path)) if path is not None else None
    every, before = request.checkpoint_every, start.step if start else 0
    reasons.add(impossible_placements(named, workload, before, reading.unread, others))
    unknown = reading.unread | reading.conflicting
    is_sized = unknown.isdisjoint(fitting.MEMORY_KEYS)
    if is_sized and devices:
        reasons.attempt(lambda: reasons.add(too_large(workload, placements, devices)))
    if start:
        reasons.add(differences(start, workload, reading.unread))
    if every and "steps" not in reading.unread:
        reasons.add(checks.no_checkpoints(every, workload.steps))
    auto = reasons.attempt(lambda: auto_rounds(request)) if "rounds" not in unread else None
    if is_sized and "steps" not in unknown and "rounds" not in unread and devices and not unusable and not elsewhere:
        launches = planned_rounds(request, auto) * len(placements)
        reasons.attempt(lambda: reasons.add(no_room_for_checkpoints(workload, folder.path, every, before, launches)))
    reasons.raise_any()
    assert devices is not None
    return Plan(
        name=name,
        folder=folder,
        placements=placements,
        workload=workload,
        devices=devices,
        rounds=planned_rounds(request, auto),
        auto=auto,
        min_effect=request.min_effect,
        calibrates=request.calibrates,
        step_timeout_s=request.step_timeout_s,
        time_limit_s=request.time_limit_s,
        sample_hz=DEFAULT_HZ if request.sample_hz is None else request.sample_hz,
        checkpoint_every=request.checkpoint_every,
        start=start,
        launcher=launcher,
        cluster=cluster,
    )


def _is_for_elsewhere(request: RunRequest) -> bool:
    """Whether the devices are only described, so that the plan says nothing of this host."""
    try:
        return request.devices is not None and parse_devices(request.devices).is_described
    except UsageError:  # which is told where the devices are looked for
        return False


def _not_here(request: RunRequest) -> Iterator[str]:
    """Devices that are only described, where something is to start."""
    if request.devices is not None and not request.dry_run and (spec := parse_devices(request.devices)).is_described:
        yield (
            f"--devices {spec} describes devices that nobody looks for: add --dry-run to plan for them, or write"
            f" {spec.kind}:{spec.count} for devices that are here"
        )


def cluster_options(request: RunRequest) -> Iterator[str]:
    """Options of a Ray cluster where there is none."""
    if request.ray_address is None and request.placement_timeout_s is not None:
        yield "--placement-timeout is for a Ray cluster: give --ray-address too, or leave it out"


def find_devices(request: RunRequest) -> tuple[Cluster | JobNodes | None, tuple[Device, ...]]:
    """The devices that the user asks for, of this host, or of every node of a cluster or of the SLURM job.

    Raises:
        UsageError: they are not there.
    """
    spec = None if request.devices is None else parse_devices(request.devices)
    if request.ray_address is None:
        listed = several_nodes() if request.launcher == TORCHRUN else None
        if listed is None or (spec is not None and spec.is_described):
            return None, discover(spec)
        return discover_nodes(listed, spec)
    if spec is not None and spec.is_described:
        raise UsageError(f"--devices {spec} describes devices and --ray-address looks for them: leave one of them out")
    timeout_s = DEFAULT_PLACEMENT_TIMEOUT_S if request.placement_timeout_s is None else request.placement_timeout_s
    return discover_cluster(request.ray_address, spec, timeout_s)


def default_name(words: str) -> str:
    """A run's name from its placement words: what of them can stand in a folder's name."""
    return slug(words)[:_LONGEST_NAME].strip("-.+=_@") or "run"


def too_large(workload: Workload, placements: Sequence[RunPlacement], devices: Sequence[Device]) -> Iterator[str]:
    """One line for every placement that needs more memory than there is.

    Raises:
        UsageError: a model is not known.
    """
    shapes = job_shapes(workload)
    for bound in placements:
        case = headroom.Case(workload, shapes, bound, devices, [one.placement for one in placements])
        yield from headroom.too_large(case)


def no_room_for_checkpoints(
    workload: Workload, folder: Path, every: int | None, before: int, launches: int
) -> Iterator[str]:
    """One line where the disk cannot hold the checkpoints that launches will write.

    Args:
        workload: the job.
        folder: of the run.
        every: steps from one checkpoint to the next; None for none.
        before: steps that every launch has done in an earlier job.
        launches: how many are to come.

    Raises:
        UsageError: a model is not known.
    """
    saved = workload.steps // every - before // every if every else 0
    if saved > 0 and launches:
        each = checkpoint_bytes(workload, job_shapes(workload))
        yield from checks.no_room_for_checkpoints(folder, each, launches, min(saved, 2))
