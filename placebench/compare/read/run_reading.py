"""Reading a run folder, finished or not: what `run.json` says, and which launches there are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placebench.compare.read.run import Device, Launch, Run, RunPlacement
from placebench.errors import UsageError
from placebench.record.folder import SCHEMA_VERSION, RunFolder, Status, Trial
from placebench.record.resumptions import recorded_resumptions
from placebench.spec.placement import Overlap
from placebench.spec.reading import parse_json, refuse_pipe
from placebench.spec.shapes import PRESETS, JobShapes


def load_run(path: Path) -> Run:
    """Read the folder of a finished or half-finished run.

    Raises:
        UsageError: there is no such folder, it is not a run's, its schema is newer, or `run.json` is damaged.
    """
    folder = RunFolder(path)
    manifest = _read_manifest(folder)
    try:
        placements = tuple(
            RunPlacement(
                entry["name"],
                {pool: tuple(devices) for pool, devices in entry["pools"].items()},
                dict(entry["roles"]),
                Overlap(entry["overlap"]),
                int(entry.get("staleness", 0)),
                bool(entry.get("inflight_updates", False)),
                entry.get("scaling"),
                entry.get("tensor_parallel"),
                dict(entry.get("memory_estimate_bytes", {})),
            )
            for entry in manifest["placements"]
        )
        launches = []
        for round_number in range(1, int(manifest["rounds"]) + 1):
            for placement in placements:
                trial = folder.trial(round_number, placement.name)
                status = _status(trial)
                launches.append(Launch(trial, round_number, placement.name, status, int(manifest["warmup_steps"])))
        return Run(
            folder,
            manifest,
            placements,
            _devices(manifest["devices"]),
            _models(manifest),
            tuple(launches),
            int(manifest["warmup_steps"]),
            int((manifest.get("resumed_from") or {"step": 0})["step"]),
            recorded_resumptions(manifest),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{folder.run_file}: not as placebench writes it: {what}") from None


def _read_manifest(folder: RunFolder) -> dict[str, Any]:
    refuse_pipe(folder.run_file)
    try:
        content = parse_json(folder.run_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        what = "there is no run.json in it" if folder.path.is_dir() else "there is no such folder"
        raise UsageError(f"{folder.path}: {what}; name the folder of a run, such as runs/<time>-<name>") from None
    except NotADirectoryError:
        raise UsageError(f"{folder.path} is a file; name the folder of a run, such as runs/<time>-<name>") from None
    except OSError as error:
        raise UsageError(f"{folder.run_file}: cannot read it: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{folder.run_file}: cannot read it as JSON: {error}") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if not isinstance(version, int):
        raise UsageError(f"{folder.run_file}: it has no schema_version, so it is not a run of placebench")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{folder.run_file}: written by a newer placebench (schema {version}, this one reads {SCHEMA_VERSION}):"
            " upgrade placebench"
        )
    return dict(content)


def _status(trial: Trial) -> Status:
    try:
        return trial.status
    except ValueError as error:
        found = str(error).partition(" is not")[0]
        raise UsageError(f"{trial.path / 'status'}: {found} is none of {', '.join(Status)}") from None


def _models(manifest: Mapping[str, Any]) -> JobShapes | None:
    """As the run recorded them; those of presets also of a run from before that was done."""
    if "models" in manifest:
        return JobShapes.from_dict(manifest["models"])
    workload = manifest.get("workload", {})
    actor = PRESETS.get(workload.get("model"))
    critic = PRESETS.get(workload.get("critic_model") or workload.get("model"))
    return JobShapes(actor, critic) if actor and critic else None


def _devices(entries: list[dict[str, Any]]) -> dict[str, Device]:
    nodes = {entry.get("node") for entry in entries}
    devices = {}
    for entry in entries:
        label = f"{entry['kind']}:{entry['index']}"
        if len(nodes) > 1:
            label = f"{entry['node']}/{label}"
        devices[entry["id"]] = Device(
            entry["id"], label, entry.get("name") or "", entry.get("memory_bytes"), entry["kind"] == "gpu"
        )
    return devices
