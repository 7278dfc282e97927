"""TRL beside placebench's own job: GRPO on one device, the same model shape, batch and lengths, tokens/s in one report.

    python benchmarks/trl_beside.py [--model qwen2.5-1.5b] [--devices gpu:1] [--into runs/reference/HOST/trl]

Makes a model of the preset's shape with random weights and prompts of full length, runs `placebench run` under `ddp:1`
and `placebench run --job trl` with an engine of vLLM in the trainer's process, both with vLLM's sleep and without
checkpointed activations, all else as each of them has it by default, and compares the two. Into a folder go the report
of both, what `benchmarks/reference.py` keeps of each run, and what was seen on the device: whom torch, the driver and
the spans say was there, and the device's load by phase. Needs `placebench[run,vllm]` and trl 1.16.
"""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from reference import facts

from placebench.compare.measure.placements import RunSide
from placebench.compare.measure.sides import run_sides
from placebench.record.folder import read_jsonl
from placebench.record.run_file import RunFile
from placebench.spec.shapes import PRESETS
from placebench.tasks.tokenizer import CHARACTERS

HERE = Path(__file__).parent
OWN, TRL = "placebench", "trl"
END = "<end>"
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
ON_CPU = {
    **OFFLINE,
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True)
class Asked:
    """What both do."""

    model: str
    """Preset of the shape."""
    devices: str
    """The one device."""
    batch: int
    """Sequences a step."""
    group: int
    """Responses to a prompt."""
    micro_batch: int
    """Sequences in one pass of training."""
    prompt: int
    """Tokens of a prompt."""
    response: int
    """Tokens of a response."""

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.devices.startswith("gpu")


@click.command()
@click.option("--model", type=click.Choice([*PRESETS]), default="qwen2.5-1.5b", show_default=True, help="The shape.")
@click.option("--devices", default="gpu:1", show_default=True, help="One device: gpu:1 or cpu:1.")
@click.option("--batch-size", "batch", default=64, show_default=True, help="Sequences a step.")
@click.option("--group-size", "group", default=8, show_default=True, help="Responses to a prompt.")
@click.option("--micro-batch", default=4, show_default=True, help="Sequences in one pass of training.")
@click.option("--prompt-length", "prompt", default=512, show_default=True, help="Tokens of a prompt.")
@click.option("--response-length", "response", default=512, show_default=True, help="Tokens of a response.")
@click.option("--steps", default=6, show_default=True, help="Steps of a launch.")
@click.option("--warmup-steps", "warmup", default=2, show_default=True, help="First steps, left out of the numbers.")
@click.option("--rounds", default=1, show_default=True, help="Launches of each.")
@click.option(
    "--work", type=click.Path(path_type=Path), default=Path("runs/trl-beside"), help="Folder of model and runs."
)
@click.option("--into", type=click.Path(path_type=Path), help="Folder to make.  [default: of the work]")
def main(steps: int, warmup: int, rounds: int, work: Path, into: Path | None, **asked: Any) -> None:
    """Run both, and write their common report."""
    both = Asked(**asked)
    into = into or work / "kept"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the run under way ends, too
    shutil.rmtree(work, ignore_errors=True)
    # In a process of its own, which gives the device's memory back before anything is measured.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        apart.submit(write_model, work / "model", both.model, is_gpu=both.is_gpu).result()
    write_prompts(work / "prompts.jsonl", count=both.batch, length=both.prompt)
    common = ["--devices", both.devices, "--rounds", str(rounds), "--steps", str(steps), "--warmup-steps", str(warmup)]
    common += ["--sample-hz", "10", "--out", str(work / "runs")]
    placebench("run", "--name", OWN, *common, *own_options(both))
    placebench("run", "--name", TRL, *common, "--job", TRL, "--placements", "standard", "--", *trl_command(work, both))
    runs = {name: next((work / "runs").glob(f"*-{name}")) for name in (OWN, TRL)}
    shutil.rmtree(into, ignore_errors=True)
    words = [f"{name}={run}" for name, run in runs.items()]
    placebench("compare", *words, "--out", str(into))
    for name, run in runs.items():
        subprocess.run([sys.executable, HERE / "reference.py", run, "--into", into / name], check=True)
    (into / "report.html").unlink()
    for png in (into / "plots").glob("*.png"):
        png.unlink()
    sides = {name: run_sides(run)[0] for name, run in runs.items()}
    lines = [*_commands(into, runs), *seen_on_device(sides)]
    (into / "commands.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def own_options(asked: Asked) -> list[str]:
    """What placebench's own job is told."""
    settings = {
        "algorithm.name": "grpo",
        "batch.group_size": asked.group,
        "batch.micro_batch_tokens": asked.micro_batch * (asked.prompt + asked.response),
        "data.fill_prompts": "true",
        "rollout.backend": "vllm",
        "trace_kernels": "false",
    }
    options = ["--placements", "ddp:1", "--model", asked.model, "--ignore-eos"]
    options += ["--batch-size", str(asked.batch), "--mini-batch-size", str(asked.batch)]
    options += ["--max-prompt-length", str(asked.prompt), "--max-response-length", str(asked.response)]
    return [*options, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def trl_command(work: Path, asked: Asked) -> list[str]:
    """The user's command: one optimizer step on all sequences, with the loss and the sampling of placebench's GRPO."""
    options: Mapping[str, object] = {
        "model_name_or_path": work / "model",
        "dataset_name": work / "prompts.jsonl",
        "use_vllm": "true",
        "vllm_enable_sleep_mode": "true" if asked.is_gpu else "false",
        "vllm_max_model_length": asked.prompt + asked.response,
        "generation_kwargs": json.dumps({"ignore_eos": True, "detokenize": False}),
        "max_completion_length": asked.response,
        "num_generations": asked.group,
        "per_device_train_batch_size": asked.micro_batch,
        "gradient_accumulation_steps": asked.batch // asked.micro_batch,
        "gradient_checkpointing": "false",
        "beta": 0.001,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "bf16": "true",
        **({} if asked.is_gpu else {"use_cpu": "true"}),
    }
    words = [str(word) for key, value in options.items() for word in (f"--{key}", value)]
    return [Path(sys.executable).name, str(HERE / "trl_grpo.py"), *words]


def write_model(folder: Path, preset: str, *, is_gpu: bool) -> None:
    """A model of a preset's shape with random weights, and a tokenizer of one token a character."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    words = {END: 0} | {character: place for place, character in enumerate(CHARACTERS, start=1)}
    plain = Tokenizer(models.WordLevel(words, unk_token=END))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    fast_tokenizer: Any = PreTrainedTokenizerFast
    fast_tokenizer(tokenizer_object=plain, eos_token=END, pad_token=END).save_pretrained(folder)
    shape = PRESETS[preset]
    config = AutoConfig.for_model(shape.model_type, **shape.config(), eos_token_id=0, pad_token_id=0, bos_token_id=None)
    auto_model: Any = AutoModelForCausalLM
    with torch.device("cuda" if is_gpu else "cpu"):
        model = auto_model.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def write_prompts(path: Path, *, count: int, length: int) -> None:
    """Prompts of so many tokens; the tokenizer drops spaces."""
    drawn = random.Random(0)
    prompts = ("".join(drawn.choices(CHARACTERS.replace(" ", ""), k=length)) for _ in range(count))
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")


def placebench(*words: str) -> None:
    """Run a command of placebench; it must end well."""
    print(shlex.join(("placebench", *words)), flush=True)
    env = {**os.environ, **OFFLINE}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    if any(word.startswith("cpu") for word in words):
        env |= ON_CPU
    subprocess.run([sys.executable, "-m", "placebench", *words], check=True, env=env)


def seen_on_device(sides: Mapping[str, RunSide]) -> Iterator[str]:
    """Who was on the device in the first launch of each, and how busy it was in each phase, as a Markdown table."""
    columns = [dict(_seen(side)) for side in sides.values()]
    yield from ("", "## On the device", "", f"| | {' | '.join(sides)} |", f"|---|{'---|' * len(sides)}")
    for row in dict.fromkeys(name for column in columns for name in column):
        yield f"| {row} | {' | '.join(column.get(row, '–') for column in columns)} |"
    yield from ("", f"Load is {next(iter(sides.values())).load_signal} of the measured steps, its mean over time.")


def _seen(side: RunSide) -> Iterator[tuple[str, str]]:
    launch, labels = side.launches[0], side.run.labels
    (device,) = side.placement.devices
    said = [
        line["device"]
        for path in launch.trial.attached.glob("*.jsonl")
        for line in read_jsonl(path)
        if "device" in line
    ]
    yield "device of the plan", device if device == labels[device] else f"{labels[device]}, {device}"
    yield "device that torch names in the job's processes", _listed(sorted(set(said)))
    spans = launch.spans[launch.spans["device"] == device]
    pids = sorted({int(pid) for pid in spans["pid"].dropna()})
    yield "processes with spans there", _listed(pids)
    most = launch.device_processes.groupby("pid")["memory_bytes"].max()
    yield "processes that NVML has there", _listed(f"{pid} ({size / 2**30:.1f} GiB)" for pid, size in most.items())
    for arrangement in side.arrangements:
        for row in arrangement.seen.itertuples():
            yield f"{row.role}: share of the steps at work there", f"{100 * float(str(row.share)):.0f} %"
    first = side.samples[(side.samples["round"] == launch.round) & (side.samples["device"] == device)]
    for row in first.itertuples():
        yield f"load in {row.phase}", f"{100 * float(str(row.load)):.0f} % ({float(str(row.span_s)):.1f} s)"


def _listed(found: Sequence[object] | Iterator[object]) -> str:
    return ", ".join(map(str, found)) or "–"


def _commands(into: Path, runs: Mapping[str, Path]) -> Iterator[str]:
    arguments = shlex.join(["python", "benchmarks/trl_beside.py", *sys.argv[1:]])
    yield from (f"# {into.name}", "", "```bash", arguments, "```", "")
    yield from facts(RunFile.read(runs[OWN] / "run.json"))
    yield f"- the runs: [{OWN}]({OWN}/commands.md), [{TRL}]({TRL}/commands.md)"


if __name__ == "__main__":
    main()
