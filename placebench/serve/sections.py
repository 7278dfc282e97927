"""What the page of a run shows, in sections of which each reader is told what is new to it."""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from placebench.compare.measure.precision import narrowing
from placebench.compare.statistics.verdicts import MIN_EFFECT
from placebench.errors import DamagedLaunchError
from placebench.record.folder import Status
from placebench.record.job_record import LogRecord
from placebench.record.progress import LaunchState, activity, run_left
from placebench.record.run_file import RunFile
from placebench.serve.files import is_plain
from placebench.serve.launch_files import LaunchFiles, LaunchSteps, as_json, limits, readings
from placebench.serve.run_files import Launched, RunFiles
from placebench.serve.seats import seats
from placebench.serve.series import Seen, Series
from placebench.serve.timeline import finished_step, step_under_way
from placebench.spec.devices import device_labels
from placebench.spec.launchers import RAY
from placebench.spec.legible import legible, visible
from placebench.spec.text import plural

# Who sits where is looked at anew so often, seconds, and when it changes.
_SEATS_S = 5
REPORT_FILES: Mapping[str, str] = {
    "report.html": "text/html; charset=utf-8",
    "summary.json": "application/json",
    "trace.json.gz": "application/gzip",
}
"""The files of a finished run that the page links, and what they are."""


@dataclass
class Cursor:
    """What one reader has been told."""

    sections: dict[str, int] = field(default_factory=dict)
    series: dict[tuple[str, str], Seen] = field(default_factory=dict)
    log: tuple[Path | None, int] = (None, 0)


class Sections:
    """The sections of a run's page.

    Args:
        files: the run's.
    """

    def __init__(self, files: RunFiles) -> None:
        self.files = files
        self._made_as: dict[str, object] = {}
        self._sections: dict[str, Any] = {}
        self._versions: dict[str, int] = {}
        self._made_of: dict[str, object] = {}

    def update(self) -> None:
        """Read the files on, and make anew what has changed."""
        files = self.files
        files.read()
        record, current = files.record, files.current
        if record is None:
            self._put("run", _told(files))
            return
        labels = device_labels(record.devices)
        self._put("run", _run(files, record, labels))
        times = _step_times(files, record)
        if self._is_new("ratio", times):
            self._put("ratio", _ratios(record, times))
        if current:
            self._put("now", _now(files, record, current))
            self._put("timeline", step_under_way(current, labels))
            self._put("finished", finished_step(current, labels))
            computing = [state.processes for state in current.devices.values() if state.processes]
            pids = [[one.pid for one in line.processes] for line in computing]
            # Their memory changes all the time.
            now = (
                current.trial.path,
                current.last_step,
                len(current.processes),
                pids,
                int(current.elapsed_s / _SEATS_S),
            )
            if self._is_new("seats", now):
                self._put("seats", seats(current, labels))
            self._put("devices", _devices(current, labels))

    def news(self, cursor: Cursor) -> dict[str, Any]:
        """What a reader has not been told yet, as JSON with nothing but legible text in it; its cursor goes on."""
        versions = self._versions
        told = {name: self._sections[name] for name in versions if cursor.sections.get(name) != versions[name]}
        cursor.sections = dict(versions)
        series: dict[str, dict[str, Any]] = {}
        for group, name, one in self._series():
            found, cursor.series[group, name] = one.since(cursor.series.get((group, name)))
            if found is not None:
                series.setdefault(group, {})[visible(name)] = found
        if series:
            told["series"] = series
        current = self.files.current
        if current and cursor.log != (now := (current.trial.path, current.log_lines)):
            is_another = cursor.log[0] != now[0]
            added = now[1] - (0 if is_another else cursor.log[1])
            told["log"] = {"anew": is_another, "lines": list(current.log)[-added:] if added else []}
            cursor.log = now
        return told

    def _series(self) -> Iterator[tuple[str, str, Series]]:
        """Group, name and points; those of devices and queues are of one launch, named in front."""
        for (number, name), launch in self.files.launches.items():
            yield "steps", f"{number}/{name}", launch.series
        if current := self.files.current:
            for device, state in current.devices.items():
                yield "devices", f"{current.trial.path.name}/{device}", state.history
            if len(current.queue):
                yield "queue", current.trial.path.name, current.queue

    def _is_new(self, name: str, source: object) -> bool:
        changed = name not in self._made_of or self._made_of[name] != source
        self._made_of[name] = source
        return changed

    def _put(self, name: str, section: object) -> None:
        if name not in self._made_as or self._made_as[name] != section:
            self._made_as[name], self._sections[name] = section, legible(section)
            self._versions[name] = self._versions.get(name, 0) + 1


def _told(files: RunFiles) -> dict[str, Any]:
    """What there is to say of every run, of one without raw files or with damaged ones, too."""
    known = files.record or files.summary
    # A run that is resumed has the summary of before: it is not the verdict of what it measures now.
    is_over = known is not None and known.status is not Status.RUNNING
    verdicts = files.summary.placements if files.summary and is_over else ()
    return {
        "name": (known.name if known else "") or files.folder.path.name,
        "status": files.status,
        "files": [name for name in REPORT_FILES if is_plain(files.folder.path / name)],
        "headlines": [one.headline for one in verdicts if one.headline],
        "errors": [error for error in (files.error, _damaged(files)) if error],
    }


def _run(files: RunFiles, record: RunFile, labels: Mapping[str, str]) -> dict[str, Any]:
    """What a run is, and how its launches went."""
    begun = (key for key in files.order if key in files.launches)
    return _told(files) | {
        "command": shlex.join(record.command),
        "started": record.started,
        "ended": record.ended,
        "rounds": record.rounds,
        "auto": record.auto and {"precision": record.auto.precision, "most": record.auto.max_rounds},
        "steps": record.steps,
        "of_launches": len(files.order),
        "job": record.job.framework if record.job else None,
        "notes": [*(record.job.notes if record.job else ()), *_flags(files.current)],
        "placements": [
            {
                "name": one.name,
                "pools": {pool: [labels[device] for device in devices] for pool, devices in one.pools.items()},
                "roles": dict(one.roles),
                "overlap": one.overlap,
                "staleness": one.staleness,
            }
            for one in record.placements
        ],
        "devices": [{"label": labels[one.id], "name": one.name, "memory": one.memory_bytes} for one in record.devices],
        "launches": [_launch(files.launches[key], files.statuses[key], record) for key in begun],
        "ray": _ray(record),
    }


def _launch(launch: LaunchSteps, status: Status, record: RunFile) -> dict[str, Any]:
    failed = status.is_final and status is not Status.DONE and is_plain(launch.trial.error)
    return {
        "round": launch.round,
        "placement": launch.placement,
        "status": status,
        "step_time": as_json(launch.step_time) if launch.is_over else None,
        "warmup": launch.warmup if launch.is_over else record.warmup_steps,
        "error": launch.trial.first_error if failed else None,
    }


def _flags(current: LaunchFiles | None) -> list[str]:
    """What to mind of the log of a job of the user's."""
    if current is None or not is_plain(current.trial.log_facts):
        return []
    try:
        known = LogRecord.read(current.trial)
    except DamagedLaunchError as error:
        return [str(error)]
    return [flag.text for flag in known.flags] if known else []


def _damaged(files: RunFiles) -> str | None:
    count = sum(launch.damaged for launch in files.launches.values()) + (files.current.damaged if files.current else 0)
    are = "is" if count == 1 else "are"
    return f"{plural(count, 'line')} of the launches' files cannot be read and {are} left out" if count else None


def _ray(record: RunFile) -> str | None:
    """How to reach the Ray of a run; None where it has none that outlives a launch."""
    if record.cluster is not None and record.launcher == RAY:
        address = record.cluster.address
        head = "HEAD" if address == "auto" else address.rpartition(":")[0]
        return (
            f"ray status --address {address} says what the cluster has (with RAY_AUTH_MODE=token where it asks for a"
            " token). Its dashboard is on port 8265 of the head node unless it was put elsewhere: ssh -L"
            f" 8265:127.0.0.1:8265 {head}, then http://127.0.0.1:8265"
        )
    of_job = record.job.spec.get("ray") if record.job else None
    if isinstance(of_job, str) and of_job not in ("none", "own"):
        return f"ray status --address {of_job} says what the job's Ray has"
    return None


def _step_times(files: RunFiles, record: RunFile) -> dict[str, dict[int, float]]:
    """The step time of every launch that is done, seconds, by placement and round."""
    times: dict[str, dict[int, float]] = {one.name: {} for one in record.placements}
    for (number, name), launch in files.launches.items():
        is_done = launch.is_over and files.statuses[number, name] is Status.DONE
        if is_done and not math.isnan(launch.step_time):
            times[name][number] = launch.step_time
    return times


def _ratios(record: RunFile, times: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """How each placement's step time compares with the first's, as the rounds came in."""
    first, *others = times
    return {
        "first": first,
        "of": {
            name: [
                [number, as_json(one.value), as_json(one.low), as_json(one.high), one.verdict]
                for number, one in narrowing(times[first], times[name], record.min_effect or MIN_EFFECT)
            ]
            for name in others
        },
        "done": sum(all(number in of for of in times.values()) for number in times[first]),
    }


def _now(files: RunFiles, record: RunFile, current: LaunchFiles) -> dict[str, Any]:
    """Which launch runs, what it does, and how long the run still takes."""
    steps, progress = current.steps, current.progress
    key: Launched = (steps.round, steps.placement)
    runs = files.status == Status.RUNNING and files.statuses[key] is Status.RUNNING
    elapsed, silent = current.elapsed_s, current.silent_s
    state = LaunchState(progress.stage, progress.step, progress.running, steps.seconds, (), elapsed, silent)
    left = run_left(record, *key, state) if runs else None
    return {
        "runs": runs,
        "round": steps.round,
        "placement": steps.placement,
        "trial": current.trial.path.name,
        "number": files.order.index(key) + 1,
        "doing": activity(state, record.steps_in(steps.round)) if runs else None,
        "elapsed_s": round(elapsed) if runs else None,
        "silent_s": round(silent) if runs else None,
        "left_s": None if left is None else round(left),
    }


def _devices(current: LaunchFiles, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """The last sample of every device, in the order of the run's."""
    order = {device: place for place, device in enumerate(labels)}
    return [
        {
            "id": device,
            "label": labels.get(device, device),
            "temperature": state.last.quantities.get("temperature_c"),
            "held": list(limits(state.last)),
            "error": state.error,
            **readings(state.last),
        }
        for device, state in sorted(current.devices.items(), key=lambda item: order.get(item[0], len(order)))
        if state.last
    ]
