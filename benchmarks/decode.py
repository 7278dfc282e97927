"""Decoding in the rollout phase beside vLLM alone, on one device, in turn.

    python benchmarks/decode.py --model qwen2.5-1.5b --sequences 64 [--set key=value …]

Both sides generate for the same number of prompts of the same length, every response of full length, with random
weights of the same shape: `rollout` through the job's backend, which keeps the log-probability of every token, `vllm`
through an engine as vLLM sets it up by itself, with the same seeds, and with the same request for
log-probabilities and without. Each side has a process of its own, started in turn `--pairs` times; every kind of
request is generated for three times and the median of the last two counts. Prints the tokens/s and their ratios.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from typing import TypedDict

import click
import numpy as np

from placebench.spec.config import parse_settings
from placebench.spec.shapes import model_shape
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload

REPEATS = 3


class Side(TypedDict):
    """What one start of a side measured.

    Attributes:
        start: seconds until it could generate.
        seconds: of every generation, by the kind of request.
    """

    start: float
    seconds: dict[str, list[float]]


@click.command()
@click.option("--model", default="qwen2.5-1.5b", show_default=True, help="A preset or the folder of a saved model.")
@click.option("--sequences", default=64, show_default=True, type=click.IntRange(1), help="Prompts of the device.")
@click.option("--pairs", default=1, show_default=True, type=click.IntRange(1), help="Starts of each side.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
@click.option("--side", type=click.Choice(["rollout", "vllm"]), hidden=True)
def main(model: str, sequences: int, pairs: int, settings: tuple[str, ...], side: str | None) -> None:
    """Compare the tokens/s of the rollout phase with those of vLLM alone."""
    content = {**parse_settings(settings), "model": model}
    workload = build_workload(content)
    if side:
        measure = _rollout if side == "rollout" else _vllm
        print(json.dumps(measure(workload, sequences)))
        return
    ratios: dict[str, list[float]] = {}
    for pair in range(1, pairs + 1):
        rates: dict[str, float] = {}
        for name in ("rollout", "vllm") if pair % 2 else ("vllm", "rollout"):
            found = _start(name)
            for kind, seconds in found["seconds"].items():
                rates[kind] = sequences * workload.batch.max_response_length / statistics.median(seconds[1:])
                print(f"pair {pair}  {kind:28} {rates[kind]:10,.0f} tokens/s", flush=True)
            print(f"pair {pair}  {name + ' start':28} {found['start']:10.1f} s", flush=True)
        for kind, rate in rates.items():
            ratios.setdefault(kind, []).append(rates["rollout"] / rate)
    for kind, values in ratios.items():
        if kind != "rollout":
            print(f"rollout / {kind}: {statistics.median(values):.3f} ({', '.join(f'{one:.3f}' for one in values)})")


def _start(side: str) -> Side:
    command = [sys.executable, *sys.argv, "--side", side]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with {done.returncode}; see its output above")
    result: Side = json.loads(done.stdout.splitlines()[-1])
    return result


def _prompts(workload: Workload, sequences: int) -> list[list[int]]:
    shape = model_shape(workload.model)
    random = np.random.default_rng(0)
    tokens: list[list[int]] = random.integers(
        1, shape.vocab_size, (sequences, workload.batch.max_prompt_length)
    ).tolist()
    return tokens


def _rollout(workload: Workload, sequences: int) -> Side:
    import torch
    import torch.distributed as dist

    from placebench.ppo.models import model_config
    from placebench.ppo.rollout.base import SamplingSettings
    from placebench.ppo.rollout.vllm import VllmRollout

    begin = time.perf_counter()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo", store=store, rank=0, world_size=1)
    workload = workload.model_copy(
        update={"batch": workload.batch.model_copy(update={"size": sequences, "mini_batch_size": sequences})}
    )
    rollout = VllmRollout(model_config(workload.model), kind, workload, 1)
    start = time.perf_counter() - begin
    settings = SamplingSettings(1.0, 1.0, True, 0)
    longest = [workload.batch.max_response_length] * sequences
    seconds = []
    for repeat in range(REPEATS):
        prompts = _prompts(workload, sequences)
        if repeat:
            rollout.sleep()
            rollout.wake_up()
        begin = time.perf_counter()
        rollout.generate(prompts, longest, list(range(sequences)), settings)
        seconds.append(time.perf_counter() - begin)
    rollout.close()
    return {"start": start, "seconds": {"rollout": seconds}}


def _vllm(workload: Workload, sequences: int) -> Side:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    begin = time.perf_counter()
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
        gpu_memory_utilization=0.5,
        enable_prefix_caching=False,
    )
    start = time.perf_counter() - begin
    seeded = draws_by_seed(engine.llm_engine.vllm_config, is_gpu=torch.cuda.is_available())
    kinds = {"vllm with log-probabilities": {"logprobs": 0}, "vllm": {}}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for kind, settings in kinds.items():
        parameters = [
            SamplingParams(
                max_tokens=batch.max_response_length,
                ignore_eos=True,
                detokenize=False,
                seed=seed if seeded else None,
                **settings,
            )
            for seed in range(sequences)
        ]
        for _ in range(REPEATS):
            prompts = [{"prompt_token_ids": prompt} for prompt in _prompts(workload, sequences)]
            begin = time.perf_counter()
            engine.generate(prompts, parameters, use_tqdm=False)
            seconds[kind].append(time.perf_counter() - begin)
    return {"start": start, "seconds": seconds}


if __name__ == "__main__":
    main()
