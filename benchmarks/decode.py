"""Decoding in the rollout phase beside vLLM alone, on one device, in turn.

    python benchmarks/decode.py --model qwen2.5-1.5b --sequences 64 --sequences 256 [--set key=value …]

All sides generate for the same number of prompts of the same length, every response of full length, with random
weights of the same shape: `rollout` as the job's backend does it, which keeps the log-probability of every token;
`vllm` and `vllm-process` through an engine as vLLM sets it up by itself, in this process and in one of its own, with
the same seeds, and with the same request for log-probabilities and without. Each side has a process of its own,
started in turn `--pairs` times.

A token step is what a generation and one of an eighth of its length differ by, over the tokens that they differ by, so
that prompts do not count. Of three repeats the fastest counts: whatever else the host does only slows one down.
`kernels` is the time of a token step with a kernel on the GPU, from traces of both lengths.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import numpy as np

from placebench.spec.config import parse_settings
from placebench.spec.shapes import model_shape
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload

REPEATS = 3
SIDES = ("rollout", "vllm", "vllm-process")
Generate = Callable[[int, int, str], float]
"""Generates for so many prompts, so many tokens each, of one kind of request; returns the seconds that it took."""


@click.command()
@click.option("--model", default="qwen2.5-1.5b", show_default=True, help="A preset or the folder of a saved model.")
@click.option(
    "--sequences", "counts", multiple=True, default=[64], show_default=True, type=click.IntRange(1), help="Prompts."
)
@click.option("--pairs", default=1, show_default=True, type=click.IntRange(1), help="Starts of each side.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
@click.option("--side", type=click.Choice(SIDES), hidden=True)
def main(model: str, counts: tuple[int, ...], pairs: int, settings: tuple[str, ...], side: str | None) -> None:
    """Compare the rollout phase with vLLM alone: time of a token step, and tokens/s."""
    workload = build_workload({**parse_settings(settings), "model": model})
    if side:
        measure = _rollout if side == "rollout" else _vllm
        for row in measure(workload, counts, side):
            print(json.dumps(row), flush=True)
        return
    rows = []
    for pair in range(pairs):
        for name in SIDES if pair % 2 == 0 else reversed(SIDES):
            for row in _start(name):
                rows.append(row)
                print(_line(workload, row), flush=True)
    for count in counts:
        _print_ratios(count, [row for row in rows if row["sequences"] == count])


def _line(workload: Workload, row: dict[str, Any]) -> str:
    rate = row["sequences"] * workload.batch.max_response_length / row["whole_s"]
    line = f"{row['sequences']:5} sequences  {row['kind']:34} {1e3 * row['step_s']:7.2f} ms {rate:10,.0f} tokens/s"
    if "kernels_s" in row:
        line += f"   kernels {1e3 * row['kernels_s']:.2f} ms, ratio {row['step_s'] / row['kernels_s']:.2f}"
    return line


def _print_ratios(count: int, rows: Sequence[dict[str, Any]]) -> None:
    """What the rollout's tokens/s are of each other kind's, pair by pair."""
    seconds: dict[str, list[float]] = {}
    for row in rows:
        seconds.setdefault(row["kind"], []).append(row["whole_s"])
    own = seconds.pop("rollout")
    for kind, others in seconds.items():
        found = [other / mine for mine, other in zip(own, others, strict=True)]
        each = ", ".join(f"{one:.3f}" for one in found)
        print(f"{count:5} sequences  rollout / {kind}: {statistics.median(found):.3f} ({each})")


def _start(side: str) -> Iterator[dict[str, Any]]:
    command = [sys.executable, *sys.argv, "--side", side]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with {done.returncode}; see its output above")
    return map(json.loads, done.stdout.splitlines())


def _measured(generate: Generate, kind: str, count: int, workload: Workload) -> dict[str, Any]:
    lengths = _lengths(workload)
    generate(count, lengths[0], kind)
    short, long = np.min([[generate(count, tokens, kind) for tokens in lengths] for _ in range(REPEATS)], axis=0)
    step = (long - short) / (lengths[1] - lengths[0])
    return {"kind": kind, "sequences": count, "step_s": float(step), "whole_s": float(long)}


def _lengths(workload: Workload) -> tuple[int, int]:
    long = workload.batch.max_response_length
    return max(1, long // 8), long


def _prompts(workload: Workload, count: int) -> list[list[int]]:
    words = model_shape(workload.model).vocab_size
    tokens: list[list[int]] = (
        np.random.default_rng().integers(1, words, (count, workload.batch.max_prompt_length)).tolist()
    )
    return tokens


def _rollout(workload: Workload, counts: Sequence[int], side: str) -> Iterator[dict[str, Any]]:
    import torch
    import torch.distributed as dist

    from placebench.ppo.heap import freeze_heap
    from placebench.ppo.models import model_config
    from placebench.ppo.rollout.base import SamplingSettings
    from placebench.ppo.rollout.vllm import VllmRollout
    from placebench.telemetry.kernels import KernelTrace

    device = "cuda" if torch.cuda.is_available() else "cpu"
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    size = {"size": max(counts), "mini_batch_size": max(counts)}
    workload = workload.model_copy(update={"batch": workload.batch.model_copy(update=size)})
    rollout = VllmRollout(model_config(workload.model), device, workload, 1, keeps_prefixes=False)
    freeze_heap()
    settings = SamplingSettings(1.0, 1.0, True, 0)

    def generate(count: int, tokens: int, kind: str) -> float:
        prompts = _prompts(workload, count)
        begin = time.perf_counter()
        rollout.generate(prompts, [tokens] * count, list(range(count)), settings)
        return time.perf_counter() - begin

    for count in counts:
        row = _measured(generate, side, count, workload)
        if device == "cuda":
            trace, lengths = KernelTrace(device), _lengths(workload)
            for tokens in lengths:
                with trace.phase(tokens, "gen"):
                    generate(count, tokens, side)
            short, long = (one["kernel_s"] for one in trace.drain())
            row["kernels_s"] = (long - short) / (lengths[1] - lengths[0])
        yield row
    rollout.close()


def _vllm(workload: Workload, counts: Sequence[int], side: str) -> Iterator[dict[str, Any]]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(side == "vllm-process"))
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from vllm import LLM, SamplingParams

    from placebench.ppo.models import model_config
    from placebench.ppo.rollout.vllm_build import config_folder, draws_by_seed

    batch = workload.batch
    engine = LLM(
        str(config_folder(model_config(workload.model))),
        load_format="dummy",
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=workload.precision,
        max_model_len=batch.max_prompt_length + batch.max_response_length,
        max_num_seqs=max(counts),
        gpu_memory_utilization=0.5,
        enable_prefix_caching=False,
    )
    seeded = draws_by_seed(engine.llm_engine.vllm_config, is_gpu=torch.cuda.is_available())
    kinds = {f"{side} with log-probabilities": {"logprobs": 0}, side: {}}

    def generate(count: int, tokens: int, kind: str) -> float:
        parameters = [
            SamplingParams(
                max_tokens=tokens,
                ignore_eos=True,
                detokenize=False,
                seed=seed if seeded else None,
                **kinds[kind],
            )
            for seed in range(count)
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in _prompts(workload, count)]
        begin = time.perf_counter()
        engine.generate(prompts, parameters, use_tqdm=False)
        return time.perf_counter() - begin

    for count in counts:
        for kind in kinds:
            yield _measured(generate, kind, count, workload)
    engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
