"""Jobs on a real SLURM: a controller and two nodes on this machine, made by tests/slurm/with_slurm.sh."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_jobs import ON_RAY, RANKS, write
from launching import assert_nothing_left, processes_of, wait_for

from placebench.record.folder import Status, Trial
from placebench.record.writing import read_jsonl

pytestmark = pytest.mark.slow

START = Path(__file__).with_name("with_slurm.sh")
SMALL = ("--rounds", "1", "--warmup-steps", "0", "--batch-size", "16", "--mini-batch-size", "8", "--devices", "cpu:1")


def no_slurm() -> str | None:
    """Why no SLURM can be started here; None where it can."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurm-wlm, munge)"
    return None if os.getuid() == 0 else "SLURM's daemons need root"


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """The environment of a SLURM that lives as long as the tests."""
    if reason := no_slurm():
        pytest.skip(reason)
    command = [str(START), "bash", "-c", "echo $SLURM_CONF; read -r _ || true"]
    # In a session of its own it outlives a Ctrl-C, and ends in order when its standard input does, with this process.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    conf = process.stdout.readline().strip()
    if not conf:
        process.communicate(timeout=60)
        pytest.skip("the daemons of SLURM do not come up on this host: see what they said above")
    yield {**os.environ, "SLURM_CONF": conf, "CI": "true"}
    process.stdin.close()
    process.wait(120)
    process.stdout.close()
    assert not Path(conf).parent.exists()


class Jobs:
    """What is asked of SLURM, from a folder of jobs."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder, self.env = folder, env

    def call(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *words: str) -> str:
        """Submit; returns the job's number."""
        said = self.call(sys.executable, "-m", "placebench", "slurm", "submit", "--nodes", "2", *words)
        return said.split()[-1]

    def state(self, job: str) -> str:
        (word,) = [word for word in self.call("scontrol", "show", "job", job).split() if word.startswith("JobState=")]
        return word.removeprefix("JobState=")

    def wait(self, job: str) -> str:
        """Wait until a job is over; returns its state."""
        wait_for(lambda: self.state(job) not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"), 600)
        return self.state(job)

    def start_again(self, job: str) -> None:
        """Wait until a job is queued again, and have it start soon."""
        wait_for(lambda: self.state(job) == "PENDING", 60)
        assert "queued again" in self.summary(job)["state"]
        # Sooner than its own two minutes, but not within the second in which the nodes have taken its credential back.
        self.call("scontrol", "update", f"JobId={job}", "StartTime=now+3")

    def job_folder(self, job: str) -> Path:
        (folder,) = self.folder.glob(f"logs/placebench_{job}_*/")
        return folder

    def summary(self, job: str) -> dict[str, str]:
        lines = (self.job_folder(job) / "job_summary.txt").read_text().splitlines()
        return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}

    def run_status(self, job: str) -> str | None:
        """The status of a job's run; None while there is no run yet."""
        files = self.folder.glob(f"logs/placebench_{job}_*/runs/*/run.json")
        return next((json.loads(file.read_text())["status"] for file in files), None)

    def in_step(self, job: str, step: int) -> bool:
        files = list(self.folder.glob(f"logs/placebench_{job}_*/runs/*/trials/*/progress.json"))
        return any(json.loads(file.read_text())["step"] >= step for file in files)


@pytest.fixture
def jobs(tmp_path: Path, temp: Path, slurm: dict[str, str]) -> Iterator[Jobs]:
    """SLURM, in a folder; after the test, however it ended, no job goes on and nothing of one is left on its nodes."""
    jobs = Jobs(tmp_path, {**slurm, "TMPDIR": str(temp)})
    yield jobs
    jobs.call("scancel", "--user=root")
    wait_for(lambda: not processes_of(tmp_path) and not processes_of(temp), 60)
    assert_nothing_left(temp)


def test_a_job_runs_on_two_nodes_and_leaves_its_folder(jobs: Jobs) -> None:
    job = jobs.submit("--time", "10", '--comment=say "hi" #1', "--debug", "--", "run", *SMALL, "--steps", "2")
    assert 'Comment=say "hi" #1' in jobs.call("scontrol", "show", "job", job)
    assert jobs.wait(job) == "COMPLETED"
    summary = jobs.summary(job)
    assert summary["state"] == "done (exit code 0)"
    assert summary["nodes"] == "2: pb1, pb2"
    assert summary["devices"] == "2: pb1/cpu:0, pb2/cpu:0"
    assert summary["launches"] == "2 of 2 done (done)"
    assert "step " in summary["standard"]
    assert "tokens/s" in summary["split"]
    output = (jobs.job_folder(job) / "output.log").read_text()
    assert "[2/2] round 1 split: done after" in output
    assert (jobs.folder / summary["report"]).is_file()
    assert not [path for path in jobs.folder.glob("logs/*.slurm") if path.stat().st_size]


TRAIN = """
import time
for step in range(1, 900):
    time.sleep(1)
    print(f"step:{step} - timing_s/step:1.0", flush=True)
"""


def test_a_command_of_the_user_s_is_stopped_at_the_limit_and_goes_on_on_its_node(jobs: Jobs) -> None:
    (jobs.folder / "train.py").write_text(TRAIN)
    (jobs.folder / "job.yaml").write_text("steps: 3\nwarmup_steps: 1\nplacements: {one: {}, other: {}}\n")
    asked = ("run", "--job", "job.yaml", "--rounds", "1", "--devices", "cpu:1")
    job = jobs.submit("--nodes", "1", "--requeue", "--", *asked, "--", sys.executable, "train.py")
    wait_for(lambda: jobs.in_step(job, 2))
    jobs.call("scancel", "--batch", "--signal=USR1", job)
    jobs.start_again(job)
    assert jobs.wait(job) == "COMPLETED", jobs.call("scontrol", "show", "job", job)
    summary = jobs.summary(job)
    assert summary["launches"] == "2 of 2 done (done)"
    assert summary["nodes"] == "1: pb1"


def test_a_command_of_the_user_s_runs_over_two_nodes(jobs: Jobs) -> None:
    ranks, on_ray = (str(write(jobs.folder, f"{name}.py", text)) for name, text in {"a": RANKS, "b": ON_RAY}.items())
    (jobs.folder / "ray.yaml").write_text(f"ray: own\npython: {sys.prefix}\n")
    asked = ("run", "--rounds", "1", "--devices", "cpu:1", "--steps", "4", "--warmup-steps", "0")
    alone = (*asked, "--job", "command", "--", sys.executable, ranks, "{node_rank}", "{master}", "{master_port}")
    with_ray = (*asked, "--job", "ray.yaml", "--", sys.executable, on_ray)
    for job in (jobs.submit("--", *alone), jobs.submit("--", *with_ray)):
        assert jobs.wait(job) == "COMPLETED", (jobs.job_folder(job) / "output.log").read_text()
        assert jobs.summary(job)["devices"] == "2: pb1/cpu:0, pb2/cpu:0"
        (trial,) = (Trial(path) for path in jobs.job_folder(job).glob("runs/*/trials/01-*"))
        worked = {row["device"] for row in read_jsonl(trial.spans) if row["phase"] == "update_actor"}
        assert worked >= {"pb1/cpu:0", "pb2/cpu:0"}
        assert {row["node"] for row in read_jsonl(trial.clocks)} == {"pb1", "pb2"}


def test_a_job_at_its_limit_stops_in_order_and_goes_on_when_queued_again(jobs: Jobs) -> None:
    alone = ("--placements", "standard")
    before = ("--name", "before", "--steps", "1", "--checkpoint-every", "1")
    jobs.call(sys.executable, "-m", "placebench", "run", *SMALL, *alone, *before)
    (checkpoint,) = jobs.folder.glob("runs/*-before/trials/01-standard")
    start = ("--resume-from", str(checkpoint))
    job = jobs.submit("--requeue", "--", "run", *SMALL, *alone, *start, "--steps", "10")
    wait_for(lambda: jobs.in_step(job, 3), 600)
    jobs.call("scancel", "--batch", "--signal=USR1", job)  # what SLURM sends --grace seconds before the limit
    jobs.start_again(job)
    assert jobs.wait(job) == "COMPLETED", jobs.call("scontrol", "show", "job", job)
    summary = jobs.summary(job)
    assert summary["job"] == f"{job}, started 2 times"
    assert summary["launches"] == "1 of 1 done (done)"
    (run,) = jobs.job_folder(job).glob("runs/2*")
    assert (run / "trials/replaced/01-standard.1/status").read_text().strip() == Status.INTERRUPTED


def test_a_job_at_its_limit_while_the_report_is_made_makes_that_alone_when_queued_again(jobs: Jobs) -> None:
    job = jobs.submit("--requeue", "--", "run", *SMALL, "--steps", "1", "--placements", "standard")
    wait_for(lambda: jobs.run_status(job) == Status.DONE, 600)
    jobs.call("scancel", "--batch", "--signal=USR1", job)
    (run,) = jobs.job_folder(job).glob("runs/2*")
    before = (run / "run.json").read_text()
    jobs.start_again(job)
    assert not (run / "report.html").exists()
    assert jobs.wait(job) == "COMPLETED", jobs.call("scontrol", "show", "job", job)
    summary = jobs.summary(job)
    assert summary["job"] == f"{job}, started 2 times"
    assert summary["state"] == "done (exit code 0)"
    assert summary["launches"] == "1 of 1 done (done)"
    assert "step " in summary["standard"]
    assert (jobs.folder / summary["report"]).is_file()
    output = (jobs.job_folder(job) / "output.log").read_text()
    assert "stopped by SIGTERM before the report was made: 1 of 1 launches are done" in output
    assert output.count("round 1 standard: start\n") == 1
    assert (run / "run.json").read_text() == before
    assert list(jobs.job_folder(job).glob("runs/*")) == [run]


TORCHRUN = ("run", "--launcher", "torchrun", *SMALL, "--set", "algorithm.name=grpo")


def test_replicas_run_under_torchrun_on_two_nodes(jobs: Jobs) -> None:
    job = jobs.submit("--time", "10", "--", *TORCHRUN, "--placements", "ddp:2,ddp:1", "--steps", "2")
    assert jobs.wait(job) == "COMPLETED", (jobs.job_folder(job) / "output.log").read_text()
    summary = jobs.summary(job)
    assert summary["state"] == "done (exit code 0)"
    assert summary["nodes"] == "2: pb1, pb2"
    assert summary["devices"] == "2: pb1/cpu:0, pb2/cpu:0"
    assert summary["launches"] == "2 of 2 done (done)"
    text = (jobs.job_folder(job) / "job_summary.txt").read_text()
    assert "\nddp:2:        step " in text
    assert "Ray" not in text
    assert (jobs.folder / summary["report"]).is_file()
    (run,) = jobs.job_folder(job).glob("runs/2*")
    for name, devices in (("01-ddp-2", ["pb1/cpu:0", "pb2/cpu:0"]), ("01-ddp-1", ["pb1/cpu:0"])):
        trial, nodes = Trial(run / "trials" / name), {device.partition("/")[0] for device in devices}
        rows = list(read_jsonl(trial.processes))
        assert [row["device"] for row in rows] == ["controller", *devices]
        assert len({row["threads"] for row in rows if row["rank"] is not None}) == 1
        assert {row["node"] for row in read_jsonl(trial.clocks)} == nodes
        assert all(abs(row["offset_s"]) <= row["error_s"] < 0.1 for row in read_jsonl(trial.clocks))
        samples = list(read_jsonl(trial.device_samples))
        assert {row["node"] for row in samples if row["kind"] == "header"} == nodes
        assert sum(row["kind"] == "footer" for row in samples) == len(nodes)
        assert {"controller", *devices} == {row["device"] for row in samples if row["kind"] == "sample"}
        assert {span["device"] for span in read_jsonl(trial.spans) if span["phase"] == "update_actor"} == {
            "controller",
            *devices,
        }
    assert not list(run.glob("trials/*/sampler.log"))


def test_torchrun_at_the_limit_of_its_job_stops_in_order_and_goes_on(jobs: Jobs) -> None:
    job = jobs.submit("--requeue", "--", *TORCHRUN, "--placements", "ddp:2", "--steps", "6")
    wait_for(lambda: jobs.in_step(job, 2), 600)
    jobs.call("scancel", "--batch", "--signal=USR1", job)
    jobs.start_again(job)
    assert processes_of(jobs.folder) == []
    assert jobs.wait(job) == "COMPLETED", jobs.call("scontrol", "show", "job", job)
    assert jobs.summary(job)["launches"] == "1 of 1 done (done)"
    (run,) = jobs.job_folder(job).glob("runs/2*")
    assert (run / "trials/replaced/01-ddp-2.1/status").read_text().strip() == Status.INTERRUPTED


def test_a_rank_that_dies_on_another_node_ends_its_launch(jobs: Jobs) -> None:
    job = jobs.submit("--", *TORCHRUN, "--placements", "ddp:2", "--steps", "5000")
    wait_for(lambda: jobs.in_step(job, 1), 600)
    (trial,) = (Trial(path) for path in jobs.job_folder(job).glob("runs/2*/trials/*"))
    (pid,) = (row["pid"] for row in read_jsonl(trial.processes) if row["device"] == "pb2/cpu:0")
    os.kill(pid, signal.SIGKILL)
    assert jobs.wait(job) == "FAILED"
    (line,) = trial.error.read_text().splitlines()[:1]
    assert line == (
        f"failed: RankDiedError: the worker of pb2/cpu:0 (pid {pid}) has ended: it was killed, or has crashed"
    )


def test_a_cancelled_job_says_so_and_leaves_nothing(jobs: Jobs) -> None:
    job = jobs.submit("--", "run", *SMALL, "--steps", "5000", "--placements", "standard")
    wait_for(lambda: jobs.in_step(job, 1), 600)
    jobs.call("scancel", job)
    assert jobs.wait(job) == "CANCELLED"
    wait_for(lambda: (jobs.job_folder(job) / "job_summary.txt").exists(), 30)
    assert jobs.summary(job)["state"].startswith("stopped by SLURM (cancelled or preempted)")


def test_what_jobs_leave_ends_with_their_slurm_and_nothing_else(tmp_path: Path, slurm: dict[str, str]) -> None:
    # In a session of its own and without its parent, a process is none of the job's to SLURM.
    job = "setsid bash -c 'sleep 1000 & touch begun'; sleep 1000"
    shell = f'sbatch --output=/dev/null --wrap "{job}" && until [ -e begun ]; do sleep 0.1; done'
    subprocess.run([str(START), "bash", "-c", shell], cwd=tmp_path, check=True, timeout=120)
    assert processes_of(tmp_path) == []
    assert "idle" in subprocess.run(["sinfo"], env=slurm, capture_output=True, text=True, check=True, timeout=60).stdout


def test_options_that_sbatch_refuses_are_one_line(jobs: Jobs) -> None:
    words = [sys.executable, "-m", "placebench", "slurm", "submit", "--partition=none", "--", "run"]
    done = subprocess.run(words, cwd=jobs.folder, env=jobs.env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("placebench: sbatch refuses the job: ")
    assert len(done.stderr.splitlines()) == 1
