"""Peak memory of training at long sequences beside the estimate of it, on one device, without the rest of the job.

    python benchmarks/memory.py MODEL:LENGTH... [--set key=value …]

Of every case it builds the job's own models, actor, reference and critic, or without the critic where the estimate says
that they do not fit, and runs two steps of all their phases over sequences of 512 prompt tokens and responses that fill
the length. Measured is what the device has in use when they are done: torch's allocator gives nothing back, so that
this is the peak; `held_before_gib` is what the cases before it left behind, nearly 0. On a CPU it is the process's own
peak, which one case alone has.
"""

import gc
import json
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import torch
import torch.distributed as dist
from memory_sizes import estimate_of, workload_of
from training import draw_batch

from placebench.ppo.batch import SequenceBatch
from placebench.ppo.passes import actor_loss, critic_loss, log_probs, values
from placebench.ppo.role_models import build_models
from placebench.ppo.training import SequenceModel, TrainedModel
from placebench.predict.memory.estimate import MemoryEstimate
from placebench.predict.memory.fitting import describe_memory
from placebench.spec.devices import Kind
from placebench.spec.placement import Role
from placebench.spec.shapes import job_shapes
from placebench.spec.workload import Workload

ROLES = (Role.ACTOR, Role.REF, Role.CRITIC)


@click.command()
@click.argument("cases", nargs=-1, required=True, metavar="MODEL:LENGTH...")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File of one JSON object a case.")
def main(cases: tuple[str, ...], settings: tuple[str, ...], out: Path | None) -> None:
    """Print estimated and measured peak memory of every case."""
    is_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if is_gpu else torch.device("cpu")
    name = torch.cuda.get_device_name(0) if is_gpu else "cpu"
    have = torch.cuda.mem_get_info(0)[1] if is_gpu else 1 << 40
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl" if is_gpu else "gloo", store=store, rank=0, world_size=1)
    for case in cases:
        started = time.monotonic()
        model, _, length = case.rpartition(":")
        workload = workload_of(model, int(length), settings)
        roles, estimate = _that_fit(workload, "gpu" if is_gpu else "cpu", have)
        held = torch.cuda.memory_reserved() if is_gpu else 0
        peak = _peak_bytes(workload, roles, device)
        row = {
            "model": model,
            "length": int(length),
            "roles": "+".join(roles),
            "gpu": name,
            "torch": torch.__version__,
            "estimate_gib": round(estimate.peak / 2**30, 3),
            "measured_gib": round(peak / 2**30, 3),
            "held_before_gib": round(held / 2**30, 3),
            "error_pct": round(100 * (estimate.peak / peak - 1), 2),
            "estimated": describe_memory(estimate),
            "seconds": round(time.monotonic() - started, 1),
        }
        print(json.dumps(row), flush=True)
        if out:
            with out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
    dist.destroy_process_group()


def _that_fit(workload: Workload, kind: Kind, have: int) -> tuple[tuple[Role, ...], MemoryEstimate]:
    """The roles that the device holds by the estimate, and the estimate."""
    for roles in (ROLES, ROLES[:2]):
        estimate = estimate_of(workload, roles, kind, have)
        if estimate.peak <= have:
            return roles, estimate
    raise click.ClickException(f"{workload.model} needs {describe_memory(estimate)}, more than the device has")


def _peak_bytes(workload: Workload, roles: Sequence[Role], device: torch.device) -> int:
    models = dict(build_models(roles, workload, device))
    batch = draw_batch(workload, workload.batch.size, job_shapes(workload).actor.vocab_size)
    for _ in range(2):
        for _ in _step(workload, models, batch):
            gc.collect()
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    torch.cuda.synchronize()
    free, whole = torch.cuda.mem_get_info(device)
    del models
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return whole - free


def _step(workload: Workload, models: dict[Role, SequenceModel], batch: SequenceBatch) -> Iterator[object]:
    """The phases of a step that have to do with these models, one after the other."""
    algorithm, responses = workload.algorithm, [batch.response_tokens]
    yield models[Role.ACTOR].per_token(batch, log_probs)
    yield models[Role.REF].per_token(batch, log_probs)
    critic, actor = models.get(Role.CRITIC), models[Role.ACTOR]
    if isinstance(critic, TrainedModel):
        yield critic.per_token(batch, values)
        yield critic.update(batch, responses, 1, critic_loss(algorithm))
    assert isinstance(actor, TrainedModel)
    yield actor.update(batch, responses, 1, actor_loss(algorithm, kl_coef=0.0))


if __name__ == "__main__":
    main()
