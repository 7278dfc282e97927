"""What launches of this checkout take to start and to stop, beside those of another checkout.

    python benchmarks/starting.py --other CHECKOUT [--pairs 5] [--devices cpu:2] [--placements standard,split]

Each run is `placebench run --rounds 1` of few steps; runs of the two checkouts take turns, the order alternating.
Printed are medians, the other checkout's first, and the ratio of the pairs, this over the other, with its 95 %
interval: of the first launch's seconds before its first step, of those of later launches, of the seconds after the last
step, of cleaning up, and of the whole command. On a busy machine the ratio of pairs says more than the medians.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median

import click

from placebench.compare.statistics.estimates import compare
from placebench.compare.statistics.verdicts import Better

HERE = Path(__file__).resolve().parents[1]


@click.command()
@click.option("--other", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--pairs", default=5, show_default=True, type=click.IntRange(2), help="Runs of each checkout.")
@click.option("--devices", default="cpu:2", show_default=True)
@click.option("--placements", default="standard,split", show_default=True)
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Of the workload, as placebench run has it."
)
def main(other: Path, pairs: int, devices: str, placements: str, settings: tuple[str, ...]) -> None:
    """Time launches of this checkout beside those of the OTHER one."""
    words = ["--devices", devices, "--placements", placements, "--steps", "2", "--warmup-steps", "1"]
    words += [word for setting in settings for word in ("--set", setting)]
    found: list[list[Mapping[str, float]]] = [[], []]
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            found[side].append(take((other.resolve(), HERE)[side], words))
    for name in found[0][0]:
        click.echo(line(name, [one[name] for one in found[0]], [one[name] for one in found[1]]))


def take(checkout: Path, words: Sequence[str]) -> dict[str, float]:
    """Run a checkout's command and tell what it took, in seconds by name."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "placebench", "run", "--rounds", "1", "--out", folder, *words],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            _, said = process.communicate()
        took = time.perf_counter() - start
        if process.returncode:
            raise click.ClickException(f"{checkout}: placebench run ended with {process.returncode}: {said.strip()}")
        (file,) = Path(folder).glob("*/run.json")
        walls = [launch["wall"] for launch in json.loads(file.read_text())["launches"]]
    first, *later = [wall["before_steps_s"] for wall in walls]
    return {
        "first start": first,
        **({"later starts": mean(later)} if later else {}),
        "after steps": mean(wall["after_steps_s"] for wall in walls),
        "cleaning up": mean(wall["cleanup_s"] for wall in walls),
        "command": took,
    }


def line(name: str, before: Sequence[float], after: Sequence[float]) -> str:
    """A row of figures: medians of both sides, and their ratio."""
    ratio = compare(dict(enumerate(before)), dict(enumerate(after)), Better.LESS)
    assert ratio, "seconds are above 0"
    found = f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    return f"{name:13} {median(before):7.2f} → {median(after):7.2f} s, ratio {found}"


if __name__ == "__main__":
    main()
