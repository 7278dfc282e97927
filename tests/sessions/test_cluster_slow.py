"""More of runs on real Ray nodes than `test_cluster` has time for."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import RayNodes, network, no_namespaces, ray_nodes
from fake_jobs import ON_RAY, write
from launching import running, wait_for
from test_cluster import command, in_step, lines, run

from placebench.compare.measure.precision import headline_width
from placebench.plan.plan import make_plan
from placebench.plan.request import RunRequest
from placebench.record.folder import RunFolder, Status, Trial
from placebench.record.writing import read_jsonl
from placebench.run.display import PlainDisplay
from placebench.run.runner import MeasuredSoFar, execute

pytestmark = pytest.mark.slow

PLACEBENCH = (sys.executable, "-m", "placebench")
WORDS = ("--steps", "2", "--placements", "standard,split")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes("a", "b") as started:
        yield started


def losses(trial: Trial) -> list[float]:
    return [row["metrics"][name] for row in read_jsonl(trial.steps) for name in ("actor/pg_loss", "critic/vf_loss")]


def test_a_run_over_two_nodes_is_the_run_of_one_host(nodes: RayNodes, tmp_path: Path) -> None:
    done = run(nodes, command(nodes, tmp_path / "two", *WORDS))
    assert done.returncode == 0, done.stderr
    single = command(nodes, tmp_path / "one", *WORDS, "--devices", "cpu:2")
    del single[single.index("--ray-address") : single.index("--ray-address") + 2]
    assert run(nodes, single).returncode == 0
    two, one = (RunFolder(next((tmp_path / name).iterdir())) for name in ("two", "one"))
    for placement in ("standard", "split"):
        assert losses(two.trial(1, placement)) == pytest.approx(losses(one.trial(1, placement)), rel=1e-4, abs=1e-6)
    for trial in two.trials():
        assert {row["node"] for row in read_jsonl(trial.clocks)} == {"a", "b"}
        assert all(abs(row["offset_s"]) <= row["error_s"] < 0.1 for row in read_jsonl(trial.clocks))
        rows = list(read_jsonl(trial.device_samples))
        assert [row["node"] for row in rows if row["kind"] == "header"] == ["a", "b"]
        assert sum(row["kind"] == "footer" for row in rows) == 2
    assert {node["name"] for node in json.loads(two.run_file.read_text())["cluster"]["nodes"]} == {"a", "b"}
    wait_for(lambda: lines(nodes) == [])


def test_a_job_of_the_user_s_is_sampled_on_both_nodes(nodes: RayNodes, tmp_path: Path) -> None:
    words = [*PLACEBENCH, "run", "--ray-address", nodes.address, "--out", str(tmp_path), "--devices", "cpu:1"]
    words += ["--rounds", "1", "--steps", "4", "--warmup-steps", "0", "--job", "command", "--", sys.executable]
    done = run(nodes, [*words, str(write(tmp_path / "job", "job.py", ON_RAY))])
    assert done.returncode == 0, done.stderr
    (trial,) = RunFolder(next(tmp_path.glob("*-standard"))).trials()
    worked = {row["device"] for row in read_jsonl(trial.spans) if row["phase"] == "update_actor"}
    assert worked >= {"a/cpu:0", "b/cpu:0"}
    loads = {row["device"] for row in read_jsonl(trial.device_samples) if row.get("util") is not None}
    assert loads >= {"a/cpu:0", "b/cpu:0"}
    wait_for(lambda: lines(nodes) == [])


def test_a_killed_command_leaves_nothing_on_the_nodes(nodes: RayNodes, tmp_path: Path) -> None:
    words = command(nodes, tmp_path, "--steps", "5000", "--placements", "standard")
    with running(words, tmp_path, env=nodes.env) as process:
        wait_for(lambda: in_step(tmp_path, 1), 200)
        assert len(lines(nodes)) == 4
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
    wait_for(lambda: lines(nodes) == [])
    wait_for(lambda: set(nodes.ask("a")["groups"]) <= {"REMOVED"})
    subprocess.run([*PLACEBENCH, "--help"], env=nodes.env, check=True, capture_output=True)


def test_ctrl_c_and_resume(nodes: RayNodes, tmp_path: Path) -> None:
    words = command(nodes, tmp_path, "--steps", "8", "--placements", "standard")
    with running(words, tmp_path, env=nodes.env) as process:
        wait_for(lambda: in_step(tmp_path, 1), 200)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == 130
    wait_for(lambda: lines(nodes) == [])
    folder = next(tmp_path.glob("*-standard"))
    done = run(nodes, [*PLACEBENCH, "run", "--resume", str(folder)])
    assert done.returncode == 0, done.stderr
    assert RunFolder(folder).trial(1, "standard").status is Status.DONE


HOLD = """
import logging, sys, time, ray
ray.init(address=sys.argv[1], logging_level=logging.CRITICAL, log_to_driver=False)
hold = ray.remote(num_cpus=2)(lambda: time.sleep(300))
pending = [hold.remote(), hold.remote()]
print(ray.available_resources().get("CPU", 0), flush=True)
while ray.available_resources().get("CPU", 0):
    time.sleep(0.1)
print("held", flush=True)
time.sleep(300)
"""


def test_a_head_that_dies_ends_the_run_in_time(tmp_path: Path) -> None:
    with ray_nodes("a", "b") as started:
        words = command(started, tmp_path, "--placements", "standard,split", "--steps", "5000")
        with running(words, tmp_path, env=started.env) as process:
            wait_for(lambda: in_step(tmp_path, 2), 200)
            next(one for one in started.processes("a") if "gcs_server" in one.name()).kill()
            output, _ = process.communicate(timeout=300)
        assert process.returncode == 3
        # An earlier command that was killed is told of too, in a line of its own.
        (line,) = [line for line in output.splitlines() if line.startswith("placebench: 1 of 2 launches failed")]
        assert started.address in line or "node a was lost" in line


def test_devices_that_are_not_free_are_waited_for_and_named(nodes: RayNodes, tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, nodes.address], env=nodes.env, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    try:
        assert "held" in [holder.stdout.readline().strip() for _ in range(2)]
        done = run(nodes, command(nodes, tmp_path, *WORDS, "--placement-timeout", "3"))
    finally:
        holder.kill()
        holder.communicate()
    assert done.returncode == 3
    last = done.stderr.strip().splitlines()[-1]
    assert "global_pool (1 CPU device on a and 1 CPU device on b): not free within 3 s" in last
    assert last.startswith("placebench: 1 of 2 launches failed")


def test_a_cluster_that_shrinks_after_the_check_is_told_in_time(
    nodes: RayNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in nodes.env.items():
        monkeypatch.setenv(name, value)
    small = {"steps": 2, "warmup_steps": 0, "batch": {"size": 16, "mini_batch_size": 8}}
    plan = make_plan(RunRequest(devices="cpu:1", out=tmp_path, workload=small, rounds=1, ray_address=nodes.address))
    nodes.kill("b")
    wait_for(lambda: nodes.ask("a")["nodes"] == ["a"])
    with (tmp_path / "said").open("w") as said:
        result = execute(plan, ["placebench"], PlainDisplay(said, pause_s=0), MeasuredSoFar(headline_width))
    assert "node b has left the Ray cluster since the run was checked" in result.failures[0][1]
    assert len(result.failures) == 1
    nodes.start("b")
    nodes.wait("b")


def test_a_node_without_placebench_is_refused(nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "placebench").mkdir()
    (tmp_path / "placebench" / "__init__.py").write_text("raise ImportError('there is none')\n")
    nodes.start("c", PYTHONPATH=str(tmp_path))
    try:
        nodes.wait("c")
        done = run(nodes, command(nodes, tmp_path, "--dry-run"))
    finally:
        nodes.kill("c")
    assert done.returncode == 2
    assert "node c: placebench cannot be imported there (there is none): install placebench[run]" in done.stderr


AHEAD_S = 1000


def test_nodes_with_networks_and_clocks_of_their_own(tmp_path: Path) -> None:
    if reason := no_namespaces():
        pytest.skip(reason)
    spaces = {"a": "10.213.7.1", "b": "10.213.7.2"}
    with network(spaces):
        nodes = RayNodes(spaces)
        try:
            nodes.start("a")
            ahead = ("unshare", "--time", "--fork", "--kill-child", f"--monotonic={AHEAD_S}", f"--boottime={AHEAD_S}")
            nodes.start("b", inside=ahead)
            nodes.wait("a", "b")
            done = run(nodes, command(nodes, tmp_path, *WORDS))
        finally:
            nodes.close()
    assert done.returncode == 0, done.stderr
    folder = RunFolder(next(tmp_path.iterdir()))
    content = json.loads(folder.run_file.read_text())
    assert {node["name"]: node["address"] for node in content["cluster"]["nodes"]} == spaces
    trial = folder.trial(1, "standard")
    for row in read_jsonl(trial.clocks):
        assert row["offset_s"] + (AHEAD_S if row["node"] == "b" else 0) == pytest.approx(0, abs=row["error_s"])
    spans = [row for row in read_jsonl(trial.spans) if row["step"] and row["phase"] == "update_actor"]
    start, end = (
        next(row[f"{side}_mono"] for row in spans if row["device"] == "controller") for side in ("start", "end")
    )
    for device in ("a/cpu:0", "b/cpu:0"):
        first = next(row for row in spans if row["device"] == device)
        assert start - 0.05 < first["start_mono"] < first["end_mono"] < end + 0.05
        samples = [row["mono"] for row in read_jsonl(trial.device_samples) if row.get("device") == device]
        assert min(samples) < end
        assert max(samples) > start - 1
