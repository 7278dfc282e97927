"""Decoding in the rollout phase beside vLLM alone in all of its own ways, on one device, in one run.

    python benchmarks/decode.py --model qwen2.5-1.5b --sequences 64 --sequences 256 [--set key=value …]

All sides generate for the same number of prompts of the same length, every response of full length, with random
weights of the same shape: `rollout` as the job's backend does it; the others by `LLM.generate` with an engine as vLLM
sets it up by itself, in the caller's process or in one of its own, with asynchronous scheduling or without. Each is
asked for the log-probability of every token and for none.

All sides start at once, which costs the least time of a GPU. When all engines are there, one generates at a time while
the others wait, in turn and back, `--pairs` times.

A token step is what a generation and one of an eighth of its length differ by, over the tokens that they differ by, so
that prompts do not count. Of the repeats the fastest counts: whatever else the host does only slows one down.
`kernels` is the time of a token step of the rollout with a kernel on the GPU, from traces of both lengths after all
that is timed, of the fewest `--tokens`.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from placebench.spec.config import parse_settings
from placebench.spec.shapes import model_shape
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import build_workload

ROLLOUT = "rollout"
# Of vLLM alone: whether the engine has a process of its own, and whether it schedules asynchronously.
WAYS = {
    "vllm": (False, True),
    "vllm-process": (True, True),
    "vllm-sync": (False, False),
    "vllm-process-sync": (True, False),
}
Generate = Callable[[int, int, bool], float]
"""Generates for so many prompts, so many tokens each, with log-probabilities or without; returns the seconds taken."""


class Side:
    """A process with one engine, which measures what it is asked for."""

    def __init__(self, model: str, name: str) -> None:
        self.model, self.name = model, name
        self._process = subprocess.Popen(
            [sys.executable, *sys.argv, "--side", name, "--of", model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def answer(self) -> dict[str, Any] | None:
        """The next that it says; None when it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, what: str, sequences: int, tokens: int, log_probs: bool) -> dict[str, Any] | None:
        """A row of what was measured; None when the process has ended."""
        assert self._process.stdin is not None
        try:
            print(json.dumps([what, sequences, tokens, log_probs]), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return None
        row = self.answer()
        if row is None:
            return None
        case = {"model": self.model, "sequences": sequences, "tokens": tokens}
        return case | {"side": self.name, "log_probs": log_probs} | row

    @property
    def has_ended(self) -> bool:
        """Whether its process is over."""
        return self._process.poll() is not None

    def dismiss(self) -> None:
        """Say that nothing more will be asked."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, with a question that it never read
            self._process.stdin.close()

    def end(self, patience_s: float) -> None:
        """Wait for its end, and then end it and all that it has started."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@click.command()
@click.option(
    "--model", "models", multiple=True, default=["qwen2.5-1.5b"], show_default=True, help="Presets or folders."
)
@click.option(
    "--sequences", "counts", multiple=True, default=[64], show_default=True, type=click.IntRange(1), help="Prompts."
)
@click.option(
    "--tokens", "lengths", multiple=True, type=click.IntRange(2), help="Of a response.  [default: the workload's]"
)
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), help="Of vLLM alone; all unless given.")
@click.option("--alone", is_flag=True, help="The rollout alone, without log-probabilities: nothing of vLLM's own.")
@click.option("--pairs", default=1, show_default=True, type=click.IntRange(1), help="Turns of each side.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Of a turn; the fastest counts.")
@click.option("--into", type=click.Path(path_type=Path), help="A file for all rows, as JSON lines.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
@click.option("--side", hidden=True)
@click.option("--of", hidden=True)
def main(
    models: tuple[str, ...],
    counts: tuple[int, ...],
    lengths: tuple[int, ...],
    ways: tuple[str, ...],
    alone: bool,
    pairs: int,
    repeats: int,
    into: Path | None,
    settings: tuple[str, ...],
    side: str | None,
    of: str | None,
) -> None:
    """Compare the rollout phase with vLLM alone: time of a token step, and tokens/s."""
    if side:
        _serve(_workload(settings, str(of), counts, lengths), side, repeats)
        return
    if alone and ways:
        raise click.UsageError("--alone leaves out all of vLLM's own ways, so that --way has nothing to choose from")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    begun = time.monotonic()
    others = () if alone else ways or tuple(WAYS)
    sides = [Side(model, name) for model in models for name in (ROLLOUT, *others)]
    try:
        there = [one for one in sides if one.answer()]
        print(f"{len(there)} of {len(sides)} engines after {time.monotonic() - begun:.0f} s", flush=True)
        with open(into or os.devnull, "w") as stream:
            for model in models:
                mine = [one for one in there if one.model == model]
                asked = lengths or (_workload(settings, model, counts, lengths).batch.max_response_length,)
                _compare(mine, counts, asked, pairs, stream, log_probs=(False,) if alone else (False, True))
        lasted = [one for one in there if not one.has_ended]
    finally:
        for one in sides:
            one.dismiss()
        for one in sides:
            one.end(5)
    if len(lasted) < len(sides):
        raise click.ClickException("not every engine came up and lasted; see above")


def _compare(
    sides: Sequence[Side],
    counts: Sequence[int],
    lengths: Sequence[int],
    pairs: int,
    stream: TextIO,
    *,
    log_probs: Sequence[bool],
) -> None:
    """Measure one model's sides, print each row as it comes and what they tell together.

    Args:
        sides: that take turns.
        counts: of prompts.
        lengths: of responses, in tokens.
        pairs: turns of each side.
        stream: for the rows.
        log_probs: whether they are asked for.
    """
    timed: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def keep(row: dict[str, Any]) -> None:
        print(json.dumps(row), file=stream, flush=True)

    for tokens, count in product(sorted(lengths), sorted(counts, reverse=True)):
        rows = timed[tokens, count] = []
        for pair in range(pairs):
            for side in sides if pair % 2 == 0 else reversed(sides):
                for asked in log_probs:
                    if row := side.ask("time", count, tokens, asked):
                        rows.append(row)
                        keep(row)
                        print(_line(row), flush=True)
        for line in _beside(rows):
            print(line, flush=True)
    for count in sorted(counts, reverse=True):
        for side in sides:
            if side.name == ROLLOUT and (row := side.ask("trace", count, min(lengths), log_probs=False)):
                keep(row)
                for line in _over_kernels(timed[min(lengths), count], row):
                    print(line, flush=True)


def _line(row: dict[str, Any]) -> str:
    name = f"{row['side']} {_asked(row['log_probs'])}"
    rate = row["sequences"] * row["tokens"] / row["whole_s"]
    return f"{_case(row)}  {name:42} {1e3 * row['step_s']:7.2f} ms {rate:10,.0f} tokens/s"


def _beside(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The rollout beside the best of vLLM's own ways, by whole generations."""
    whole: dict[tuple[str, bool], list[float]] = {}
    for row in rows:
        whole.setdefault((row["side"], row["log_probs"]), []).append(row["whole_s"])
    seconds = {key: statistics.median(found) for key, found in whole.items()}
    for (name, log_probs), mine in seconds.items():
        if name != ROLLOUT:
            continue
        start = f"  {_case(rows[0])}, rollout {_asked(log_probs)}:"
        yield f"{start} {rows[0]['sequences'] * rows[0]['tokens'] / mine:,.0f} tokens/s"
        for asked in (False, True):
            alike = {key: found for key, found in seconds.items() if key[0] != ROLLOUT and key[1] == asked}
            if alike:
                best = min(alike, key=lambda key: alike[key])
                yield f"{start} {alike[best] / mine:.3f} × the best of vLLM's own {_asked(asked)}, {best[0]}"


def _over_kernels(timed: Sequence[dict[str, Any]], traced: dict[str, Any]) -> Iterator[str]:
    """The rollout's token step over its kernels, without log-probabilities."""
    steps = [row["step_s"] for row in timed if (row["side"], row["log_probs"]) == (ROLLOUT, False)]
    if steps and (kernels := traced.get("kernels_s")):
        step = statistics.median(steps)
        yield (
            f"  {_case(traced)}: a token step of the rollout {1e3 * step:.2f} ms, its kernels {1e3 * kernels:.2f} ms,"
            f" {step / kernels:.2f} ×"
        )


def _case(row: dict[str, Any]) -> str:
    return f"{row['model']}, {row['sequences']} sequences, {row['tokens']} tokens"


def _asked(log_probs: bool) -> str:
    return f"{'with' if log_probs else 'without'} log-probabilities"


def _workload(settings: Sequence[str], model: str, counts: Sequence[int], lengths: Sequence[int]) -> Workload:
    """With room for the most prompts and the longest responses."""
    workload = build_workload({**parse_settings(settings), "model": model})
    batch = {"size": max(counts), "mini_batch_size": max(counts)}
    if lengths:
        batch["max_response_length"] = max(lengths)
    return workload.model_copy(update={"batch": workload.batch.model_copy(update=batch)})


def _serve(workload: Workload, side: str, repeats: int) -> None:
    """Build a side's engine, say so, and answer requests until there are no more."""
    # What libraries print is none of the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    generate, close = _rollout(workload) if side == ROLLOUT else _vllm(workload, *WAYS[side])
    print('{"ready": true}', file=answers, flush=True)
    for line in sys.stdin:
        what, count, tokens, log_probs = json.loads(line)
        row = (
            _timed(generate, repeats, count, tokens, log_probs) if what == "time" else _traced(generate, count, tokens)
        )
        print(json.dumps(row), file=answers, flush=True)
    close()


def _timed(generate: Generate, repeats: int, count: int, tokens: int, log_probs: bool) -> dict[str, float]:
    part = _part(tokens)
    generate(count, part, log_probs)
    taken = [[generate(count, length, log_probs) for length in (part, tokens)] for _ in range(repeats)]
    short, long = np.min(taken, axis=0)
    return {"step_s": float(long - short) / (tokens - part), "whole_s": float(long)}


def _traced(generate: Generate, count: int, tokens: int) -> dict[str, float]:
    """Without log-probabilities; nothing where there is no GPU."""
    import torch

    from placebench.telemetry.kernels import KernelTrace

    if not torch.cuda.is_available():
        return {}
    trace, part = KernelTrace("cuda"), _part(tokens)
    for length in (part, tokens):
        with trace.phase(length, "gen"):
            generate(count, length, False)
    short, long = (one["kernel_s"] for one in trace.drain())
    return {"kernels_s": (long - short) / (tokens - part)}


def _part(tokens: int) -> int:
    """Tokens of the shorter generation that a token step is worked out from."""
    return max(1, tokens // 8)


def _prompts(workload: Workload, count: int) -> list[list[int]]:
    words = model_shape(workload.model).vocab_size
    tokens: list[list[int]] = (
        np.random.default_rng().integers(1, words, (count, workload.batch.max_prompt_length)).tolist()
    )
    return tokens


def _rollout(workload: Workload) -> tuple[Generate, Callable[[], None]]:
    import torch
    import torch.distributed as dist

    from placebench.host.heap import freeze_heap
    from placebench.ppo.models import model_config
    from placebench.ppo.rollout.base import SamplingSettings
    from placebench.ppo.rollout.vllm import VllmRollout

    device = "cuda" if torch.cuda.is_available() else "cpu"
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    rollout = VllmRollout(model_config(workload.model), device, workload, 1, keeps_prefixes=False)
    freeze_heap()

    def generate(count: int, tokens: int, log_probs: bool) -> float:
        prompts, settings = _prompts(workload, count), SamplingSettings(1.0, 1.0, True, (0,), log_probs)
        begin = time.perf_counter()
        rollout.generate(prompts, [tokens] * count, list(range(count)), settings)
        return time.perf_counter() - begin

    return generate, rollout.close


def _vllm(workload: Workload, own_process: bool, asynchronous: bool) -> tuple[Generate, Callable[[], None]]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(own_process))
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from vllm import LLM, SamplingParams

    from placebench.ppo.models import model_config
    from placebench.ppo.rollout.vllm_build import config_folder, draws_by_seed, kv_cache_bytes

    batch, config, is_gpu = workload.batch, model_config(workload.model), torch.cuda.is_available()
    cache = kv_cache_bytes(config, workload, batch.size)
    # Engines of all sides are on the device at once, so that each takes what it needs alone.
    device_settings: dict[str, Any] = {"enforce_eager": True, "enable_chunked_prefill": False}
    if is_gpu:
        device_settings = {
            "gpu_memory_utilization": (cache + (1 << 30)) / torch.cuda.get_device_properties(0).total_memory
        }
    engine = LLM(
        str(config_folder(config)),
        load_format="dummy",
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=workload.precision,
        max_model_len=batch.max_prompt_length + batch.max_response_length,
        max_num_seqs=batch.size,
        kv_cache_memory_bytes=cache,
        enable_prefix_caching=False,
        async_scheduling=asynchronous,
        **device_settings,
    )
    seeded = draws_by_seed(engine.llm_engine.vllm_config, is_gpu=is_gpu)

    def generate(count: int, tokens: int, log_probs: bool) -> float:
        parameters = [
            SamplingParams(
                max_tokens=tokens,
                ignore_eos=True,
                detokenize=False,
                seed=seed if seeded else None,
                logprobs=0 if log_probs else None,
            )
            for seed in range(count)
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in _prompts(workload, count)]
        begin = time.perf_counter()
        engine.generate(prompts, parameters, use_tqdm=False)
        return time.perf_counter() - begin

    return generate, engine.llm_engine.engine_core.shutdown


if __name__ == "__main__":
    main()
