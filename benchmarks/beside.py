"""A framework's job beside placebench's own: what the benchmarks share that compare the two.

Both run GRPO on one device or PPO on several, with the same model shape, batch and lengths, without checkpointed
activations, and with an engine of vLLM that sleeps while the device trains; all else is as each of them has it by
default. Into a folder go the report of both, what `benchmarks/reference.py` keeps of each run, and what was seen on a
single device: whom torch, the driver and the spans say was there, and the device's load by phase.
"""

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from reference import facts

from placebench.compare.measure.placements import RunSide
from placebench.compare.measure.sides import run_sides
from placebench.record.run_file import RunFile
from placebench.record.writing import read_jsonl
from placebench.spec.shapes import PRESETS
from placebench.tasks.tokenizer import CHARACTERS

HERE = Path(__file__).parent
OWN = "placebench"
END = "<end>"
# Exit code of a run that its time limit has ended.
TIME_IS_OVER = 124
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
ON_CPU = {
    **OFFLINE,
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What both do."""

    model: str
    """Preset of the shape, the critic's too."""
    devices: str
    """The device or devices."""
    algorithm: str = "grpo"
    """Or ppo, with a critic."""
    placements: str = "standard"
    """Of the framework."""
    own_placements: str | None = None
    """Of placebench's own, with a critic; None for the same ones."""
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
    steps: int
    """Steps of a launch."""
    warmup: int
    """First steps, left out of the numbers."""
    rounds: int
    """Launches of each."""
    own_rounds: int | None = None
    """Launches of placebench's own; None for as many, 0 for the framework alone."""
    time_limit: int | None = None
    """Seconds of both runs, after which what the framework's has counts; None for no limit."""

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.devices.startswith("gpu")

    @property
    def device_count(self) -> int:
        """How many devices there are."""
        return int(self.devices.partition(":")[2].partition("@")[0])

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained."""
        return self.algorithm == "ppo"

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens in one pass of training."""
        return self.micro_batch * (self.prompt + self.response)


def asking(*, model: str, length: int, steps: int, work: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Options of a command for the fields of `Asked`, and for the folders `work` and `into`; given are defaults."""
    folder = click.Path(path_type=Path)
    options = [
        click.option("--model", type=click.Choice([*PRESETS]), default=model, show_default=True, help="The shape."),
        click.option("--devices", default="gpu:1", show_default=True, help="As gpu:1 or cpu:1."),
        click.option("--batch-size", "batch", default=64, show_default=True, help="Sequences a step."),
        click.option("--group-size", "group", default=8, show_default=True, help="Responses to a prompt."),
        click.option("--micro-batch", default=4, show_default=True, help="Sequences in one pass of training."),
        click.option("--prompt-length", "prompt", default=length, show_default=True, help="Tokens of a prompt."),
        click.option("--response-length", "response", default=length, show_default=True, help="Tokens of a response."),
        click.option("--steps", default=steps, show_default=True, help="Steps of a launch."),
        click.option("--warmup-steps", "warmup", default=2, show_default=True, help="First steps, left out."),
        click.option("--rounds", default=1, show_default=True, help="Launches of each."),
        click.option("--own-rounds", type=click.IntRange(0), help="Launches of placebench's.  [default: as many]"),
        click.option("--time-limit", type=click.IntRange(1), help="Seconds of both runs in all."),
        click.option("--work", type=folder, default=Path(work), show_default=True, help="Folder of model and runs."),
        click.option("--into", type=folder, help="Folder to make.  [default: of the work]"),
    ]

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def begin(asked: Asked, work: Path) -> None:
    """Make the folder of the work, with the model in it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the run under way ends, too
    shutil.rmtree(work, ignore_errors=True)
    # In a process of its own, which gives the device's memory back before anything is measured.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
        apart.submit(write_model, work / "model", asked.model, is_gpu=asked.is_gpu).result()


def measure(
    asked: Asked, job: str, command: Sequence[str], work: Path, into: Path | None, env: Mapping[str, str] | None = None
) -> None:
    """Run placebench's own job and a framework's, and write their common report, or the framework's alone.

    Args:
        asked: what both do.
        job: the framework.
        command: what starts it.
        work: the folder of model and runs.
        into: the folder to make, one of the work's own where there is none.
        env: variables of the framework's run.
    """
    into, begun = into or work / "kept", time.monotonic()
    common = ["--devices", asked.devices, "--steps", str(asked.steps), "--warmup-steps", str(asked.warmup)]
    common += ["--sample-hz", "10", "--out", str(work / "runs")]
    own_rounds = asked.rounds if asked.own_rounds is None else asked.own_rounds
    if own_rounds:
        placebench("run", "--name", OWN, *common, "--rounds", str(own_rounds), *own_options(asked))
    common += ["--rounds", str(asked.rounds)]
    if asked.time_limit:
        left = int(asked.time_limit - (time.monotonic() - begun))
        if left < 1:
            raise SystemExit(f"nothing is left of the {asked.time_limit} s for {job}; give --time-limit more")
        common += ["--time-limit", str(left)]
    placements = ("--placements", asked.placements)
    placebench("run", "--name", job, *common, "--job", job, *placements, "--", *command, env=env)
    runs = {name: next((work / "runs").glob(f"*-{name}")) for name in ((OWN, job) if own_rounds else (job,))}
    shutil.rmtree(into, ignore_errors=True)
    if not own_rounds:
        subprocess.run([sys.executable, HERE / "reference.py", runs[job], "--into", into], check=True)
        return
    placebench("compare", *_compared(runs), "--out", str(into))
    for name, run in runs.items():
        subprocess.run([sys.executable, HERE / "reference.py", run, "--into", into / name], check=True)
    (into / "report.html").unlink()
    for png in (into / "plots").glob("*.png"):
        png.unlink()
    sides = {name: run_sides(run)[0] for name, run in runs.items()}
    lines = [*_commands(into, runs)]
    if all(len(side.placement.devices) == 1 for side in sides.values()):
        lines += seen_on_device(sides)
    (into / "commands.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _compared(runs: Mapping[str, Path]) -> Iterator[str]:
    """Every placement of each run as a side of a comparison, under the run's name where it has one."""
    for name, run in runs.items():
        placements = [one.name for one in RunFile.read(run / "run.json").placements]
        for placement in placements:
            label = name if len(placements) == 1 else f"{name} {placement}"
            yield f"{label}={run}:{placement}"


def own_options(asked: Asked) -> list[str]:
    """What placebench's own job is told."""
    settings = {
        "algorithm.name": asked.algorithm,
        "batch.group_size": 1 if asked.has_critic else asked.group,
        "batch.micro_batch_tokens": asked.micro_batch_tokens,
        "data.fill_prompts": "true",
        "rollout.backend": "vllm",
        "trace_kernels": "false",
    }
    # A model without a critic needs no shards on one device.
    placements = (asked.own_placements or asked.placements) if asked.has_critic else "ddp:1"
    options = ["--placements", placements, "--model", asked.model, "--ignore-eos"]
    options += ["--batch-size", str(asked.batch), "--mini-batch-size", str(asked.batch)]
    options += ["--max-prompt-length", str(asked.prompt), "--max-response-length", str(asked.response)]
    return [*options, *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


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


def made_up_prompts(count: int, length: int) -> list[str]:
    """Prompts of so many tokens; the tokenizer drops spaces."""
    drawn = random.Random(0)
    return ["".join(drawn.choices(CHARACTERS.replace(" ", ""), k=length)) for _ in range(count)]


def placebench(*words: str, env: Mapping[str, str] | None = None) -> None:
    """Run a command of placebench; it must end well, or where its time is over."""
    print(shlex.join(("placebench", *words)), flush=True)
    variables = {**os.environ, **OFFLINE}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    if any(word.startswith("cpu") for word in words):
        variables |= ON_CPU
    command = [sys.executable, "-m", "placebench", *words]
    done = subprocess.run(command, check=False, env={**variables, **(env or {})})
    if done.returncode not in (0, TIME_IS_OVER):
        raise SystemExit(done.returncode)


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
    arguments = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    yield from (f"# {into.name}", "", "```bash", arguments, "```", "")
    yield from facts(RunFile.read(runs[OWN] / "run.json"))
    yield "- the runs: " + ", ".join(f"[{name}]({name}/commands.md)" for name in runs)
