"""Placements × workload × devices → a plan that can run, or every reason why it cannot, before anything starts."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from placebench.errors import Reasons
from placebench.host.devices import sharing_note
from placebench.jobs.job import Job
from placebench.jobs.spec import JobSpec
from placebench.plan import checks
from placebench.plan.devices import DEVICES, are_described, cluster_options, devices_elsewhere
from placebench.plan.headroom import relief, tight, too_large
from placebench.plan.job_checks import JOB, JOB_CHECKS, unused_kill
from placebench.plan.limits import low_limits
from placebench.plan.memory_settings import MemoryCase
from placebench.plan.request import OPTIONS, PLACEMENTS, ROUNDS, START, WORKLOAD, RunRequest, request_facts
from placebench.plan.workload_checks import WORKLOAD_CHECKS, WORKLOAD_CHECKS_HERE
from placebench.predict.asking import tells_of
from placebench.predict.expectation import (
    Expectation,
    expect_from_arithmetic,
    expect_from_runs,
    expect_from_steps,
)
from placebench.predict.known import KnownCalibration, known_calibration
from placebench.predict.memory import fitting
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.predict.phases import PhaseModel
from placebench.predict.possible import possible_placements
from placebench.predict.prediction import Prediction, predict
from placebench.predict.step import StepModel
from placebench.record import RUNS
from placebench.record.checkpoints import START_CHECKS, Checkpoint, changes
from placebench.record.folder import RunFolder
from placebench.sessions.ray_cluster.discovery import Cluster
from placebench.sessions.torchrun.nodes import JobNodes
from placebench.spec.auto_rounds import AutoRounds, steps_in_round
from placebench.spec.bound import RunPlacement, alike, bind
from placebench.spec.check import Check, Facts, collect
from placebench.spec.devices import Device, devices_per_node
from placebench.spec.launchers import RAY, unusable_launcher
from placebench.spec.placement import Placement
from placebench.spec.placement_checks import PLACEMENT_CHECKS, contradictions
from placebench.spec.shapes import JobShapes, job_shapes
from placebench.spec.text import listing, slug
from placebench.spec.words import read_placement, split_words
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import mini_batch_that_follows, usual_mini_batch
from placebench.telemetry.samples import DEFAULT_HZ

_LONGEST_NAME = 60


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch to come."""

    round: int
    """Counted from 1."""
    placement: RunPlacement
    steps: int
    """The number of its last step."""


@dataclass(frozen=True)
class Plan:
    """A run that has passed every check."""

    name: str
    folder: RunFolder
    """Where it will lie, or lies when it is resumed."""
    placements: tuple[RunPlacement, ...]
    work: Workload | Job
    """What placebench's own job trains, or the job of the user's that is run."""
    devices: tuple[Device, ...]
    """All that the placements may use."""
    rounds: int
    """Launches of each placement; with `auto`, those that are run in any case."""
    step_timeout_s: float
    """Seconds without progress after which a launch is given up."""
    time_limit_s: float | None = None
    """Seconds after which the whole run ends; None for no limit."""
    sample_hz: float = DEFAULT_HZ
    """Device samples a second; 0 for none."""
    auto: AutoRounds | None = None
    """When rounds are added and when that ends; None for a fixed number."""
    min_effect: float | None = None
    """Smallest effect of interest, as a fraction; None for the comparison's default."""
    calibrates: bool = False
    """Whether the run compares its only placement with itself."""
    done: frozenset[tuple[int, str]] = frozenset()
    """Launches that an earlier start of this run has finished, as (round, placement name)."""
    damaged: tuple[str, ...] = ()
    """Launches of an earlier start that are done, cannot be read and run again, one line each."""
    resumed: bool = False
    """Whether the folder is there already."""
    checkpoint_every: int | None = None
    """Steps from one checkpoint of a launch to the next; None for none."""
    start: Checkpoint | None = None
    """The checkpoint that every launch goes on from; None to begin."""
    launcher: str = RAY
    """What starts the workers, one of `launchers.LAUNCHERS`."""
    cluster: Cluster | JobNodes | None = None
    """The Ray cluster the devices belong to, or the nodes of the SLURM job; None for this host."""
    left_out: tuple[str, ...] = ()
    """Of a plan that is only shown, the placement words that cannot be beside those that can."""
    refused: tuple[str, ...] = ()
    """Why they cannot be, one line each."""
    remarks: tuple[str, ...] = ()
    """What was found as it was planned and the user should know, one line each."""

    @property
    def steps(self) -> int:
        """The number of a launch's last step; with `auto`, later rounds may have others."""
        return self._given.steps

    def steps_in(self, number: int) -> int:
        """The number of the last step of the launches of a round."""
        return steps_in_round(self.auto, number, self.steps, self.warmup_steps + self.steps_before)

    @property
    def warmup_steps(self) -> int:
        """First steps of a launch, which are left out of the numbers."""
        return self._given.warmup_steps

    @property
    def until_end(self) -> bool:
        """Whether a launch is done when its command ends, or is stopped, however many steps it had."""
        return self.job is not None and self.job.spec.until_end

    @property
    def _given(self) -> Workload | JobSpec:
        return self.work.spec if isinstance(self.work, Job) else self.work

    @property
    def job(self) -> Job | None:
        """The job of the user's; None for placebench's own."""
        return self.work if isinstance(self.work, Job) else None

    @property
    def workload(self) -> Workload:
        """What placebench's own job trains; a job of the user's has none."""
        assert isinstance(self.work, Workload)
        return self.work

    @property
    def addresses(self) -> Mapping[str, str]:
        """By which the nodes reach each other, by their names; none for devices of this host."""
        if self.cluster:
            return {node.name: node.address for node in self.cluster.nodes}
        nodes = dict.fromkeys(device.node for device in self.devices)
        return {name: name for name in nodes} if len(nodes) > 1 else {}  # only described: nobody knows more of them

    @property
    def steps_before(self) -> int:
        """Steps that are in the checkpoint; a launch runs those of the workload after them."""
        return self.start.step if self.start else 0

    @property
    def order(self) -> tuple[tuple[str, ...], ...]:
        """Names of the placements by round; every second round is reversed, so that drift hits all alike."""
        return tuple(tuple(placement.name for placement in placements) for placements in self._rounds)

    @property
    def launches(self) -> tuple[PlannedLaunch, ...]:
        """The launches still to come, in order."""
        return tuple(
            PlannedLaunch(number, placement, self.steps_in(number))
            for number, placements in enumerate(self._rounds, start=1)
            for placement in placements
            if (number, placement.name) not in self.done
        )

    @property
    def total(self) -> int:
        """Launches of the whole run, done ones included."""
        return self.rounds * len(self.placements)

    @cached_property
    def shapes(self) -> JobShapes:
        """Shapes of the models of placebench's own job."""
        return job_shapes(self.workload)

    @property
    def memory(self) -> Mapping[tuple[str, str], MemoryEstimate]:
        """Estimated memory of each device by (placement, pool); none where the models are not known."""
        if self.job:
            return {}
        return {
            (bound.name, pool): estimate
            for bound in self.placements
            for pool, estimate in fitting.pool_estimates(self.workload, self.shapes, bound).items()
        }

    def relief(self, bound: RunPlacement) -> tuple[str, ...]:
        """What lowers a placement's estimated memory most."""
        return tuple(line for case in self._cases([bound]) for line in relief(case))

    @property
    def expectation(self) -> Expectation | None:
        """How long the launches still to come will take; None where nothing tells."""
        if self.until_end:
            return None
        launches = [(one.placement.name, one.steps - self.steps_before) for one in self.launches]
        known = expect_from_runs(self.folder.path.parent, self.recorded_work, launches, self.devices)
        if known or self.job:
            return known
        if seconds := {one.placement.name: one.step.seconds for one in self.predictions}:
            source = self._calibration.source if self._calibration else ""
            return expect_from_steps([(seconds[name], steps) for name, steps in launches], f"predicted from {source}")
        return expect_from_arithmetic(self.workload, self.shapes, self.devices, [steps for _, steps in launches])

    @cached_property
    def predictions(self) -> tuple[Prediction, ...]:
        """The step of each placement as what was measured on such devices tells it; none where nothing does."""
        known = self._calibration
        if self.job or known is None or not tells_of(known.file, self.workload):
            return ()
        file, devices = known.file, known.devices
        per_node = max(devices_per_node(devices))
        model = StepModel(PhaseModel(self.workload, self.shapes, (file,), devices[0], per_node), devices)
        elsewhere = file.hostname != devices[0].node
        try:
            return predict(model, [one.placement for one in self.placements], elsewhere=elsewhere).placements
        except LookupError:  # the peak of the devices is not known, and a phase was never measured
            return ()

    @cached_property
    def _calibration(self) -> KnownCalibration | None:
        return known_calibration(self.folder.path.parent, self.devices)

    @property
    def recorded_work(self) -> Mapping[str, Any]:
        """What a launch does, as `RunFile.work` says it."""
        return {"job": self.job.record.spec} if self.job else self.workload.model_dump(mode="json")

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know before the start, one line each."""
        shared = sharing_note(self.devices)
        placements = [bound.placement for bound in self.placements]
        changed = changes(self.start, self.workload, placements) if self.start else ()
        nearly_full = (line for case in self._cases(self.placements) for line in tight(case))
        remarks = (*self.remarks, *(self.job.remarks if self.job else ()))
        # Those of a job of the user's may have arguments of their own.
        same = (
            f"{listing(names)} are the same on these devices: only chance makes them differ"
            for names in (alike(self.placements) if self.job is None else ())
        )
        return (*self.damaged, *remarks, *filter(None, (shared,)), *same, *changed, *nearly_full)

    def _cases(self, bounds: Sequence[RunPlacement]) -> Iterator[MemoryCase]:
        if not self.job:
            placements = [one.placement for one in self.placements]
            for bound in bounds:
                yield MemoryCase(self.workload, self.shapes, bound, self.devices, placements)

    @property
    def _rounds(self) -> list[tuple[RunPlacement, ...]]:
        return [self.placements[:: -1 if index % 2 else 1] for index in range(self.rounds)]


def make_plan(request: RunRequest) -> Plan:
    """Check what the user asks for.

    Where it is only to be shown, placements that cannot be on the devices or with the workload do not hide the others:
    the plan is of these, and says why it leaves out the rest.

    Raises:
        UsageError: one line for every reason why it cannot run.
    """
    facts = request_facts(request)
    if are_described(request):
        facts.unknown.add("host")
    name = request.name
    if name is None or any(checks.wrong_name(name)):
        name = default_name(facts["words"])
    started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = RunFolder((request.out or RUNS) / f"{started}-{name}")
    facts.add(folder=folder.path)
    found = collect(_CHECKS if request.job is None else _JOB_CHECKS, facts)
    reasons = Reasons(map(request.in_file, found.lines))
    if reasons.lines and request.dry_run and (partial := _plan_of_the_possible(request, facts)):
        return replace(partial, refused=reasons.lines)
    reasons.raise_any()
    return Plan(
        name=name,
        folder=folder,
        placements=facts["bound"],
        work=facts.get("job") or facts["workload"],
        devices=facts["devices"],
        rounds=facts["rounds"],
        auto=facts.get("auto"),
        min_effect=request.min_effect,
        calibrates=request.calibrates,
        step_timeout_s=request.step_timeout_s,
        time_limit_s=request.time_limit_s,
        sample_hz=DEFAULT_HZ if request.sample_hz is None else request.sample_hz,
        checkpoint_every=request.checkpoint_every,
        start=facts.get("start"),
        launcher=facts.get("launcher", RAY),
        cluster=facts.get("cluster"),
        remarks=tuple(_remarks(request, facts)),
    )


def _remarks(request: RunRequest, facts: Facts) -> Iterator[str]:
    """That the mini-batch follows the batch, which folder all nodes must have, and why other nodes are left out."""
    for line in facts.get("unasked", "").splitlines():
        yield f"only devices of this host are used and sampled, as the cluster's nodes cannot be queried: {line}"
    if (size := mini_batch_that_follows(request.workload)) is not None:
        usual = usual_mini_batch(request.workload)
        yield (
            f"batch.mini_batch_size is {size}: the usual {usual} does not divide batch.size"
            f" {request.workload['batch']['size']}; --mini-batch-size sets another"
        )
    if "reward_only_from" in facts and len(facts["nodes"]) > 1:
        yield (
            f"data.reward {facts['workload'].data.reward} can be imported only from the current folder: every node"
            f" must have {facts['reward_only_from']}, or the module installed"
        )


def _plan_of_the_possible(request: RunRequest, facts: Facts) -> Plan | None:
    """The plan without the placements that cannot be; None where all else is not right either, or nothing is left.

    A word that is no placement, or that could be nowhere, is to be written anew: what is meant is not known.
    """
    if not {"devices", "workload"} <= facts.keys():
        return None
    words, workload = split_words(facts["words"]), facts["workload"]
    for word in words:
        wrong = Reasons()
        placement = read_placement(word, None, wrong, has_critic=workload.algorithm.has_critic)
        if placement is None or wrong.lines or any(contradictions(placement)):
            return None
    possible = [word for word, _ in possible_placements(words, facts["devices"], workload)]
    if not 0 < len(possible) < len(words):
        return None
    partial = Reasons().attempt(lambda: make_plan(replace(request, placements=",".join(possible))))
    return partial and replace(partial, left_out=tuple(word for word in words if word not in possible))


def default_name(words: str) -> str:
    """A run's name from its placement words: what of them `checks.wrong_name` lets stand in a folder's name."""
    name = slug("".join(char if char.isascii() else "-" for char in words))[:_LONGEST_NAME].strip("-.+=_@")
    return name if name not in ("", "latest") else "run"


def _bind(placements: Sequence[Placement], devices: Sequence[Device], facts: Facts) -> None:
    """Give the placements their devices: they are `bound`."""
    facts.add(bound=tuple(bind(placement, devices) for placement in placements))


def _count_launches(rounds: int, bound: Sequence[RunPlacement], facts: Facts) -> None:
    """How many `launches` there are in any case."""
    facts.add(launches=rounds * len(bound))


_CHECKS = (
    OPTIONS,
    Check(unused_kill),
    Check(checks.missing_packages, {"host"}),
    Check(checks.wrong_name),
    Check(checks.unusable_folder, {"out"}),
    WORKLOAD,
    *WORKLOAD_CHECKS,
    *WORKLOAD_CHECKS_HERE,
    DEVICES,
    Check(cluster_options),
    Check(devices_elsewhere),
    Check(low_limits, {"host"}),
    PLACEMENTS,
    Check(unusable_launcher),
    START,
    *PLACEMENT_CHECKS,
    Check(_bind),
    Check(too_large, settled=fitting.MEMORY_KEYS),
    *START_CHECKS,
    Check(checks.no_checkpoints, {"steps"}),
    ROUNDS,
    Check(_count_launches),
    Check(checks.no_room_for_checkpoints, {"host"}, settled={"steps", *fitting.MEMORY_KEYS}),
)
_JOB_CHECKS = (
    OPTIONS,
    Check(checks.wrong_name),
    Check(checks.unusable_folder, {"out"}),
    JOB,
    DEVICES,
    Check(devices_elsewhere),
    *JOB_CHECKS,
    Check(_bind),
    ROUNDS,
    Check(_count_launches),
)
"""What is asked of a run of a job of the user's."""
