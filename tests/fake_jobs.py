"""Scripts that print a framework's log and sleep a little, in the place of jobs of a user's."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from placebench.jobs.job import Job
from placebench.jobs.spec import JobSpec
from placebench.jobs.start import job_launch
from placebench.record.folder import Trial
from placebench.record.launch_file import LaunchFile
from placebench.record.parts import PlacementRecord
from placebench.record.writing import read_jsonl
from placebench.spec.bound import RunPlacement, bind
from placebench.spec.devices import Device

# Two ranks that go on together, each with its own spans.
RANKS = """
import os, socket, sys, time
from placebench_attach import span
rank, master, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.environ["RANK"] = sys.argv[1]
if rank == 0:
    peer = socket.create_server((master, port)).accept()[0]
while rank:
    try:
        peer = socket.create_connection((master, port))
        break
    except OSError:
        time.sleep(0.02)
for step in range(1, 1000):
    begun = time.monotonic()
    peer.sendall(b"x")
    peer.recv(1)
    if rank and sys.argv[4:] == ["fails"]:
        sys.exit("no more")
    with span("step"), span("update_actor"):
        time.sleep(0.02)
    if not rank:
        print(f"step:{step} - timing_s/step:{time.monotonic() - begun}", flush=True)
"""
# A worker on each of two nodes of the Ray that the environment names.
ON_RAY = """
import time, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init()
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
assert len(nodes) == 2, nodes
@ray.remote(num_cpus=0)
class Trainer:
    def train(self):
        from placebench_attach.spans import emit
        begun = time.monotonic()
        time.sleep(0.02)
        emit("update_actor", "worker", begun, time.monotonic())
workers = [Trainer.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]
for step in range(1, 1000):
    begun = time.monotonic()
    ray.get([worker.train.remote() for worker in workers])
    print(f"step:{step} - timing_s/step:{time.monotonic() - begun}", flush=True)
"""
# Takes Hydra's overrides as verl does; a critic apart makes its step shorter.
VERL = """
import json, os, sys, time
given = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:] if "=" in word)
gen = 0.004 if "PLACEBENCH_PLACEMENT" in os.environ else 0.008
for step in range(1, int(given["trainer.total_training_steps"]) + 1):
    time.sleep(gen)
    seconds = {"gen": gen, "update_actor": 0.002, "step": gen + 0.003}
    metrics = {f"timing_s/{name}": value for name, value in seconds.items()}
    metrics |= {"perf/total_num_tokens": 1000, "actor/grad_norm": 0.5, "prompt_length/mean": 8.0}
    print(f"(TaskRunner pid=7) step:{step} - " + " - ".join(f"{name}:{value}" for name, value in metrics.items()))
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "a") as log:
        log.write(json.dumps({"step": step, "data": metrics}) + "\\n")
"""
# As VERL, with a controller and two workers that write spans; the critic's works beside the actor's.
VERL_WITH_SPANS = """
import os, subprocess, sys, time
from placebench_attach.spans import emit
if len(sys.argv) > 1 and sys.argv[1] == "worker":
    while phase := sys.stdin.readline().strip():
        begun = time.monotonic()
        time.sleep(0.01)
        emit(phase, "worker", begun, time.monotonic())
        print(phase, flush=True)
    sys.exit()
def worker():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    return subprocess.Popen([sys.executable, __file__, "worker"], env={**os.environ, "RANK": "0"}, **pipes)
actor, critic = worker(), worker()
def run(**phases):
    begun = time.monotonic()
    for phase, process in phases.items():
        process.stdin.write(phase + "\\n")
    for phase, process in phases.items():
        process.stdout.readline()
        emit(phase, "timer", begun, time.monotonic())
for step in range(1, 4):
    begun = time.monotonic()
    waited = time.monotonic()
    time.sleep(0.01)
    emit("gen", "timer", waited, time.monotonic())
    run(old_log_prob=actor, values=critic)
    run(update_actor=actor, update_critic=critic)
    emit("step", "timer", begun, time.monotonic())
    print(f"step:{step} - timing_s/step:{time.monotonic() - begun}", flush=True)
for process in (actor, critic):
    process.stdin.close()
    process.wait()
"""
# Trains on and on, whatever it is told, as a script does that reads no arguments.
TRL = """
import time
for line in range(1, 1000):
    time.sleep(0.01)
    print({"loss": 0.1, "num_tokens": 500.0 * line, "step_time": 0.01, "epoch": 0.01 * line}, flush=True)
"""
# Prints what placebench's own log has.
PLAIN = """
import sys, time
for step in range(1, 7):
    time.sleep(float(sys.argv[1]))
    print(f"step:{step} - timing_s/step:{float(sys.argv[1])} - timing_s/my_rollout:0.001")
"""


def write(folder: Path, name: str, text: str) -> Path:
    """A file in a folder that need not be there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def cpu_devices(count: int) -> tuple[Device, ...]:
    """CPU devices on the first core of this process."""
    core = min(os.sched_getaffinity(0))
    return tuple(Device(f"cpu:{index}", "cpu", index, "here", "test", 1 << 30, (core,)) for index in range(count))


def prepare(
    folder: Path,
    *command: str,
    word: str = "standard",
    devices: int = 2,
    address: str = "127.0.0.1:1",
    **keys: Any,
) -> Trial:
    """The folder of a launch of a job, with its launch.json."""
    job = Job(
        JobSpec.model_validate({"command": list(command), "warmup_steps": 0, "steps": 3, "cwd": str(folder), **keys})
    )
    trial = Trial(folder / "trial")
    trial.path.mkdir(parents=True)
    members = cpu_devices(devices)
    bound: RunPlacement = bind(job.placement(word, [devices], "cpu"), members)
    names = {"folder": str(trial.path), "round": "1", "ray_temp_dir": str(folder / "ray"), "ray_address": address}
    names |= {"master": "127.0.0.1", "master_port": "9000"}
    launch = LaunchFile(
        schema_version=1,
        round=1,
        placement=PlacementRecord.of(bound),
        devices=members,
        job=job_launch(job, bound, {**names, **{f"port{number}": str(number) for number in range(1, 5)}}),
        ray_temp_dir=str(folder / "ray"),
    )
    launch.write(trial.launch_file)
    trial.log.touch()
    return trial


def read_end(trial: Trial) -> dict[str, Any]:
    """What a launch's job said of its end."""
    content: dict[str, Any] = json.loads(trial.end.read_text())
    return content


def python(folder: Path, text: str, *arguments: str) -> list[str]:
    return [sys.executable, str(write(folder, "job.py", text)), *arguments]


def rows(trial: Trial) -> list[dict[str, float]]:
    return [row["metrics"] for row in read_jsonl(trial.steps)]


def is_gone(folder: Path) -> bool:
    """Whether no process of a launch is left that names its folder."""
    return not [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or ())]


@contextmanager
def pressed_once_begun(number: signal.Signals) -> Iterator[None]:
    """Send this process a signal, as a user's key does, once the job has left a file `begun` in the current folder."""
    over = threading.Event()

    def press() -> None:
        while not Path("begun").exists():
            if over.wait(0.01):  # the job has ended before
                return
        os.kill(os.getpid(), number)

    user = threading.Thread(target=press)
    user.start()
    try:
        yield
    finally:
        over.set()
        user.join()
