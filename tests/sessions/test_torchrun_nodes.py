"""The nodes of a SLURM job, as programs in SLURM's place tell of them; real ones are in test_slurm."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from placebench import __version__
from placebench.errors import UsageError
from placebench.plan.devices import find_devices
from placebench.plan.request import RunRequest
from placebench.sessions.slurm_steps import several_nodes, step_command
from placebench.sessions.torchrun import look
from placebench.sessions.torchrun.calls import Link, RankCalls
from placebench.sessions.torchrun.node import FOLDER_VARIABLE, TorchrunNode
from placebench.sessions.torchrun.nodes import JobNodes, discover_nodes
from placebench.sessions.torchrun.serving import CREATE
from placebench.sessions.torchrun.session import Doorway
from placebench.spec.devices import DeviceSpec, devices_per_node
from placebench.spec.launchers import TORCHRUN
from placebench.spec.words import parse_placements

LOOPBACK = "127.0.0.1"
TWO = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SLURM whose nodes answer with the lines of a file, which is empty."""
    programs, answer = tmp_path / "bin", tmp_path / "answer"
    programs.mkdir()
    answer.touch()
    for name, body in {"scontrol": "printf 'n1\\nn2\\n'", "srun": f'echo "$@" >{tmp_path}/asked; cat {answer}'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    return answer


def entry(name: str, **changes: Any) -> str:
    device = {
        "id": f"{name}/cpu:0",
        "kind": "cpu",
        "index": 0,
        "node": name,
        "name": "x",
        "memory_bytes": 1,
        "cores": [0],
    }
    content = {"version": __version__, "name": name, "address": f"10.0.0.{name[1:]}", "caller": "10.0.0.1"}
    return json.dumps(content | {"devices": [device], "host": {"hostname": name}} | changes)


def test_nodes_are_found_in_slurms_order_whatever_order_they_answer_in(slurm: Path, tmp_path: Path) -> None:
    slurm.write_text(f"a word of somebody else\n{entry('n2')}\n3\n{entry('n1')}\n")
    nodes, devices = discover_nodes("n[1-2]", DeviceSpec("cpu", 1))
    assert [device.id for device in devices] == ["n1/cpu:0", "n2/cpu:0"]
    assert nodes.address == "10.0.0.1"
    assert [(node.name, node.address, node.host["hostname"]) for node in nodes.nodes] == [
        ("n1", "10.0.0.1", "n1"),
        ("n2", "10.0.0.2", "n2"),
    ]
    assert JobNodes.model_validate_json(nodes.model_dump_json()) == nodes
    asked = (tmp_path / "asked").read_text()
    assert "--nodelist=n1,n2" in asked
    assert asked.endswith("-m placebench.sessions.torchrun.look cpu:1\n")


@pytest.mark.parametrize(
    ("answers", "reasons"),
    [
        (
            [],
            [
                "node n1: placebench cannot look at it: exit code 0",
                "node n2: placebench cannot look at it: exit code 0",
            ],
        ),
        ([entry("n1"), entry("n2", error="no GPU")], ["node n2: no GPU"]),
        (
            [entry("n1", version="0.0.1"), entry("n2")],
            [f"node n1: placebench there is 0.0.1, here {__version__}: install the same version"],
        ),
        (
            [entry("n1"), entry("n2").replace('"cpu"', '"gpu"')],
            ["there are nodes with GPUs and nodes without (n1): use --devices cpu, or nodes that are alike"],
        ),
    ],
)
def test_every_node_that_cannot_take_part_is_named(slurm: Path, answers: list[str], reasons: list[str]) -> None:
    slurm.write_text("\n".join(answers))
    with pytest.raises(UsageError) as raised:
        discover_nodes("n[1-2]", None)
    assert str(raised.value).splitlines() == reasons


def test_a_slurm_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"^the nodes of the SLURM job cannot be asked: "):
        discover_nodes("n[1-2]", None)


def test_only_torchrun_in_a_job_of_several_nodes_takes_them_all(slurm: Path) -> None:
    slurm.write_text(f"{entry('n1')}\n{entry('n2')}\n")
    cluster, devices = find_devices(RunRequest(launcher=TORCHRUN))
    assert cluster is not None
    assert devices_per_node(devices) == (1, 1)
    (placement,) = parse_placements("ddp:2", devices_per_node(devices), has_critic=False)
    assert placement.pools[0].counts == (1, 1)
    for request in (RunRequest(devices="cpu:1"), RunRequest(launcher=TORCHRUN, devices="gpu:4x2", dry_run=True)):
        assert find_devices(request)[0] is None
    assert several_nodes({}) is None
    assert several_nodes({**TWO, "SLURM_JOB_NUM_NODES": "1"}) is None
    assert several_nodes(TWO) == "n[1-2]"


def test_a_step_has_a_task_on_each_of_its_nodes() -> None:
    words = step_command("a-step", ("n1", "n3"))
    assert {"--ntasks-per-node=1", "--ntasks=2", "--nodes=2", "--nodelist=n1,n3", "--overlap"} <= set(words)


def test_a_node_tells_the_address_by_which_the_first_one_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", LOOPBACK)
    told = look.look("cpu:1")
    assert (told["name"], told["address"], told["caller"]) == ("n7", LOOPBACK, LOOPBACK)
    assert [device["id"] for device in told["devices"]] == ["n7/cpu:0"]
    assert look.look("gpu:99")["error"].startswith("--devices gpu:99: found ")


@pytest.mark.parametrize("end", ["controller", "slurm"])
def test_the_task_of_a_node_leaves_no_folder_whatever_ends_it(tmp_path: Path, end: str) -> None:
    calls, doorway, folder = RankCalls(), Doorway(LOOPBACK, 1), tmp_path / "pb-1"
    variables = {**doorway.environment, FOLDER_VARIABLE: str(folder), "SLURMD_NODENAME": "n1"}
    task = subprocess.Popen(
        [sys.executable, "-m", "placebench.sessions.torchrun.node"], env={**os.environ, **variables}
    )
    try:
        come = doorway.next(20)
        assert come is not None
        connection, greeting = come
        assert (greeting["node"], greeting["pid"]) == ("n1", task.pid)
        agent = Link(connection, "the agent of node n1", calls)
        agent.ask(CREATE, (TorchrunNode, [], 0.0))
        (port,) = calls.get([agent.free_port.remote()])
        with socket.socket() as probe:
            probe.bind(("", port))
        before = time.monotonic()
        assert before <= calls.get([agent.now.remote()])[0] <= time.monotonic()
        (folder / "n1").mkdir(parents=True)
        if end == "slurm":
            task.send_signal(signal.SIGTERM)
    finally:
        if end == "controller":
            agent.close()
        assert task.wait(20) == (0 if end == "controller" else 128 + signal.SIGTERM)
    agent.close()
    assert not folder.exists()
