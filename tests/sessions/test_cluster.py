"""Runs on several real Ray nodes of this machine; nothing of Ray is replaced."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import RayNodes, ray_nodes
from launching import running, wait_for

from placebench.record.folder import RunFolder, Status
from placebench.record.writing import read_jsonl

PLACEBENCH = (sys.executable, "-m", "placebench")
SMALL = ("--rounds", "1", "--warmup-steps", "0", "--batch-size", "16", "--mini-batch-size", "8", "--devices", "cpu:1")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """Two nodes, `a` and `b`; a test that lets one die starts it again."""
    with ray_nodes("a", "b") as started:
        yield started


def command(nodes: RayNodes, out: Path, *options: str) -> list[str]:
    return [*PLACEBENCH, "run", "--ray-address", nodes.address, "--out", str(out), *SMALL, *options]


def run(nodes: RayNodes, words: list[str], **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*nodes.enter("a"), *words],
        env={**nodes.env, **env},
        cwd="/",  # Ray lets workers import from where the driver was started
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )


def in_step(out: Path, step: int) -> bool:
    files = list(out.glob("*/trials/*/progress.json"))
    return bool(files) and json.loads(files[0].read_text())["step"] >= step


def lines(nodes: RayNodes) -> list[str]:
    """What of a launch is left on the nodes that are there."""
    return [title for name in ("a", "b") for title in nodes.left(name)]


def test_the_plan_shows_the_devices_of_every_node(nodes: RayNodes, tmp_path: Path) -> None:
    done = run(nodes, command(nodes, tmp_path, "--placements", "split", "--dry-run"))
    assert done.returncode == 0, done.stderr
    assert "on a cpu:0" in done.stdout
    assert "on b cpu:0" in done.stdout


def test_placements_are_looked_up_on_every_node(nodes: RayNodes) -> None:
    words = [*PLACEBENCH, "placements", "split@nodes", "ddp:3", "--ray-address", nodes.address, "--devices", "cpu:1"]
    done = run(nodes, words)
    assert done.returncode == 0, done.stderr
    assert "actor_pool: actor, rollout, ref on a cpu:0" in done.stdout
    assert "critic_pool: critic, reward on b cpu:0" in done.stdout
    assert "needs 3 devices (replicas 3), there are 2 (1 on node 0, 1 on node 1)" in done.stdout


# It takes Ray most of a minute to miss a node.
@pytest.mark.slow
def test_a_node_that_dies_in_the_middle_is_named_and_nothing_is_left(nodes: RayNodes, tmp_path: Path) -> None:
    words = command(nodes, tmp_path, "--placements", "standard,split", "--steps", "5000")
    with running(words, Path("/tmp"), env=nodes.env) as process:
        wait_for(lambda: in_step(tmp_path, 2), 200)
        nodes.kill("b")
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 3
    last = output.strip().splitlines()[-1]
    assert re.match(
        r"placebench: 1 of 2 launches failed, .*node b was lost during \w+.* of step \d+, and with it b/cpu:0", last
    )
    assert "Traceback" not in output
    folder = RunFolder(next(tmp_path.iterdir()))
    trial = folder.trial(1, "standard")
    assert trial.status is Status.DEVICE_LOST
    assert folder.trial(1, "split").status is Status.PLANNED
    assert {row["device"] for row in read_jsonl(trial.device_samples) if row["kind"] == "sample"} == {
        "a/cpu:0",
        "b/cpu:0",
        "controller",
    }
    wait_for(lambda: nodes.left("a") == [])
    assert set(nodes.ask("a")["groups"]) <= {"REMOVED"}
