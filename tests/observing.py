"""Runs whose roles sit elsewhere than was asked for, made from synthetic ones."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from synthetic_run import SyntheticRun, read_json

from placebench.compare.comparison import compare_run
from placebench.compare.explain.caveats import caveats
from placebench.compare.measure.placements import RunSide
from placebench.record.folder import Trial
from placebench.record.job_record import LogRecord
from placebench.record.writing import write_json


def of_job(run: SyntheticRun, path: Path) -> Path:
    """The run as one of a job of the user's, whose pools are counts."""
    path = run.write(path)
    record = read_json(path / "run.json")
    record["job"] = {"framework": "verl", "spec": {"command": "run"}}
    del record["workload"]
    write_json(path / "run.json", record)
    for trial in path.glob("trials/*"):
        LogRecord(framework="verl", format="verl").write(Trial(trial))
    return path


def move(device: Callable[[str, str], str]) -> Callable[[dict[str, Any]], None]:
    """Let roles work on other devices."""

    def edit(span: dict[str, Any]) -> None:
        if span["role"] and span["device"] != "controller":
            span["device"] = device(span["role"], span["device"])

    return edit


def at(change: Mapping[str, str]) -> Callable[[str, str], str]:
    return lambda role, device: change.get(role, device)


def only(path: Path) -> RunSide:
    (side,) = compare_run(path).placements
    return side


def told(path: Path) -> list[str]:
    return [line for line in caveats(compare_run(path)) if "asked for" in line]
