"""A job of the user's over several nodes: what starts on which, and the nodes of a SLURM job on this host."""

import platform
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_jobs import RANKS, read_end, write
from launching import wait_for
from told_settings import NAMES, job, launch

from placebench.errors import JobExit, UsageError
from placebench.host.network import free_ports
from placebench.jobs import bridge
from placebench.jobs.start import job_launch
from placebench.jobs.usable import unusable
from placebench.plan import devices as plan_devices
from placebench.plan.plan import make_plan
from placebench.plan.request import RunRequest
from placebench.record.folder import Trial
from placebench.record.launch_file import LaunchFile
from placebench.record.parts import ClusterRecord, PlacementRecord
from placebench.record.writing import read_jsonl
from placebench.sessions.ray_cluster.discovery import Cluster, ClusterNode
from placebench.sessions.torchrun.nodes import JobNode, JobNodes
from placebench.spec.bound import bind
from placebench.spec.devices import Device

NODES = JobNodes(
    address="127.0.0.1",
    nodes=tuple(JobNode(name=name, address="127.0.0.1", host={"hostname": name}) for name in ("n1", "n2")),
)
DEVICES = tuple(Device(f"{node}/cpu:0", "cpu", 0, node, "test", 1 << 30, (0,)) for node in ("n1", "n2"))
# A task of the step for each node, as srun starts them.
SRUN = """#!/bin/sh
for word; do case $word in --nodelist=*) nodes=${word#--nodelist=};; esac; done
while case $1 in -*) true;; *) false;; esac; do shift; done
for node in $(echo $nodes | tr , " "); do SLURMD_NODENAME=$node "$@" & done
trap "kill 0" TERM
wait
"""


def test_ranks_start_on_every_node_with_what_they_meet_by() -> None:
    command = "torchrun --nproc-per-node {n_local} --node-rank {node_rank} train.py {master}:{master_port} {nodes}"
    found = launch(job("command", command), "standard", 4, 2)
    assert shlex.join(found.command) == "torchrun --nproc-per-node 4 --node-rank 0 train.py 10.0.0.1:9000 2"
    assert found.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    (other,) = found.elsewhere
    assert (other.node, shlex.join(other.command)) == (
        "node1",
        "torchrun --nproc-per-node 2 --node-rank 1 train.py 10.0.0.1:9000 2",
    )
    assert other.env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert {name: other.env[name] for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "NNODES")} == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "9000",
        "NODE_RANK": "1",
        "NNODES": "2",
    }
    alone = launch(job("command", command), "standard", 4)
    assert shlex.join(alone.command) == "torchrun --nproc-per-node 4 --node-rank 0 train.py 127.0.0.1:9000 1"
    assert "MASTER_ADDR" not in alone.env
    assert not alone.elsewhere


def test_a_command_that_calls_srun_itself_starts_once() -> None:
    found = launch(job("command", "srun train.sh", each_node=False), "standard", 2, 2)
    assert not found.elsewhere
    assert "NODE_RANK" not in found.env
    of_ray = launch(job("verl", "bash with_ray_and_srun.sh", each_node=False), "standard", 8, 8)
    assert (of_ray.ray_head, of_ray.elsewhere) == (None, ())


def test_a_framework_with_ray_has_one_over_the_nodes() -> None:
    found = launch(job("verl", "python -m verl.trainer.main_ppo"), "standard", 8, 8)
    assert {"++trainer.nnodes=2", "++trainer.n_gpus_per_node=8"} <= set(found.command)
    assert "++ray_kwargs.ray_init.num_cpus=null" in found.command
    assert found.ray_head == "10.0.0.1:6379"
    (other,) = found.elsewhere
    assert shlex.join(other.command) == (
        "ray start --block --address 10.0.0.1:6379 --node-ip-address 10.0.0.2 --node-name node1"
    )
    assert other.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    alone = launch(job("verl", "python -m verl.trainer.main_ppo"), "standard", 8)
    assert alone.ray_head is None
    assert "++ray_kwargs.ray_init.num_cpus=null" not in alone.command


def test_on_a_cluster_ray_says_what_workers_see() -> None:
    found = launch(job("verl", "python -m verl.trainer.main_ppo", ray="10.0.0.1:1"), "standard", 8, 8)
    assert found.env["RAY_ADDRESS"] == "10.0.0.1:1"
    assert {"VERL_USE_EXTERNAL_MODULES", "VERL_FILE_LOGGER_PATH"} <= {*found.env["PLACEBENCH_PASSED_ON"].split(",")}
    assert "CUDA_VISIBLE_DEVICES" not in found.env
    assert not found.elsewhere
    blind = job("verl", "python -m verl.trainer.main_ppo", ray="10.0.0.1:1", attach=False, python=sys.prefix)
    (line,) = unusable(blind)
    assert line.startswith("attach: false: workers of the Ray at 10.0.0.1:1 would not get the variables that tell verl")


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        (
            "torchrun train.py",
            "torchrun --nnodes 2 --nproc-per-node 4 --node-rank 1 --master-addr 10.0.0.1 --master-port 9000 train.py",
        ),
        (
            "accelerate launch train.py",
            "accelerate launch --num_processes 8 --num_machines 2 --machine_rank 1 --main_process_ip 10.0.0.1"
            " --main_process_port 9000 train.py",
        ),
    ],
)
def test_trl_is_told_where_its_ranks_meet(command: str, launcher: str) -> None:
    (other,) = launch(job("trl", command), "standard", 4, 4).elsewhere
    assert shlex.join(other.command).startswith(f"{launcher} --max_steps 10 ")


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes the plan of a job on two nodes; returns why it cannot be, or its notes."""
    monkeypatch.setattr(plan_devices, "several_nodes", lambda: "n[1-2]")
    monkeypatch.setattr(plan_devices, "discover_nodes", lambda listed, spec: (NODES, DEVICES))

    def make(**keys: object) -> str:
        try:
            return "\n".join(make_plan(RunRequest(job=keys)).notes)
        except UsageError as error:
            return str(error)

    return make


def test_what_cannot_be_on_several_nodes_is_refused(plan: Callable[..., str]) -> None:
    one = {"job": "command", "command": "true", "placements": {"standard": {"pools": {"all": [0, 1]}}}}
    assert plan(**one) == (
        "placement 'standard': it has no device on n1, the first node, where the command starts: give it one there"
    )
    assert plan(job="trl", command="torchrun x.py", each_node=False, python=sys.prefix).splitlines()[-1] == (
        "placement 'standard': it is on several nodes, but trl starts ranks on one only: leave out each_node: false, or"
        " name devices of one node"
    )
    assert plan(job="command", command="true") == ""


def test_a_ray_that_a_launch_would_start_needs_its_program(plan: Callable[..., str], tmp_path: Path) -> None:
    keys = {"command": "/bin/true", "env": {"PATH": str(tmp_path)}}
    lacking = "ray: there is no program ray on PATH to start the job's own Ray: "
    assert plan(**keys, ray="own").startswith(lacking)  # over both nodes
    assert plan(**keys, ray="own", each_node=False) == ""
    of_placement = {"standard": {"args": "{ray_address}"}}
    assert plan(**keys, ray="own", each_node=False, placements=of_placement).startswith(lacking)
    assert plan(**keys, placements=of_placement) == (
        "ray: the job has no Ray, but uses {ray_address}: write ray: own, or HOST:PORT"
    )
    write(tmp_path, "ray", "#!/bin/sh\n").chmod(0o755)
    assert plan(**keys, ray="own", placements=of_placement) == ""


def test_a_cluster_that_cannot_be_asked_leaves_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("node n2: placebench cannot be imported there")

    monkeypatch.setattr(plan_devices, "discover_cluster", refuse)
    monkeypatch.setattr(plan_devices, "refuse_unreachable", lambda address: None)
    made = make_plan(RunRequest(job={"command": "true", "ray": "10.0.0.1:1"}, devices="cpu:1"))
    assert made.cluster is None
    assert made.remarks == (
        "only devices of this host are used and sampled, as the cluster's nodes cannot be queried: node n2: placebench"
        " cannot be imported there",
    )


def test_a_cluster_of_this_host_alone_is_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> tuple[Cluster, tuple[Device, ...]]:
        node = ClusterNode(name=name, ray_id="1", address="10.0.0.1", cpus=1, gpus=0, host={"hostname": name})
        return Cluster(address="10.0.0.1:1", placement_timeout_s=1, nodes=(node,)), DEVICES[:1]

    for name, is_here in ((platform.node(), True), ("another", False)):
        monkeypatch.setattr(plan_devices, "discover_cluster", lambda *_, name=name: found(name))
        made = make_plan(RunRequest(job={"command": "true", "ray": "10.0.0.1:1"}, devices="cpu:1"))
        assert (made.cluster is None) == is_here


def prepare_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Trial:
    """The folder of a launch on two nodes of a SLURM that is this host."""
    write(folder / "bin", "srun", SRUN).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    (master_port,) = free_ports(1)
    command = [sys.executable, str(write(folder, "job.py", RANKS)), "{node_rank}", "{master}", "{master_port}", *words]
    asked = job("command", shlex.join(command), folder, steps=4, warmup_steps=0)
    bound = bind(asked.placement("standard", (1, 1), "cpu"), DEVICES)
    trial = Trial(folder / "trial")
    trial.path.mkdir()
    names = {**NAMES, "folder": str(trial.path), "master_port": str(master_port)}
    LaunchFile(
        schema_version=1,
        round=1,
        placement=PlacementRecord.of(bound),
        devices=DEVICES,
        job=job_launch(asked, bound, names, {node.name: node.address for node in NODES.nodes}),
        ray_temp_dir=str(folder / "pb-00000000"),
        cluster=ClusterRecord(**NODES.model_dump()),
        sample_hz=10.0,
    ).write(trial.launch_file)
    trial.log.touch()
    return trial


def test_a_launch_over_two_nodes_has_the_spans_and_samples_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = prepare_nodes(tmp_path, monkeypatch)
    assert bridge.main(str(trial.path)) == JobExit.DONE, trial.log.read_text()
    spans = [(row["phase"], row["device"]) for row in read_jsonl(trial.spans)]
    # The nodes' clocks, though one here, are known to so much only that a span may count for the step beside it.
    assert {("update_actor", "n1/cpu:0"), ("update_actor", "n2/cpu:0")} <= set(spans)
    assert {row["node"] for row in read_jsonl(trial.clocks)} == {"n1", "n2"}
    headers = [row["node"] for row in read_jsonl(trial.device_samples) if row["kind"] == "header"]
    assert sorted(headers) == ["n1", "n2"]
    assert {row["device"] for row in read_jsonl(trial.processes)} == {"n1/cpu:0", "n2/cpu:0"}
    assert (trial.path / "node-n2.log").exists()


def test_a_part_that_fails_on_its_node_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = prepare_nodes(tmp_path, monkeypatch, "fails")
    assert bridge.main(str(trial.path)) == JobExit.FAILED
    assert "node n2: what was started there ended with exit code 1: see node-n2.log" in str(read_end(trial)["message"])
    assert (trial.path / "node-n2.log").read_text() == "no more\n"
    wait_for(lambda: not any(tmp_path.glob("pb-*")))
