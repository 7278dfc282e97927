"""A run to give away: its report and its tables, without what says where, by whom and in what environment it ran.

The report is built anew from a copy of the run that has nothing but what is known to be harmless: of `run.json` the
fields below, of each launch the lines that `record.launch_lines` knows. So what is left out is in no figure either.
"""

import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placebench.compare.read.run import Launch, Run
from placebench.compare.read.run_reading import load_run
from placebench.errors import UsageError
from placebench.out.masks import Masks
from placebench.out.to_files import csv_text, tables_of
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.run_file import RunFile, StartCheckpoint
from placebench.record.writing import append_jsonl, append_to, replacing_output, write_atomically
from placebench.report.build import build_report
from placebench.report.paths import HTML, MARKDOWN, PLOTS, SUMMARY, TRACE

_HOST_FACTS = ("cpu_model", "cpu_count", "usable_cores", "memory_bytes", "driver", "gpu_links")
_GPU_FACTS = ("index", "name", "memory_bytes")


def share(path: Path, out: Path, *, keep_host: bool = False) -> None:
    """Write a zip of a run's report, figures, trace and tables without host names, paths, user names and environment.

    Args:
        path: the run's folder.
        out: the file to write; a zip that is there is replaced.
        keep_host: keep the names of hosts and nodes, the ids of GPUs and all else that is known of the host.

    Raises:
        UsageError: the folder is not a run's or has no raw files left, or the file is there and no zip.
        OSError: the file cannot be written.
    """
    if RunFolder(path).lacks_raw_files:
        raise UsageError(f"{path}: shared without its raw files, which the zip needs: share it where it was run")
    out.parent.stat()  # before all work: a folder that is not there
    if out.is_file() and out.stat().st_size and not zipfile.is_zipfile(out):
        raise UsageError(f"{out}: is there, but is no zip: name another file, or remove it")
    run = load_run(path)
    masks = Masks(run, keep_host=keep_host)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / (masks.name(path.resolve().name) or "run")
        _write_copy(run, masks, folder)
        build_report(folder)
        copied = load_run(folder)
        with replacing_output(out) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            phases = RunFolder(folder).phases_file
            for file in (folder / SUMMARY, folder / MARKDOWN, folder / HTML, folder / TRACE, phases):
                if file.exists():
                    archive.write(file, f"{folder.name}/{file.name}")
            for plot in sorted((folder / PLOTS).iterdir()):
                archive.write(plot, f"{folder.name}/{PLOTS}/{plot.name}")
            for name, table in tables_of(copied).items():
                archive.writestr(f"{folder.name}/tables/{name}.csv", csv_text(table))


def _write_copy(run: Run, masks: Masks, folder: Path) -> None:
    """Write a copy of a run that has only what may be given away."""
    folder.mkdir()
    copy = RunFolder(folder)
    (folder / "trials").mkdir()
    _masked_record(run.record, masks).write(copy.run_file)
    for launch in run.launches:
        if launch.status is not Status.PLANNED:
            _write_launch(launch, masks, copy.trial(launch.round, launch.placement))


def _masked_record(record: RunFile, masks: Masks) -> RunFile:
    words = ",".join(placement.name for placement in record.placements)
    ids = masks.devices
    placements = tuple(
        one.model_copy(
            update={"pools": {pool: tuple(map(ids.__getitem__, names)) for pool, names in one.pools.items()}}
        )
        for one in record.placements
    )
    devices = tuple(replace(one, id=ids[one.id], node=masks.nodes.get(one.node, one.node)) for one in record.devices)
    # Notes of one command have its settings in them, those with a variable; the others are of the framework.
    notes = tuple(masks.text(note) for note in record.job.notes if "$" not in note) if record.job else ()
    job = record.job and record.job.model_copy(update={"spec": {}, "notes": notes})
    start = record.resumed_from and StartCheckpoint(checkpoint="checkpoint", step=record.resumed_from.step)
    return RunFile(
        **{name: getattr(record, name) for name in _KEPT},
        name=masks.name(record.name),
        command=("placebench", "run", "--placements", words),
        placements=placements,
        devices=devices,
        job=job,
        resumed_from=start,
        workload=masks.workload(),
        host=record.host if masks.keeps_host else _masked_host(record.host),
    )


def _masked_host(host: Mapping[str, Any]) -> dict[str, Any]:
    gpus = [{key: gpu.get(key) for key in _GPU_FACTS} for gpu in host.get("gpus") or ()]
    return {key: host[key] for key in _HOST_FACTS if key in host} | {"gpus": gpus}


# Fields of `run.json` that say nothing of a host or a person; what is not here is left out, or masked.
_KEPT = (
    "schema_version", "status", "started", "ended", "rounds", "calibrates", "steps", "warmup_steps", "sample_hz",
    "launcher", "checkpoint_every", "models", "versions", "git", "order", "launches", "wall", "auto", "min_effect",
)  # fmt: skip


def _write_launch(launch: Launch, masks: Masks, trial: Trial) -> None:
    trial.path.mkdir()
    trial.set_status(launch.status)
    if error := masks.error(launch):
        write_atomically(trial.error, f"{launch.status}: {error}\n")
    lines = launch.lines
    for path, content in (
        (trial.steps, map(masks.line, lines.steps) if lines.steps else _unread_steps(launch)),
        (trial.spans, map(masks.line, lines.spans)),
        (trial.kernels, map(masks.line, lines.kernels)),
        (trial.pauses, map(masks.line, lines.pauses)),
        (trial.processes, map(masks.line, lines.processes)),
        (trial.ray, map(masks.line, lines.ray)),
        (trial.device_samples, map(masks.line, lines.devices)),
    ):
        with append_to(path) as stream:
            for line in content:
                append_jsonl(stream, line)
    if lines.log:
        flags = tuple(dict.fromkeys(map(masks.flag, lines.log.flags)))
        lines.log.model_copy(update={"flags": flags}).write(trial)


def _unread_steps(launch: Launch) -> Iterator[dict[str, Any]]:
    """The steps of a launch that is not in the numbers, of which only their number counts."""
    return ({"step": step, "metrics": {}} for step in range(1, launch.steps_done + 1))
