"""Runs the real training job of one launch, small, for tests."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placebench.host.processes import LaunchMark, launch_processes
from placebench.record.folder import Trial
from placebench.record.launch_file import LaunchFile
from placebench.record.parts import PlacementRecord
from placebench.record.writing import read_jsonl
from placebench.spec.bound import bind
from placebench.spec.config import parse_settings
from placebench.spec.devices import Device, device_to_dict
from placebench.spec.launchers import RAY
from placebench.spec.words import parse_placement
from placebench.spec.workload import placed_workload
from placebench.spec.workload_reading import build_workload

# Small jobs with all phases of the algorithm; several tests look at the same launches, see `conftest.shared_job`.
PPO = (
    *("steps=4", "warmup_steps=1", "batch.size=16", "batch.mini_batch_size=8"),
    *("algorithm.kl_loss=true", "algorithm.kl_control=adaptive"),
)
GRPO = (
    *("algorithm.name=grpo", "steps=3", "warmup_steps=1"),
    *("batch.size=16", "batch.mini_batch_size=8", "batch.group_size=4"),
)


@dataclass(frozen=True)
class Job:
    """A finished launch."""

    trial: Trial
    exit_code: int
    output: str

    @classmethod
    def kept(cls, folder: Path) -> "Job":
        """A launch whose folder another process has kept with `keep`."""
        ended = json.loads((folder.parent / "ended.json").read_text())
        return cls(Trial(folder), ended["exit_code"], ended["output"])

    def keep(self) -> None:
        """Leave beside the launch's folder what is not in it."""
        ended = {"exit_code": self.exit_code, "output": self.output}
        (self.trial.path.parent / "ended.json").write_text(json.dumps(ended))

    @property
    def steps(self) -> list[dict[str, float]]:
        return [row["metrics"] for row in read_jsonl(self.trial.steps)]

    @property
    def spans(self) -> list[dict[str, Any]]:
        return list(read_jsonl(self.trial.spans))


def run_job(
    folder: Path,
    placement: str,
    devices: int,
    *settings: str,
    program: str | None = None,
    checkpoint_every: int | None = None,
    resume_from: Path | None = None,
    launcher: str = RAY,
    fork_server: str | None = None,
) -> Job:
    """Run one launch on CPU devices, and see that its Ray was no more than needed and ends with it.

    `program` replaces the command's module by Python source.
    """
    options = {
        "checkpoint_every": checkpoint_every,
        "resume_from": str(resume_from) if resume_from else None,
        "launcher": launcher,
        "fork_server": fork_server,
    }
    with launched(folder, placement, devices, *settings, program=program, options=options) as process:
        output, _ = process.communicate(timeout=840)
        ray_folder = Path(LaunchFile.read(Trial(folder).launch_file).ray_temp_dir)
        assert not launch_processes(LaunchMark("of nobody", ray_folder)), output[-3000:]
        logs = {path.name.partition(".")[0] for path in ray_folder.glob("session_latest/logs/*")}
        assert logs.isdisjoint({"monitor", "dashboard"}), "Ray has started what is not used"
    return Job(Trial(folder), process.returncode, output)


@contextmanager
def launched(
    folder: Path,
    placement: str,
    devices: int,
    *settings: str,
    program: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> "Iterator[subprocess.Popen[str]]":
    """A launch that goes on meanwhile; see `run_job`."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="pb-") as ray_folder:
        content = _launch_file(placement, devices, ray_folder, settings) | dict(options or {})
        Trial(folder).launch_file.write_text(json.dumps(content))
        command = ["-c", program] if program else ["-m", "placebench.jobs.ppo"]
        with subprocess.Popen(
            [sys.executable, *command, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "VLLM_RPC_BASE_PATH": ray_folder},
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()  # it ends its Ray in order; a kill would leave that to the operating system


def _launch_file(word: str, devices: int, ray_folder: str, settings: tuple[str, ...]) -> dict[str, Any]:
    job = build_workload(parse_settings(settings))
    placement = parse_placement(word, [devices], has_critic=job.algorithm.has_critic)
    cores = sorted(os.sched_getaffinity(0))
    members = [
        Device(f"cpu:{index}", "cpu", index, "here", "test", 1 << 30, (cores[index % len(cores)],))
        for index in range(devices)
    ]
    return {
        "schema_version": 1,
        "round": 1,
        "placement": PlacementRecord.of(bind(placement, members)).model_dump(mode="json"),
        "devices": [device_to_dict(device) for device in members],
        "workload": placed_workload(job, placement).model_dump(mode="json"),
        "ray_temp_dir": ray_folder,
        "step_timeout_s": 600,
    }


def assert_same_training(job: Job, reference: Job, names: Sequence[str]) -> None:
    """Both jobs have trained to their end, with the same metrics of these names in every step.

    Other ranks add in another order. Adam divides by the size of gradients, also of those that are next to 0, so that
    what this makes of rounding grows from step to step.
    """
    assert job.exit_code == 0, job.output[-3000:]
    assert len(job.steps) == len(reference.steps) > 2
    for number, (step, expected) in enumerate(zip(job.steps, reference.steps, strict=True), 1):
        relative = 1e-5 * 4**number
        for name in (*names, "response_length/mean"):
            message = f"{name} in step {number}"
            # A loss that whitening centers on 0 has no scale of its own: its largest terms have one, about 1.
            np.testing.assert_allclose(step[name], expected[name], rtol=relative, atol=relative / 100, err_msg=message)


def save_model(folder: Path, preset: str = "tiny") -> None:
    """A model and a tokenizer as `save_pretrained` leaves them: words are digits and signs."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    from placebench.ppo.models import model_config

    words = {"</s>": 0} | {character: number for number, character in enumerate("0123456789+=", start=1)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    make: Any = PreTrainedTokenizerFast
    make(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    auto_model: Any = AutoModelForCausalLM
    auto_model.from_config(model_config(preset)).save_pretrained(folder)


ENGINES = """
import os, signal, time
from placebench.ppo.engine import Engine, InflightEngine

class SlowEngine(InflightEngine):
    def announced_updates(self):
        time.sleep(0.04 * self._rank)
        return super().announced_updates()

class DyingEngine(Engine):
    def _run_update_weights(self, version):
        if version == 2 and self._rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._run_update_weights(version)
"""


def engine_program(folder: Path, name: str) -> str:
    """A launch whose engines are of another class, one of `ENGINES`."""
    return patched_program(
        folder,
        ENGINES,
        f"from placebench.ppo import engine\nengine.Engine = engine.InflightEngine = patches.{name}",
    )


# Where phases may go on side by side, workers see to it that they do: a phase waits for another one to begin, and fails
# if it does not. Files tell of each beginning.
MEETING = """
import collections, math, time
from pathlib import Path
from placebench.ppo.engine import Engine
from placebench.ppo.worker import Worker

steps = collections.Counter()

def meet(phase, other=None, later=0, last=math.inf):
    # In its n-th step the phase waits until the other one's of step n + later has begun; steps are 1 to `last`.
    steps[phase] += 1
    begun = Path(__file__).parent / f"{phase}-{steps[phase]}"
    begun.touch()
    step = steps[phase] + later
    awaited = begun.with_name(f"{other}-{step}")
    end = time.monotonic() + 60
    while other and 0 < step <= last and not awaited.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{begun.name} goes on and {awaited.name} does not begin")
        time.sleep(0.005)

class UpdatesMeet(Worker):
    def _run_update_actor(self, *batch, **options):
        meet("update_actor", "update_critic")
        return super()._run_update_actor(*batch, **options)

    def _run_update_critic(self, *batch, **options):
        meet("update_critic", "update_actor")
        return super()._run_update_critic(*batch, **options)

class AllMeet(UpdatesMeet):
    def _run_values(self, *batch, **options):
        meet("values", "old_log_prob")
        return super()._run_values(*batch, **options)

    def _run_old_log_prob(self, *batch, **options):
        meet("old_log_prob", "values")
        return super()._run_old_log_prob(*batch, **options)

class GeneratesBesideValues(Worker):
    # A pool generates for a step to come, two of them ahead, while the other one values.
    def _run_gen(self, *prompts, **options):
        meet("gen", "values", -2)
        return super()._run_gen(*prompts, **options)

    def _run_values(self, *batch, **options):
        meet("values", "gen", 2)
        return super()._run_values(*batch, **options)

class LearnerMeets(Worker):
    def _run_old_log_prob(self, *batch, **options):
        meet("old_log_prob")
        return super()._run_old_log_prob(*batch, **options)

    def _run_update_actor(self, *batch, **options):
        meet("update_actor", "gen", 1)
        return super()._run_update_actor(*batch, **options)

class EngineMeets(Engine):
    def _run_gen(self, *prompts, **options):
        meet("gen", "old_log_prob", -1, self._workload.steps)  # engines run ahead of the last step too
        return super()._run_gen(*prompts, **options)
"""


def meeting_program(folder: Path, worker: str, engine: str = "Engine") -> str:
    """A launch whose workers and engines are of other classes, of those in `MEETING`."""
    patch = f"worker.Worker, engine.Engine = patches.{worker}, patches.{engine}"
    return patched_program(folder, MEETING, f"from placebench.ppo import engine, worker\n{patch}")


def patched_program(folder: Path, source: str, patch: str) -> str:
    """A launch before which `patch` puts what is in `source` in place; actors find it by its module, `patches`."""
    (folder / "patches.py").write_text(source)
    return (
        f"import os, sys; sys.path.insert(0, {str(folder)!r})\n"
        f"os.environ['PYTHONPATH'] = os.pathsep.join([{str(folder)!r}, os.environ.get('PYTHONPATH', '')])\n"
        f"import patches\n{patch}\n"
        "from placebench.jobs import ppo as launch\n"
        "launch.run_and_exit(sys.argv[1])"
    )
