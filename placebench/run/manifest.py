"""`run.json`: what a run is, on what it ran and how its launches went; rewritten after every launch."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from placebench import __version__
from placebench.host.devices import host_record
from placebench.plan.plan import Plan, PlannedLaunch
from placebench.record.folder import SCHEMA_VERSION, Status, Trial, utc_now, write_json
from placebench.record.resumptions import Resumption, recorded_resumptions, recorded_seconds
from placebench.run.walltime import LaunchWall
from placebench.spec.bound import BoundPlacement
from placebench.spec.devices import device_to_dict

_PACKAGES = ("torch", "ray", "transformers", "vllm", "numpy", "nvidia-ml-py")


class Manifest:
    """Keeps a run's `run.json` up to date.

    Args:
        plan: the run.
        command: the command line that started it, or that goes on with it.
    """

    def __init__(self, plan: Plan, command: Sequence[str]) -> None:
        self._path = plan.folder.run_file
        self._begun = time.monotonic()
        self._content = self._earlier(command) if plan.resumed else _describe(plan, command)
        self._earlier_s, _ = recorded_seconds(self._content)
        self._content |= {"auto": plan.auto and plan.auto.to_dict(), "min_effect": plan.min_effect, "ended": None}
        self.extend(plan)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the run so far, earlier starts of it included."""
        return self._earlier_s + time.monotonic() - self._begun

    @property
    def launches_s(self) -> float:
        """Seconds of all launches so far."""
        return recorded_seconds(self._content)[1]

    def extend(self, plan: Plan) -> None:
        """Record the rounds of a plan, which may have become more."""
        self._content |= {"rounds": plan.rounds, "order": [list(names) for names in plan.order]}
        self._write(Status.RUNNING)

    def add(self, launch: PlannedLaunch, trial: Trial, status: Status, wall: LaunchWall) -> None:
        """Record how a launch went, in place of an earlier try."""
        key = {"round": launch.round, "placement": launch.placement.name}
        others = [other for other in self._content["launches"] if not key.items() <= other.items()]
        entry = {**key, "trial": f"trials/{trial.path.name}", "status": str(status), "wall": asdict(wall)}
        self._content["launches"] = [*others, entry]
        self._write(Status.RUNNING)

    def finish(self, status: Status) -> None:
        """Record how the run ended."""
        self._content["ended"] = utc_now()
        self._write(status)

    def _earlier(self, command: Sequence[str]) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        # The first command alone would not give the run again: its time limit, say, may have stopped it.
        earlier = [asdict(one) for one in recorded_resumptions(content)]
        resumption = Resumption(utc_now(), tuple(command))
        return content | {"resumptions": [*earlier, asdict(resumption)]}

    def _write(self, status: Status) -> None:
        total = self.elapsed_s
        inside = self.launches_s
        self._content["status"] = str(status)
        self._content["wall"] = {"total_s": total, "launches_s": inside, "outside_launches_s": total - inside}
        write_json(self._path, self._content)


def _describe(plan: Plan, command: Sequence[str]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "name": plan.name,
        "status": str(Status.RUNNING),
        "command": list(command),
        "resumptions": [],
        "started": utc_now(),
        "ended": None,
        "rounds": plan.rounds,
        "calibrates": plan.calibrates,
        "steps": plan.workload.steps,
        "warmup_steps": plan.workload.warmup_steps,
        "sample_hz": plan.sample_hz,
        "launcher": plan.launcher,
        "checkpoint_every": plan.checkpoint_every,
        "resumed_from": {"checkpoint": str(plan.start.path), "step": plan.start.step} if plan.start else None,
        "workload": plan.workload.model_dump(mode="json"),
        "models": plan.shapes.to_dict(),
        "placements": [placement.to_dict() | _estimates(plan, placement) for placement in plan.placements],
        "devices": [device_to_dict(device) for device in plan.devices],
        "host": host_record(),
        "cluster": plan.cluster.to_dict() if plan.cluster else None,
        "versions": _versions(),
        "git": _git_state(Path(__file__).parent),
        "order": [],
        "launches": [],
        "wall": {"total_s": 0.0, "launches_s": 0.0, "outside_launches_s": 0.0},
    }


def _estimates(plan: Plan, bound: BoundPlacement) -> dict[str, Any]:
    """The most memory that a device of each pool is expected to use."""
    found = {pool: estimate.peak for (name, pool), estimate in plan.memory.items() if name == bound.name}
    return {"memory_estimate_bytes": found}


def _versions() -> dict[str, str | None]:
    """Versions of what decides over timings; None for a package that is not installed."""
    versions: dict[str, str | None] = {"placebench": __version__, "python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _git_state(package: Path) -> dict[str, Any] | None:
    """Commit of the source tree that placebench runs from and whether files differ; None when it is not one."""
    if not (package.parent / ".git").exists():
        return None
    try:
        commit = _git(package, "rev-parse", "HEAD")
        return {"commit": commit.strip(), "dirty": bool(_git(package, "status", "--porcelain", "--", "."))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout
