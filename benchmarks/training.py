"""How near the training phases come to the device's peak, on one device, without the rest of the job.

    python benchmarks/training.py --model qwen2.5-1.5b --sequences 64 [--set key=value …]

Runs the job's own models and losses over sequences of full length, each phase `--repeats` times after two passes of
warm-up, and prints the median seconds and the model FLOP utilization (MFU) of each phase, by the formulas of reports
(`placebench.compare.measure.efficiency`). A GPU that draws all the power it may lowers its clock, and its peak with it:
beside the MFU stands the mean SM clock of the timed passes, and the MFU of the peak at that clock. All sequences are
one mini-batch, in micro-batches as the workload has them; `--trace` runs each phase once more and prints which kernels
its time goes into, and how long none runs.
"""

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import numpy as np
import torch
import torch.distributed as dist

from placebench.compare.measure.efficiency import Work
from placebench.ppo.batch import SequenceBatch
from placebench.ppo.models import PolicyModel, ValueModel, load_language_model
from placebench.ppo.passes import actor_loss, critic_loss, log_probs, values
from placebench.ppo.training import TrainedModel
from placebench.spec.config import parse_settings
from placebench.spec.phases import PHASE
from placebench.spec.shapes import model_shape
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload
from placebench.telemetry.kernels import device_events, shares

# Kernels that a trace names; the rest takes little.
NAMED = 15


@click.command()
@click.option("--model", default="qwen2.5-1.5b", show_default=True, help="A preset or the folder of a saved model.")
@click.option("--sequences", default=64, show_default=True, type=click.IntRange(1), help="Sequences of the device.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Timed runs of each phase.")
@click.option("--peak", default=989.0, show_default=True, help="The device's dense peak, TFLOP/s.")
@click.option("--peak-clock", default=1830.0, show_default=True, help="The SM clock of that peak, MHz.")
@click.option("--trace", is_flag=True, help="Tell which kernels the time goes into, on a GPU.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
def main(
    model: str,
    sequences: int,
    repeats: int,
    peak: float,
    peak_clock: float,
    trace: bool,
    settings: tuple[str, ...],
) -> None:
    """Time old_log_prob, values, update_actor and update_critic on one device."""
    content = {**parse_settings(settings), "model": model}
    workload = build_workload(content)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=0, world_size=1)
    shape = model_shape(workload.model)
    batch = draw_batch(workload, sequences, shape.vocab_size)
    tokens, length = int(batch.lengths.sum()), int(batch.lengths[0])
    work = Work(shape, shape, epochs=1, shared_by=1, value_bytes=2)
    for name, run in _phases(workload, batch, device).items():
        for _ in range(2):
            _time(run, device)
        with _clocks(device) as clocks:
            seconds = statistics.median(_time(run, device) for _ in range(repeats))
        mfu = tokens * work.flops(PHASE[name], length) / seconds / (peak * 1e12)
        line = f"{name:14} {seconds:8.3f} s   {tokens / seconds:10,.0f} tokens/s   MFU {100 * mfu:5.1f} %"
        if clocks:
            clock = statistics.mean(clocks)
            line += f"   at {clock:,.0f} MHz {100 * mfu * peak_clock / clock:5.1f} %"
        print(line, flush=True)
        if trace and device.type == "cuda":
            print("\n".join(_traced(run, device)), flush=True)
    if device.type == "cuda":
        print(f"peak memory    {torch.cuda.max_memory_allocated() / 1e9:8.1f} GB allocated")
    dist.destroy_process_group()


def draw_batch(workload: Workload, sequences: int, words: int) -> SequenceBatch:
    """Sequences of full length with every field that losses read."""
    random = np.random.default_rng(0)
    prompt, response = workload.batch.max_prompt_length, workload.batch.max_response_length
    tokens = random.integers(1, words, (sequences, prompt + response)).tolist()
    batch = SequenceBatch.build([row[:prompt] for row in tokens], [row[prompt:] for row in tokens])
    count = batch.response_tokens
    fields = ("old_log_probs", "ref_log_probs", "advantages", "values", "returns")
    drawn = {name: random.normal(size=count).astype(np.float32) for name in fields}
    drawn["old_log_probs"] = drawn["ref_log_probs"] = np.full(count, -np.log(words), np.float32)
    return batch.with_fields(drawn)


def _phases(workload: Workload, batch: SequenceBatch, device: torch.device) -> dict[str, Callable[[], object]]:
    algorithm, optimizer = workload.algorithm, workload.optimizer
    policy = PolicyModel(
        load_language_model(workload.model), 1.0, getattr(torch, workload.precision), workload.torch_compile
    )
    actor = TrainedModel(policy, workload, device, 0, optimizer.actor_lr)
    critic = TrainedModel(ValueModel(load_language_model(workload.model)), workload, device, 1, optimizer.critic_lr)
    responses = [batch.response_tokens]
    return {
        "old_log_prob": lambda: actor.per_token(batch, log_probs),
        "values": lambda: critic.per_token(batch, values),
        "update_critic": lambda: critic.update(batch, responses, 1, critic_loss(algorithm)),
        "update_actor": lambda: actor.update(batch, responses, 1, actor_loss(algorithm, kl_coef=0.0)),
    }


def _time(run: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _traced(run: Callable[[], object], device: torch.device) -> Iterator[str]:
    """Where the time of a phase goes: shares with and without a kernel, and the kernels that take most, a line each."""
    with device_events() as events:
        seconds = _time(run, device)
    parts = shares(events, seconds)
    yield "  " + ", ".join(f"{name} {value:.4f}" for name, value in parts.items())
    lengths: dict[str, list[float]] = defaultdict(list)
    for name, _, duration in events:
        lengths[name].append(duration / 1e9)
    for name in sorted(lengths, key=lambda name: -sum(lengths[name]))[:NAMED]:
        total = sum(lengths[name])
        yield f"  {100 * total / seconds:5.1f} % {1000 * total:9.2f} ms {len(lengths[name]):6} x {name[:110]}"


@contextmanager
def _clocks(device: torch.device) -> Iterator[list[float]]:
    """The SM clocks that the GPU has inside, MHz, read every 20 ms; none of a CPU."""
    clocks: list[float] = []
    over = threading.Event()

    def read() -> None:
        while not over.wait(0.02):
            clocks.append(torch.cuda.clock_rate())

    reader = threading.Thread(target=read)
    if device.type == "cuda":
        reader.start()
    try:
        yield clocks
    finally:
        over.set()
        if device.type == "cuda":
            reader.join()


if __name__ == "__main__":
    main()
