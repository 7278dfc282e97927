"""Going on with a run that was interrupted, failed in part, or is to have more rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from placebench.errors import Reasons, UsageError
from placebench.host.ownership import live_runs, mark_interrupted
from placebench.plan import checks
from placebench.plan.devices import cluster_options, find_devices
from placebench.plan.plan import Plan
from placebench.plan.request import RunRequest
from placebench.plan.rounds import auto_rounds, planned_rounds
from placebench.plan.workload_checks import unusable_workload
from placebench.record.checkpoints import read_checkpoint
from placebench.record.folder import SCHEMA_VERSION, RunFolder, Status
from placebench.record.resumptions import recorded_launcher, recorded_resumptions, recorded_seconds
from placebench.sessions.ray_cluster.discovery import Cluster
from placebench.sessions.torchrun.nodes import JobNodes
from placebench.spec.auto_rounds import auto_rounds_from
from placebench.spec.bound import BoundPlacement, bind
from placebench.spec.check import Facts
from placebench.spec.config import flatten, merge
from placebench.spec.devices import Device, DeviceSpec, device_from_dict, devices_per_node
from placebench.spec.launchers import RAY
from placebench.spec.placement import Pool, placement_from_record
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
    folder, content = RunFolder(path), _read_run(RunFolder(path))
    if path.resolve() in live_runs():
        raise UsageError(f"{path}: the run still goes on in another process; stop that first")
    try:
        stored = tuple(device_from_dict(device) for device in content["devices"])
        workload = build_workload(content["workload"], f"{folder.run_file}: workload")
        placements = tuple(_placement(entry, stored) for entry in content["placements"])
        rounds, sample_hz = int(content["rounds"]), float(content["sample_hz"])
        stored_auto = auto_rounds_from(content.get("auto"))
        name, every = str(content["name"]), content.get("checkpoint_every") and int(content["checkpoint_every"])
        launcher = recorded_launcher(content)
        checkpoint = Path(content["resumed_from"]["checkpoint"]) if content.get("resumed_from") else None
        _read_rest(content)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{folder.run_file}: not as this placebench writes it: {error!r}; start a new run") from None
    mark_interrupted(path)
    reasons = Reasons()
    reasons.add(request.wrong)
    reasons.add(checks.missing_packages(launcher))
    reasons.add(checks.full_disks(path))
    reasons.add(() if _ray_cluster(content) else cluster_options(request))
    cluster = reasons.attempt(lambda: _present(content, stored, request))
    reasons.add(unusable_workload(workload))
    start = reasons.attempt(partial(read_checkpoint, checkpoint)) if checkpoint else None
    reasons.attempt(lambda: _agree(request, path, content, workload, stored, rounds))
    auto = reasons.attempt(lambda: auto_rounds(request, stored_auto)) if "rounds" not in request.unknown else None
    reasons.raise_any()
    planned = planned_rounds(request, auto, rounds)
    done = _done_launches(folder, placements, planned)
    before, to_come = start.step if start else 0, planned * len(placements)
    if every:
        reasons.add(checks.no_room_for_checkpoints(workload, path, every, to_come - len(done), before))
    reasons.raise_any()
    return Plan(
        name=name,
        folder=folder,
        placements=placements,
        workload=workload,
        devices=stored,
        rounds=planned,
        auto=auto,
        calibrates=bool(content.get("calibrates")),
        min_effect=content.get("min_effect") if request.min_effect is None else request.min_effect,
        step_timeout_s=request.step_timeout_s,
        time_limit_s=request.time_limit_s,
        sample_hz=sample_hz,
        done=done,
        resumed=True,
        checkpoint_every=every,
        start=start,
        launcher=launcher,
        cluster=cluster,
    )


def _read_run(folder: RunFolder) -> dict[str, Any]:
    refuse_pipe(folder.run_file)
    try:
        content = parse_json(folder.run_file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"--resume {folder.path}: there is no run; name a folder with run.json in it") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder.run_file}: cannot read it: {error}") from None
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(f"{folder.run_file}: not a run of this placebench; start a new one")
    return content


def _read_rest(content: Mapping[str, Any]) -> None:
    """Read what only later work on `run.json` needs, so that it is told of here."""
    Status(content["status"])
    recorded_seconds(content)
    recorded_resumptions(content)
    if content.get("cluster") is not None:
        str(content["cluster"]["address"])


def _placement(entry: Mapping[str, Any], devices: Sequence[Device]) -> BoundPlacement:
    """The placement of an object of `run.json`."""
    nodes = list(dict.fromkeys(device.node for device in devices))
    by_id = {device.id: device for device in devices}
    bound = {str(pool): tuple(by_id[name] for name in names) for pool, names in entry["pools"].items()}
    pools = tuple(
        Pool(pool, tuple(sum(device.node == node for device in members) for node in nodes))
        for pool, members in bound.items()
    )
    return BoundPlacement(placement_from_record(entry, pools), bound)


def _present(content: Mapping[str, Any], stored: Sequence[Device], request: RunRequest) -> Cluster | JobNodes | None:
    """See to it that the run's devices are there as they were; returns the cluster they belong to, as it is now.

    Raises:
        UsageError: one of them is gone or is another one now.
    """
    kind = stored[0].kind
    per_node = max(devices_per_node(stored)) if content.get("cluster") else len(stored)
    spec = DeviceSpec(kind, per_node if kind == "cpu" else None)
    cluster, found = find_devices(replace(_here(content, request), devices=str(spec)))
    here = {device.id: device for device in found}
    for device in stored:
        if (now := here.get(device.id)) is None or (now.node, now.cores) != (device.node, device.cores):
            raise UsageError(
                f"--resume: {device.id} ({device.name}) of {device.node} is not here as it was; go on where it is, or"
                " start a new run"
            )
    return cluster


def _asked_for(content: Mapping[str, Any], request: RunRequest) -> tuple[Device, ...]:
    """The devices that the options given now mean."""
    return find_devices(_here(content, request))[1]


def _here(content: Mapping[str, Any], request: RunRequest) -> RunRequest:
    """What is given now, looked for as the run's devices were.

    Raises:
        UsageError: a cluster is given for a run that had none.
    """
    return replace(request, ray_address=_address(content, request), launcher=recorded_launcher(content))


def _ray_cluster(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The Ray cluster of a run; None for one that had none."""
    return content.get("cluster") if recorded_launcher(content) == RAY else None


def _which(devices: Sequence[Device]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Devices as far as a run must find them again: how much memory they are said to have may change."""
    return [(device.id, device.node, device.cores) for device in devices]


def _address(content: Mapping[str, Any], request: RunRequest) -> str | None:
    """Where the run's Ray cluster is now; None for a run on one host.

    Raises:
        UsageError: a cluster is given for a run that had none.
    """
    earlier = _ray_cluster(content)
    if earlier is None and request.ray_address is not None:
        raise UsageError("--resume: the run was not on a Ray cluster; leave --ray-address out, or start a new run")
    return request.ray_address or (None if earlier is None else str(earlier["address"]))


def _agree(
    request: RunRequest,
    folder: Path,
    content: Mapping[str, Any],
    workload: Workload,
    devices: Sequence[Device],
    rounds: int,
) -> None:
    """Refuse what is given now and differs from the run: its launches would not be comparable.

    Raises:
        UsageError: one line for every difference.
    """
    reasons = Reasons()

    def differs(what: str, now: object, then: object) -> None:
        reasons.add([f"--resume: {what} is {now} now and {then} in the run; leave it out, or start a new run"])

    given = merge(content["workload"], request.workload)
    reading = Facts(request.unknown)
    reasons.add(read_workload(given, request.origin, reading))
    now, then = (flatten(one.model_dump(mode="json")) for one in (reading["workload"], workload))
    for key in (key for key in now if now[key] != then[key] and key not in reading.unknown):
        differs(key, now[key], then[key])
    if request.out is not None and request.out.resolve() != folder.parent.resolve():
        differs("--out", request.out, folder.parent)
    if request.name is not None and request.name != content["name"]:
        differs("--name", request.name, content["name"])
    if request.checkpoint_every not in (None, content.get("checkpoint_every")):
        differs("--checkpoint-every", request.checkpoint_every, content.get("checkpoint_every"))
    if request.resume_from is not None:
        reasons.add(["--resume and --resume-from do not go together: a run goes on with the checkpoint it began with"])
    if request.launcher not in (None, recorded_launcher(content)):
        differs("--launcher", request.launcher, recorded_launcher(content))
    if request.sample_hz not in (None, content["sample_hz"]):
        differs("--sample-hz", request.sample_hz, content["sample_hz"])
    if isinstance(request.rounds, int) and request.rounds < rounds:
        differs("--rounds", request.rounds, f"already {rounds}")
    if request.devices is not None:
        found = reasons.attempt(lambda: _asked_for(content, request))
        if found is not None and _which(found) != _which(devices):
            differs("--devices", request.devices, ", ".join(device.id for device in devices))
    if (words := request.placements) is not None:
        has_critic, nodes = workload.algorithm.has_critic, devices_per_node(devices)
        named = reasons.attempt(lambda: parse_placements(words, nodes, has_critic=has_critic))
        stored = [_placement(entry, devices).to_dict() for entry in content["placements"]]
        if named is not None and [bind(placement, devices).to_dict() for placement in named] != stored:
            names = ",".join(str(entry["name"]) for entry in content["placements"])
            differs("--placements", request.placements, names)
    reasons.raise_any()


def _done_launches(folder: RunFolder, placements: Sequence[BoundPlacement], rounds: int) -> frozenset[tuple[int, str]]:
    return frozenset(
        (number, placement.name)
        for number in range(1, rounds + 1)
        for placement in placements
        if folder.trial(number, placement.name).stands_at(Status.DONE)
    )
