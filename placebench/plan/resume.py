"""Going on with a run that was interrupted, failed in part, or is to have more rounds."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from placebench.errors import Reasons, UsageError
from placebench.host.ownership import live_runs, mark_interrupted
from placebench.plan import checks
from placebench.plan.plan import Plan, cluster_options, find_devices, no_room_for_checkpoints
from placebench.plan.request import RunRequest
from placebench.plan.rounds import auto_rounds, planned_rounds
from placebench.record.checkpoints import read_checkpoint
from placebench.record.folder import SCHEMA_VERSION, RunFolder, Status
from placebench.record.run_file import RunFile, recorded_version
from placebench.sessions.ray_cluster.discovery import Cluster
from placebench.sessions.torchrun.nodes import JobNodes
from placebench.spec.bound import RunPlacement, bind
from placebench.spec.config import flatten, merge
from placebench.spec.devices import Device, DeviceSpec, devices_per_node
from placebench.spec.launchers import RAY
from placebench.spec.reading import parse_json, refuse_pipe
from placebench.spec.words import parse_placements
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload, read_workload


def resume_plan(path: Path, request: RunRequest) -> Plan:
    """The plan for the rest of a run: its finished launches are kept, the others run again.

    Args:
        path: the run's folder.
        request: what is given now; it must agree with the run, but for more rounds.

    Raises:
        UsageError: one line for every reason why the run cannot go on.
    """
    folder = RunFolder(path)
    content = _read_run(folder)
    if path.resolve() in live_runs():
        raise UsageError(f"{path}: the run still goes on in another process; stop that first")
    try:
        record = RunFile.parse(content)
        workload = build_workload(record.workload, f"{folder.run_file}: workload")
        placements = record.run_placements
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{folder.run_file}: not as this placebench writes it: {error!r}; start a new run") from None
    stored, rounds = record.devices, record.rounds
    mark_interrupted(path)
    reasons = Reasons()
    reasons.add(request.wrong)
    reasons.add(checks.missing_packages(record.launcher))
    reasons.add(checks.full_disks(path))
    reasons.add(() if _ray_address(record) else cluster_options(request))
    cluster = reasons.attempt(lambda: _present(record, request))
    reasons.add(checks.unusable_workload(workload))
    begun = record.resumed_from
    start = reasons.attempt(partial(read_checkpoint, Path(begun.checkpoint))) if begun else None
    reasons.attempt(lambda: _agree(request, path, record, workload, placements))
    auto = reasons.attempt(lambda: auto_rounds(request, record.auto)) if "rounds" not in request.unread else None
    reasons.raise_any()
    planned = planned_rounds(request, auto, rounds)
    done = _done_launches(folder, placements, planned)
    before, to_come = start.step if start else 0, planned * len(placements)
    reasons.add(no_room_for_checkpoints(workload, path, record.checkpoint_every, before, to_come - len(done)))
    reasons.raise_any()
    return Plan(
        name=record.name,
        folder=folder,
        placements=placements,
        workload=workload,
        devices=stored,
        rounds=planned,
        auto=auto,
        calibrates=record.calibrates,
        min_effect=record.min_effect if request.min_effect is None else request.min_effect,
        step_timeout_s=request.step_timeout_s,
        time_limit_s=request.time_limit_s,
        sample_hz=record.sample_hz,
        done=done,
        resumed=True,
        checkpoint_every=record.checkpoint_every,
        start=start,
        launcher=record.launcher,
        cluster=cluster,
    )


def _read_run(folder: RunFolder) -> object:
    refuse_pipe(folder.run_file)
    try:
        content: object = parse_json(folder.run_file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"--resume {folder.path}: there is no run; name a folder with run.json in it") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder.run_file}: cannot read it: {error}") from None
    if recorded_version(content) != SCHEMA_VERSION:
        raise UsageError(f"{folder.run_file}: not a run of this placebench; start a new one")
    return content


def _present(record: RunFile, request: RunRequest) -> Cluster | JobNodes | None:
    """See to it that the run's devices are there as they were; returns the cluster they belong to, as it is now.

    Raises:
        UsageError: one of them is gone or is another one now.
    """
    stored = record.devices
    kind = stored[0].kind
    per_node = max(devices_per_node(stored)) if record.cluster else len(stored)
    spec = DeviceSpec(kind, per_node if kind == "cpu" else None)
    cluster, found = find_devices(replace(_here(record, request), devices=str(spec)))
    here = {device.id: device for device in found}
    for device in stored:
        if (now := here.get(device.id)) is None or (now.node, now.cores) != (device.node, device.cores):
            raise UsageError(
                f"--resume: {device.id} ({device.name}) of {device.node} is not here as it was; go on where it is, or"
                " start a new run"
            )
    return cluster


def _asked_for(record: RunFile, request: RunRequest) -> tuple[Device, ...]:
    """The devices that the options given now mean."""
    return find_devices(_here(record, request))[1]


def _here(record: RunFile, request: RunRequest) -> RunRequest:
    """What is given now, looked for as the run's devices were.

    Raises:
        UsageError: a cluster is given for a run that had none.
    """
    return replace(request, ray_address=_address(record, request), launcher=record.launcher)


def _ray_address(record: RunFile) -> str | None:
    """Where the Ray cluster of a run was; None for one that had none."""
    return record.cluster.address if record.cluster and record.launcher == RAY else None


def _which(devices: Sequence[Device]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Devices as far as a run must find them again: how much memory they are said to have may change."""
    return [(device.id, device.node, device.cores) for device in devices]


def _address(record: RunFile, request: RunRequest) -> str | None:
    """Where the run's Ray cluster is now; None for a run on one host.

    Raises:
        UsageError: a cluster is given for a run that had none.
    """
    earlier = _ray_address(record)
    if earlier is None and request.ray_address is not None:
        raise UsageError("--resume: the run was not on a Ray cluster; leave --ray-address out, or start a new run")
    return request.ray_address or earlier


def _agree(
    request: RunRequest,
    folder: Path,
    record: RunFile,
    workload: Workload,
    placements: Sequence[RunPlacement],
) -> None:
    """Refuse what is given now and differs from the run: its launches would not be comparable.

    Raises:
        UsageError: one line for every difference.
    """
    reasons = Reasons()

    def differs(what: str, now: object, then: object) -> None:
        reasons.add([f"--resume: {what} is {now} now and {then} in the run; leave it out, or start a new run"])

    given = merge(record.workload, request.workload)
    reading = read_workload(given, reasons, request.origin, request.unread)
    now, then = (flatten(one.model_dump(mode="json")) for one in (reading.workload, workload))
    for key in (key for key in now if now[key] != then[key] and key not in reading.unread):
        differs(key, now[key], then[key])
    if request.out is not None and request.out.resolve() != folder.parent.resolve():
        differs("--out", request.out, folder.parent)
    if request.name is not None and request.name != record.name:
        differs("--name", request.name, record.name)
    if request.checkpoint_every not in (None, record.checkpoint_every):
        differs("--checkpoint-every", request.checkpoint_every, record.checkpoint_every)
    if request.resume_from is not None:
        reasons.add(["--resume and --resume-from do not go together: a run goes on with the checkpoint it began with"])
    if request.launcher not in (None, record.launcher):
        differs("--launcher", request.launcher, record.launcher)
    if request.sample_hz not in (None, record.sample_hz):
        differs("--sample-hz", request.sample_hz, record.sample_hz)
    if isinstance(request.rounds, int) and request.rounds < record.rounds:
        differs("--rounds", request.rounds, f"already {record.rounds}")
    if request.devices is not None:
        found = reasons.attempt(lambda: _asked_for(record, request))
        if found is not None and _which(found) != _which(record.devices):
            differs("--devices", request.devices, ", ".join(device.id for device in record.devices))
    if (words := request.placements) is not None:
        has_critic, nodes = workload.algorithm.has_critic, devices_per_node(record.devices)
        named = reasons.attempt(lambda: parse_placements(words, nodes, has_critic=has_critic))
        if named is not None and [bind(placement, record.devices) for placement in named] != list(placements):
            differs("--placements", request.placements, ",".join(placement.name for placement in placements))
    reasons.raise_any()


def _done_launches(folder: RunFolder, placements: Sequence[RunPlacement], rounds: int) -> frozenset[tuple[int, str]]:
    return frozenset(
        (number, placement.name)
        for number in range(1, rounds + 1)
        for placement in placements
        if folder.trial(number, placement.name).stands_at(Status.DONE)
    )
