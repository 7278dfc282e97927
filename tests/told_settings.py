"""What a framework is told for a placement, or why it cannot be told so."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from placebench.errors import UsageError
from placebench.jobs.job import Job
from placebench.jobs.spec import JobSpec
from placebench.jobs.start import job_launch
from placebench.record.job_record import JobLaunch
from placebench.spec.bound import bind
from placebench.spec.devices import Device, Kind

NAMES = {
    "folder": "/run",
    "round": "2",
    "ray_temp_dir": "/ray",
    "ray_address": "127.0.0.1:6379",
    "master": "127.0.0.1",
    "master_port": "9000",
    **{f"port{number}": f"900{number}" for number in range(1, 5)},
}


def job(framework: str, command: str, folder: Path = Path("."), **keys: Any) -> Job:
    return Job(JobSpec.model_validate({"job": framework, "command": command, "cwd": str(folder), **keys}))


def settings(framework: str, command: str, word: str, *nodes: int, kind: Kind = "gpu") -> str:
    found = job(framework, command).settings_of(word, nodes, kind)
    return shlex.join((*found.launcher_args, *found.args))


def launch(asked: Job, word: str, *nodes: int, kind: Kind = "gpu") -> JobLaunch:
    devices = [
        Device(f"{kind}:{node}.{index}", kind, index, f"node{node}", "test", 1, (0,) if kind == "cpu" else ())
        for node, count in enumerate(nodes)
        for index in range(count)
    ]
    addresses = {f"node{node}": f"10.0.0.{node + 1}" for node in range(len(nodes))} if len(nodes) > 1 else {}
    return job_launch(asked, bind(asked.placement(word, nodes, kind), devices), NAMES, addresses)


def reasons(framework: str, command: str, word: str, *nodes: int, kind: Kind = "gpu") -> str:
    with pytest.raises(UsageError) as refused:
        job(framework, command).placement(word, nodes, kind)
    return str(refused.value)
