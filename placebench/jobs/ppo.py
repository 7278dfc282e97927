"""One launch: `python -m placebench.jobs.ppo TRIAL_DIR`, started fresh by the runner for every trial.

Starts a Ray of its own, joins a cluster or starts torchrun, has the workers of each pool started there, and runs the
steps; all it knows comes from the trial's launch.json and all it leaves lies in the trial's folder, how it
ended in end.json. Exit codes: see `JobExit`.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from placebench.errors import JobExit
from placebench.host.compile_cache import remove_empty_cache
from placebench.host.heap import freeze_heap
from placebench.jobs.end import end_by
from placebench.record.checkpoints import new_checkpoint, read_checkpoint
from placebench.record.end_file import EndFile
from placebench.record.folder import FINISHING, IN_STEP, STOPPING, TRACING, Trial
from placebench.record.launch_file import LaunchFile
from placebench.record.progress import PhaseClock, Progress
from placebench.record.writing import append_jsonl, append_to, write_atomically
from placebench.sessions.base import Session
from placebench.sessions.own_ray import OwnRay
from placebench.spec.devices import device_to_dict
from placebench.spec.launchers import TORCHRUN
from placebench.spec.placement import Role
from placebench.spec.shapes import PRESETS
from placebench.spec.workload import Workload
from placebench.telemetry.spans import CONTROLLER, TRACED_STEP, SpanRecorder

if TYPE_CHECKING:
    from placebench.ppo.controller import Controller
    from placebench.ppo.generation import Generation


class PPOJob:
    """One start of a placement's job.

    Args:
        trial: the folder with launch.json.
    """

    def __init__(self, trial: Trial) -> None:
        self._asked = asked = LaunchFile.read(trial.launch_file)
        bound = asked.run_placement
        self._trial = trial
        self._workload = Workload.model_validate(asked.workload)
        self._devices = {device.id: device_to_dict(device) for device in asked.devices}
        self._pools = {pool: list(devices) for pool, devices in bound.pools.items()}
        self._placement = bound.placement
        self._recorder = SpanRecorder(CONTROLLER)
        self._start = read_checkpoint(Path(asked.resume_from)) if asked.resume_from else None
        self._session = self._choose_session(asked)
        self._doing = "start"
        self._phases = PhaseClock()

    def _choose_session(self, asked: LaunchFile) -> Session:
        folder, hz = asked.ray_temp_dir, asked.sample_hz
        if asked.launcher == TORCHRUN:
            from placebench.sessions.torchrun.session import Torchrun

            if asked.cluster is None:
                return Torchrun(folder, self._devices)
            from placebench.sessions.torchrun.node_session import TorchrunOnNodes
            from placebench.sessions.torchrun.nodes import JobNodes

            nodes = JobNodes.model_validate(asked.cluster.model_dump())
            return TorchrunOnNodes(nodes, folder, self._devices, self._trial, hz, self._recorder.clock)
        if asked.cluster is None:
            return OwnRay(folder, self._placement.size, asked.fork_server)
        from placebench.sessions.ray_cluster.discovery import Cluster
        from placebench.sessions.ray_cluster.session import SharedRay

        cluster = Cluster.model_validate(asked.cluster.model_dump())
        return SharedRay(cluster, self._devices, self._trial, hz, self._recorder.clock)

    def run(self) -> None:
        """Start the session and the workers, run every step, and stop them again whatever happens."""
        self._progress(f"start {self._asked.launcher}")
        self._register(os.getpid(), CONTROLLER, None, None, None)
        generation = self._read_prompts()
        try:
            with self._recorder.span(0, f"start_{self._asked.launcher}"):
                self._session.open()
            with self._recorder.span(0, "start_workers"):
                workers = self._start_workers()
            self._progress("build models")
            with self._recorder.span(0, "build_models"):
                spans = self._build(workers)
            self._write_spans(spans + self._recorder.drain())
            self._train(workers, generation)
            self._progress(STOPPING, step=self._workload.steps)
            with self._recorder.span(0, "stop"):
                # To end an engine and a process group takes seconds, which are of no use to those that are killed.
                last = "last_spans" if self._session.ends_all_at_once else "stop"
                spans = [span for batch in self._get(_call(workers, last)) for span in batch]
            self._write_spans(spans + self._recorder.drain())
        except Exception as error:
            explained = self._session.explain(error, self._doing)
            if explained is error:
                raise
            raise explained from error
        finally:
            self._session.close()

    def _read_prompts(self) -> "Generation":
        from placebench.ppo.generation import Generation
        from placebench.tasks.data import open_prompts
        from placebench.tasks.tokenizer import load_tokenizer

        source = open_prompts(self._workload.data, self._workload.seed, self._workload.batch.max_prompt_length)
        generation = Generation(
            self._workload,
            source,
            load_tokenizer(self._workload.model),
            is_stale=self._placement.staleness > 0,
            first_step=self._first_step,
        )
        if self._workload.model not in PRESETS:  # of which the plan has looked at them
            generation.refuse_long_prompts()
        return generation

    @property
    def _first_step(self) -> int:
        return self._start.step + 1 if self._start else 1

    def _start_workers(self) -> dict[str, list[Any]]:
        from placebench.ppo.engine import Engine, InflightEngine
        from placebench.ppo.worker import Worker

        kinds: dict[str, type[Worker]] = dict.fromkeys(self._pools, Worker)
        if self._placement.has_engines:
            engine = InflightEngine if self._placement.inflight_updates else Engine
            kinds[self._placement.roles[Role.ROLLOUT]] = engine

        self._progress("reserve devices")
        self._session.reserve(self._pools)
        self._progress("start workers")
        workers: dict[str, list[Any]] = {pool: [] for pool in self._pools}
        places = [(pool, rank, device) for pool, devices in self._pools.items() for rank, device in enumerate(devices)]
        for pool, rank, device in places:
            worker = self._session.start_worker(
                kinds[pool],
                pool,
                device,
                self._workload.model_dump(mode="json"),
                self._placement.roles_in(pool),
                pool,
                self._devices[device],
                rank,
                len(self._pools[pool]),
                str(self._start.path) if self._start else None,
            )
            workers[pool].append(worker)
        pending = [workers[pool][rank].start.remote(self._session.host_of(device)) for pool, rank, device in places]
        started = self._get(pending)
        self._session.confirm_devices()
        for (pool, rank, device), (process_id, threads) in zip(places, started, strict=True):
            self._register(process_id, device, pool, rank, threads)
        return workers

    def _build(self, workers: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
        opened = self._get([ranks[0].open_store.remote() for ranks in workers.values()])
        addresses = dict(zip(workers, opened, strict=True))
        spans = self._get([worker.build.remote(addresses[pool]) for pool, ranks in workers.items() for worker in ranks])
        if self._placement.has_engines:
            learners, engines = (workers[self._placement.roles[role]] for role in (Role.ACTOR, Role.ROLLOUT))
            layout = self._get([rank.layout.remote() for rank in learners])[0]
            ends = 1 + len(engines)
            address = addresses[self._placement.roles[Role.ACTOR]]
            version = self._start.step if self._start else 0
            pending = [rank.open_channel.remote(ends, layout, version) for rank in learners]
            pending += [
                rank.join_channel.remote(address, end, ends, layout, version) for end, rank in enumerate(engines, 1)
            ]
            spans += self._get(pending)
        return [span for rank in spans for span in rank]

    def _train(self, workers: Mapping[str, list[Any]], generation: "Generation") -> None:
        from placebench.ppo.controller import Controller
        from placebench.ppo.metrics import format_step

        first = self._first_step
        controller = Controller(
            self._workload,
            self._placement,
            workers,
            self._session.calls,
            generation,
            self._step_progress,
            hands_over=self._hands_over(),
        )
        if self._start:
            controller.go_on_from(self._start)
        with append_to(self._trial.steps) as steps:
            for step in range(first, self._workload.steps + 1):
                if step - first < self._workload.warmup_steps:
                    freeze_heap()
                record = controller.run_step(step)
                print(format_step(step, record.metrics), flush=True)
                append_jsonl(
                    steps, {"step": step, "wall": time.time(), "mono": time.monotonic(), "metrics": record.metrics}
                )
                self._write_spans(record.spans)
                if self._asked.checkpoint_every and step % self._asked.checkpoint_every == 0:
                    controller.settle()
                    self._save(workers, step, controller.kl_coef)
        self._progress(FINISHING, step=self._workload.steps)
        self._write_spans(controller.finish().spans)
        if self._traces_kernels():
            self._trace_kernels(controller, workers)

    def _trace_kernels(self, controller: "Controller", workers: Mapping[str, list[Any]]) -> None:
        """Trace what a step spends its time on: one more than those that are measured, see `telemetry.kernels`."""
        self._progress(TRACING, self._workload.steps)
        with self._recorder.span(0, TRACED_STEP):
            self._get(_call(workers, "trace_kernels"))
            rows = controller.run_step(self._workload.steps + 1).kernels + controller.finish().kernels
        with append_to(self._trial.kernels) as stream:
            for row in rows:
                append_jsonl(stream, row)
        self._write_spans(self._recorder.drain())

    def _save(self, workers: Mapping[str, list[Any]], step: int, kl_coef: float) -> None:
        """Write a checkpoint between two steps, so that it is in the time of neither."""
        self._progress("save checkpoint", step)
        models = [self._placement.roles[role] for role in self._workload.algorithm.trained_roles]
        trained = {pool: workers[pool] for pool in models}
        with (
            self._recorder.span(0, "save_checkpoint"),
            new_checkpoint(self._trial.checkpoints, step, kl_coef, self._workload) as folder,
        ):
            self._get([worker.save.remote(str(folder)) for ranks in trained.values() for worker in ranks])
        self._write_spans(self._recorder.drain())

    def _get(self, answers: list[Any]) -> list[Any]:
        return self._session.calls.get(answers)

    def _hands_over(self) -> bool:
        """Whether generation and training take turns in the devices' memory: an engine of its own on GPUs."""
        rollout = self._workload.rollout
        return rollout.backend == "vllm" and rollout.sleep and self._on_gpus and not self._placement.has_engines

    def _traces_kernels(self) -> bool:
        """Whether kernels are traced: not in every round, as it takes seconds and shows the same each time."""
        return self._workload.trace_kernels and self._on_gpus and self._asked.round == 1

    @property
    def _on_gpus(self) -> bool:
        return any(device["kind"] == "gpu" for device in self._devices.values())

    def _step_progress(self, step: int, running: tuple[str, ...]) -> None:
        last = self._workload.steps
        self._progress(IN_STEP if step <= last else TRACING, min(step, last), running)

    def _progress(self, stage: str, step: int = 0, running: tuple[str, ...] = ()) -> None:
        phases = self._phases.times(step, running)
        Progress(stage=stage, step=step, steps=self._workload.steps, running=running, phases=phases).write(self._trial)
        self._doing = f"{', '.join(running) or stage} of step {step}" if stage == IN_STEP else stage

    def _register(self, pid: int, device: str, pool: str | None, rank: int | None, threads: int | None) -> None:
        with append_to(self._trial.processes) as stream:
            append_jsonl(stream, {"pid": pid, "device": device, "pool": pool, "rank": rank, "threads": threads})
        self._session.register(pid, device)

    def _write_spans(self, spans: list[dict[str, Any]]) -> None:
        with append_to(self._trial.spans) as stream:
            for span in self._session.on_one_clock(spans):
                append_jsonl(stream, span)


def _call(workers: Mapping[str, list[Any]], method: str) -> list[Any]:
    return [getattr(worker, method).remote() for ranks in workers.values() for worker in ranks]


def main(folder: str, job: Callable[[Trial], PPOJob] = PPOJob) -> int:
    """Run the launch of a trial folder; returns the exit code.

    Args:
        folder: the trial's.
        job: makes what is run of it.
    """
    trial = Trial(Path(folder))
    # SIGTERM ends it by exception, so that Ray is shut down in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        job(trial).run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - whatever it is, it ends this launch and is written down
        end = end_by(error)
        write_atomically(trial.error, traceback.format_exc())
        traceback.print_exc()
    else:
        end = EndFile(kind=JobExit.DONE)
    finally:
        remove_empty_cache()
    end.write(trial)
    return end.kind


def run_and_exit(folder: str, job: Callable[[Trial], PPOJob] = PPOJob) -> NoReturn:
    """Run the launch of a trial folder as `main` does, and end this process at once, as `OwnRay.close` wants it."""
    code = main(folder, job)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run_and_exit(sys.argv[1])
