"""What launches of this checkout take, from their start to their end, beside those of another checkout.

    python benchmarks/starting.py --other CHECKOUT [--pairs 5] [--devices cpu:2] [--placements standard,split]
    python benchmarks/starting.py --other CHECKOUT --side-by-side --cold --rounds 3 --steps 4 --devices gpu:2 \
        --placements standard --set model=qwen2.5-1.5b --into FOLDER

Each run is `placebench run` of few steps; runs of the two checkouts take turns, the order alternating, or with
`--side-by-side` run at the same time, each on half of the devices and of the cores, which they exchange from pair to
pair. With `--cold` every run begins with empty caches of what is compiled.

Printed are medians, the other checkout's first, and the ratio of the pairs, this over the other, with its 95 %
interval: of the first launch's seconds before its first step, of those of later launches, of the seconds after the last
step, of cleaning up, of a step, its `gen` and its updates, of the share of the command's time in measured steps, and of
the whole command. On a busy machine the ratio of pairs says more than the medians.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import click

from placebench.compare.statistics.estimates import compare
from placebench.compare.statistics.verdicts import Better
from placebench.errors import PlacebenchError
from placebench.host.devices import discover
from placebench.host.machine import usable_cores
from placebench.record.writing import read_jsonl
from placebench.spec.devices import parse_devices

HERE = Path(__file__).resolve().parents[1]
# Where libraries keep what they have compiled.
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")


@dataclass(frozen=True)
class Place:
    """What a run has for itself."""

    devices: str
    """As `--devices` has them."""
    command: tuple[str, ...] = ()
    """What stands before its own."""
    env: tuple[tuple[str, str], ...] = ()


@click.command()
@click.option("--other", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--pairs", default=5, show_default=True, type=click.IntRange(2), help="Runs of each checkout.")
@click.option("--devices", default="cpu:2", show_default=True, help="In all.")
@click.option("--placements", default="standard,split", show_default=True)
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(1), help="Of a run.")
@click.option("--steps", default=2, show_default=True, type=click.IntRange(2), help="Of a launch.")
@click.option("--cold", is_flag=True, help="Begin every run with empty caches.")
@click.option("--side-by-side", is_flag=True, help="Both runs of a pair at once.")
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Keep the runs there.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Of the workload, as placebench run has it."
)
def main(
    other: Path,
    pairs: int,
    devices: str,
    placements: str,
    rounds: int,
    steps: int,
    cold: bool,
    side_by_side: bool,
    into: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Time launches of this checkout beside those of the OTHER one."""
    words = ["--placements", placements, "--rounds", str(rounds), "--steps", str(steps), "--warmup-steps", "1"]
    words += [word for setting in settings for word in ("--set", setting)]
    checkouts = (other.resolve(), HERE)
    places = halves(devices) if side_by_side else (Place(devices),)
    found: list[list[Mapping[str, float]]] = [[], []]
    with tempfile.TemporaryDirectory() as folder:
        kept = (into or Path(folder)).absolute()
        for pair in range(pairs):
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            runs = [
                partial(take, checkouts[side], words, place, kept / f"{pair + 1}-{('other', 'this')[side]}", cold)
                for side, place in zip(order, places * (2 // len(places)), strict=True)
            ]
            for side, taken in zip(order, at_once(runs) if side_by_side else (run() for run in runs), strict=True):
                found[side].append(taken)
    for name in found[0][0]:
        click.echo(line(name, [one[name] for one in found[0]], [one[name] for one in found[1]]))


def at_once(runs: Sequence[Callable[[], Mapping[str, float]]]) -> list[Mapping[str, float]]:
    """What several runs took, at the same time."""
    with ThreadPoolExecutor(len(runs)) as pool:
        running = [pool.submit(run) for run in runs]
    return [one.result() for one in running]


def halves(devices: str) -> tuple[Place, Place]:
    """Two places, each with half of the devices and of the cores."""
    try:
        there = discover(parse_devices(devices))
    except PlacebenchError as error:
        raise click.ClickException(str(error)) from None
    half, odd = divmod(len(there), 2)
    cores = usable_cores()
    if odd or len(cores) < 2:
        raise click.ClickException(f"--side-by-side: {devices} on {len(cores)} cores has no two halves")

    def place(number: int) -> Place:
        mine = there[number * half :][:half]
        names = ",".join(device.id for device in mine)
        on = cores[number * (len(cores) // 2) :][: len(cores) // 2]
        held = ("taskset", "--cpu-list", ",".join(map(str, on)))
        kind = mine[0].kind
        return Place(f"{kind}:{half}", held, (("CUDA_VISIBLE_DEVICES", names),) if kind == "gpu" else ())

    return place(0), place(1)


def take(checkout: Path, words: Sequence[str], place: Place, into: Path, cold: bool) -> dict[str, float]:
    """Run a checkout's command and tell what it took, in seconds by name."""
    into.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as caches:
        empty = {name: str(Path(caches, name)) for name in CACHES} if cold else {}
        start = time.perf_counter()
        command = [sys.executable, "-m", "placebench", "run", "--out", str(into), "--devices", place.devices]
        process = subprocess.Popen(
            [*place.command, *command, *words],
            cwd=checkout,
            env={**os.environ, **empty, **dict(place.env), "PYTHONPATH": python_path(checkout)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            _, said = process.communicate()
        took = time.perf_counter() - start
    if process.returncode:
        raise click.ClickException(f"{checkout}: placebench run ended with {process.returncode}: {said.strip()}")
    (run,) = into.glob("*/run.json")
    walls = [launch["wall"] for launch in json.loads(run.read_text())["launches"]]
    first, *later = [wall["before_steps_s"] for wall in walls]
    steps = [row["metrics"] for path in run.parent.glob("trials/*/steps.jsonl") for row in measured(path)]
    updates = [sum(row.get(f"timing_s/update_{role}", 0.0) for role in ("actor", "critic")) for row in steps]
    return {
        "first start": first,
        **({"later starts": mean(later)} if later else {}),
        "after steps": mean(wall["after_steps_s"] for wall in walls),
        "cleaning up": mean(wall["cleanup_s"] for wall in walls),
        "step": mean(row["timing_s/step"] for row in steps),
        "gen": mean(row["timing_s/gen"] for row in steps),
        "updates": mean(updates),
        "share in steps": sum(row["timing_s/step"] for row in steps) / took,
        "command": took,
    }


def measured(path: Path) -> list[dict[str, Any]]:
    """The steps of a launch but for the first, which warms up."""
    return [row for row in read_jsonl(path) if row["step"] > 1]


def python_path(checkout: Path) -> str:
    """The checkout first, so that its placebench counts, and what else there is."""
    return os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))


def line(name: str, before: Sequence[float], after: Sequence[float]) -> str:
    """A row of figures: medians of both sides, and their ratio."""
    ratio = compare(dict(enumerate(before)), dict(enumerate(after)), Better.LESS)
    assert ratio, "seconds are above 0"
    found = f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    unit = "  " if name == "share in steps" else " s"
    return f"{name:14} {median(before):7.2f} → {median(after):7.2f}{unit}, ratio {found}"


if __name__ == "__main__":
    main()
