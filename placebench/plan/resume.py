"""Going on with a run that was interrupted, failed in part, or is to have more rounds."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from placebench.errors import DamagedLaunchError, Reasons, UsageError
from placebench.host.ownership import live_runs, mark_interrupted
from placebench.jobs.job import Job
from placebench.jobs.spec import JobSpec, read_job
from placebench.plan import checks
from placebench.plan.devices import cluster_options, find_devices
from placebench.plan.job_checks import RESUMED_JOB_CHECKS, recorded_job
from placebench.plan.limits import low_limits
from placebench.plan.plan import Plan
from placebench.plan.request import OPTIONS, ROUNDS, START, RunRequest
from placebench.plan.workload_checks import unusable_workload
from placebench.record.folder import RunFolder, Status
from placebench.record.launch_lines import read_launch
from placebench.record.run_file import RunFile, read_run_file
from placebench.spec.auto_rounds import MOST_STEPS
from placebench.spec.bound import RunPlacement, bind
from placebench.spec.check import Check, Facts, collect
from placebench.spec.devices import Device, DeviceSpec, devices_per_node, with_labels
from placebench.spec.launchers import RAY
from placebench.spec.nested import flatten, merge
from placebench.spec.words import parse_placements
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload, read_workload


def resume_plan(path: Path, request: RunRequest) -> Plan:
    """The plan for the rest of a run: its finished launches are kept, the others run again.

    Args:
        path: the run's folder, which the caller has locked.
        request: what is given now; it must agree with the run, but for more rounds.

    Raises:
        UsageError: one line for every reason why the run cannot go on.
    """
    folder = RunFolder(path)
    record = read_run_file(folder)
    if path.resolve() in live_runs():  # also where the disk has no locks
        raise UsageError(f"{path}: the run still goes on in another process; stop that first")
    facts = _facts(request, record, folder)
    job: Job | None = facts.get("job")
    mark_interrupted(path)
    collect(_CHECKS, facts).raise_any()
    rounds: int = facts["rounds"]
    placements: tuple[RunPlacement, ...] = facts["placements"]
    every = ((number, placement.name) for number in range(1, rounds + 1) for placement in placements)
    damaged = dict(_damaged(record, folder))
    done = frozenset(one for one in every if folder.trial(*one).stands_at(Status.DONE) and one not in damaged)
    facts.add(launches=rounds * len(placements) - len(done))
    collect([Check(checks.no_room_for_checkpoints)], facts).raise_any()
    return Plan(
        name=record.name,
        folder=folder,
        placements=placements,
        work=job or facts["workload"],
        devices=record.devices,
        rounds=rounds,
        auto=facts.get("auto"),
        calibrates=record.calibrates,
        min_effect=record.min_effect if request.min_effect is None else request.min_effect,
        step_timeout_s=request.step_timeout_s,
        time_limit_s=request.time_limit_s,
        sample_hz=record.sample_hz,
        done=done,
        damaged=tuple(f"round {number} {name} runs again: {why}" for (number, name), why in damaged.items()),
        resumed=True,
        checkpoint_every=record.checkpoint_every,
        start=facts.get("start"),
        launcher=record.launcher,
        cluster=facts.get("cluster"),
    )


def _facts(request: RunRequest, record: RunFile, folder: RunFolder) -> Facts:
    """What is known of the run, and what is given now.

    Raises:
        UsageError: `run.json` has no job, or no workload, that this version can run.
    """
    try:
        job = recorded_job(record.job) if record.job else None
    except UsageError as error:
        raise UsageError(f"{folder.run_file}: {error}") from None
    begun = record.resumed_from
    return Facts(
        request.unknown,
        request=request,
        record=record,
        folder=folder.path,
        workload=None if job else build_workload(record.workload, f"{folder.run_file}: workload"),
        job=job,
        placements=record.run_placements,
        words=request.placements,
        asked_for=request.devices,
        launcher=None if job else record.launcher,
        checkpoint_every=record.checkpoint_every,
        resume_from=Path(begun.checkpoint) if begun else None,
        stored=record.auto,
        rounds_before=record.rounds,
    )


def _damaged(record: RunFile, folder: RunFolder) -> Iterator[tuple[tuple[int, str], str]]:
    """Launches that say that they are done and whose files cannot be read, with what is wrong."""
    for placement in record.run_placements:
        for number in range(1, record.rounds + 1):
            trial = folder.trial(number, placement.name)
            try:
                if trial.status is Status.DONE:
                    read_launch(trial, placement.devices, of_own_job=record.job is None)
            except DamagedLaunchError as error:
                yield (number, placement.name), str(error)


def _in_place_of_folders(folder: Path) -> Iterator[str]:
    """What lies where a run has a folder and is none."""
    for path in RunFolder(folder).folders_of_trials:
        if os.path.lexists(path) and not path.is_dir():
            yield f"{path}: not a folder, where a run has one: move it away, then resume"


def _cluster_options(request: RunRequest, record: RunFile) -> Iterator[str]:
    """Options of a Ray cluster for a run that had none."""
    if _ray_address(record) is None:
        yield from cluster_options(request)


def _missing_devices(request: RunRequest, record: RunFile, facts: Facts) -> Iterator[str]:
    """Devices of the run that are gone or are others now; finds the `cluster` to which they belong, as it is now."""
    stored = record.devices
    kind = stored[0].kind
    per_node = max(devices_per_node(stored)) if record.cluster else len(stored)
    spec = DeviceSpec(kind, per_node if kind == "cpu" else None)
    job: Job | None = facts.get("job") if record.cluster else None
    cluster, found = find_devices(replace(_here(record, request), devices=str(spec)), job.spec if job else None)
    here = _which(found)
    gone = next((device for device, known in zip(stored, _which(stored), strict=True) if known not in here), None)
    if gone:
        yield (
            f"--resume: {gone.kind}:{gone.index} ({gone.name}, {gone.id}) of {gone.node} is not here, or has changed;"
            " resume where it is, or start a new run"
        )
    else:
        facts.add(cluster=cluster)


def _here(record: RunFile, request: RunRequest) -> RunRequest:
    """What is given now, to be looked for as the run's devices were.

    Raises:
        UsageError: a Ray cluster is given for a run that had none.
    """
    earlier = _ray_address(record)
    if earlier is None and request.ray_address is not None:
        raise UsageError("--resume: the run was not on a Ray cluster; leave --ray-address out, or start a new run")
    return replace(request, ray_address=request.ray_address or earlier, launcher=record.launcher)


def _ray_address(record: RunFile) -> str | None:
    """Where the Ray cluster of a run was; None for one that had none, or whose job names it itself."""
    return record.cluster.address if record.cluster and record.launcher == RAY and not record.job else None


def _which(devices: Sequence[Device]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Devices as far as a run must find them again: how much memory they are said to have may change."""
    return [(device.id, device.node, device.cores) for device in devices]


# What is given now and differs from the run would make launches that cannot be compared with those before.


def _difference(what: str, now: object, then: object) -> str:
    return f"--resume: {what} is {now} now and {then} in the run; leave it out, or start a new run"


def _other_workload(request: RunRequest, record: RunFile, workload: Workload) -> Iterator[str]:
    given = Facts(request.unknown)
    yield from read_workload(merge(record.workload, request.workload), request.origin, given)
    now, then = (flatten(one.model_dump(mode="json")) for one in (given["workload"], workload))
    yield from (
        _difference(key, now[key], then[key]) for key in now if now[key] != then[key] and key not in given.unknown
    )


def _other_kind_of_job(request: RunRequest, record: RunFile) -> Iterator[str]:
    if request.job is not None and record.job is None:
        yield "--resume: the run is of placebench's own job; leave --job out, or start a new run"
    if request.allow_kill and record.job is None:
        yield "--resume: the run is of placebench's own job; leave out --allow-kill, which is for a job of yours"


def _other_job(job: Job, request: RunRequest, placements: Sequence[RunPlacement]) -> Iterator[str]:
    """Keys of the user's job with another value than in the run; of its placements, those that the run has."""
    then = job.record.spec
    given = {**request.workload, **(request.job or {})}
    if unknown := given.keys() - JobSpec.model_fields.keys():
        yield f"--resume: {', '.join(sorted(unknown))}: a job of yours has no such key; leave it out"
    now = Facts()
    keys = {key: value for key, value in given.items() if key not in unknown}
    yield from read_job({**then, **keys}, request.origin, now)
    if "job" in now:
        changed = Job(now["job"]).record.spec
        yield from (
            _difference(key, _in_words(key, changed.get(key)), _in_words(key, then.get(key)))
            for key in keys
            if key != "placements" and changed.get(key) != then.get(key)
        )
        ours, theirs = (spec.get("placements", {}) for spec in (changed, then))
        yield from (
            _difference(f"placements.{name}", ours[name], theirs.get(name, {}))
            for name in (placement.name for placement in placements)
            if "placements" in keys and name in ours and ours[name] != theirs.get(name, {})
        )


def _in_words(key: str, value: object) -> object:
    return "as many as the command has" if (key, value) == ("steps", MOST_STEPS) else value


def _other_job_placements(words: str, job: Job, record: RunFile, placements: Sequence[RunPlacement]) -> Iterator[str]:
    reasons = Reasons()
    named = job.placements(words, devices_per_node(record.devices), record.devices[0].kind, reasons)
    if reasons.lines or [bind(placement, record.devices) for placement in named] != list(placements):
        yield _difference("--placements", words, ",".join(placement.name for placement in placements))


def _other_options(request: RunRequest, record: RunFile, folder: Path) -> Iterator[str]:
    if request.out is not None and request.out.resolve() != folder.parent.resolve():
        yield _difference("--out", request.out, folder.parent)
    if request.name is not None and request.name != record.name:
        yield _difference("--name", request.name, record.name)
    if request.checkpoint_every not in (None, record.checkpoint_every):
        yield _difference("--checkpoint-every", request.checkpoint_every, record.checkpoint_every)
    if request.resume_from is not None:
        yield "--resume and --resume-from do not go together: a run goes on with the checkpoint it began with"
    if request.launcher not in (None, record.launcher):
        yield _difference("--launcher", request.launcher, record.launcher)
    if request.sample_hz not in (None, record.sample_hz):
        yield _difference("--sample-hz", request.sample_hz, record.sample_hz)
    if isinstance(request.rounds, int) and request.rounds < record.rounds:
        yield _difference("--rounds", request.rounds, f"already {record.rounds}")


def _other_devices(asked_for: str, request: RunRequest, record: RunFile) -> Iterator[str]:
    _, found = find_devices(_here(record, request))
    if _which(found) != _which(record.devices):
        yield _difference(
            "--devices", asked_for, with_labels(", ".join(device.id for device in record.devices), record.devices)
        )


def _other_placements(
    words: str, record: RunFile, workload: Workload, placements: Sequence[RunPlacement]
) -> Iterator[str]:
    nodes = devices_per_node(record.devices)
    named = parse_placements(words, nodes, has_critic=workload.algorithm.has_critic)
    if [bind(placement, record.devices) for placement in named] != list(placements):
        yield _difference("--placements", words, ",".join(placement.name for placement in placements))


def _low_limits(record: RunFile) -> Iterator[str]:
    return iter(()) if record.job else low_limits(record.devices, record.launcher, record.cluster)


_CHECKS = (
    OPTIONS,
    Check(checks.missing_packages),
    Check(checks.full_disks),
    Check(_low_limits),
    Check(_in_place_of_folders),
    Check(_cluster_options),
    Check(_missing_devices),
    Check(unusable_workload),
    *RESUMED_JOB_CHECKS,
    START,
    Check(_other_kind_of_job),
    Check(_other_workload),
    Check(_other_job),
    Check(_other_job_placements),
    Check(_other_options),
    Check(_other_devices),
    Check(_other_placements),
    ROUNDS,
)
