"""What the commands that a user waits for at the screen take, in one checkout beside another.

    python benchmarks/reporting.py RUN --before CHECKOUT [--pairs 9]

Each command is a fresh process of this interpreter and takes turns with that of the other checkout, the order
alternating, each on a copy of the run of its own. Printed are medians of CPU and wall seconds and the median of the
pairs' ratios, after over before, with the range of the middle half. On a busy machine CPU seconds say more.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import click

HERE = Path(__file__).resolve().parents[1]
COMMANDS: Mapping[str, Sequence[str]] = {
    "report": ("-m", "placebench", "report", "{run}"),
    "show": ("-m", "placebench", "show", "{run}"),
    "--help": ("-m", "placebench", "--help"),
    "import": ("-c", "import placebench"),
}


@dataclass(frozen=True)
class Taken:
    """What one process took."""

    cpu: float
    """Seconds of user and system time, those of its children included."""
    wall: float
    """Seconds from its start to its end."""


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--before", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--pairs", default=9, show_default=True, type=click.IntRange(2), help="Processes of each side.")
@click.option("--command", "names", multiple=True, type=click.Choice([*COMMANDS]), help="Only these.  [default: all]")
def main(run: Path, before: Path, pairs: int, names: tuple[str, ...]) -> None:
    """Time commands of this checkout beside those of the one BEFORE, on RUN, the folder of a run."""
    with tempfile.TemporaryDirectory() as scratch:
        sides = [(checkout.resolve(), Path(scratch) / name) for name, checkout in (("a", before), ("b", HERE))]
        for _, copy in sides:
            shutil.copytree(run, copy)
        for name in names or COMMANDS:
            for side in sides:
                take(name, *side)  # bytecode and fonts are cached by it, and `show` finds a summary
            found: list[list[Taken]] = [[], []]
            for pair in range(pairs):
                for place in (0, 1) if pair % 2 == 0 else (1, 0):
                    found[place].append(take(name, *sides[place]))
            print(line(name, *found), flush=True)


def take(name: str, checkout: Path, run: Path) -> Taken:
    """Run a command of a checkout and tell what it took."""
    words = [word.format(run=run) for word in COMMANDS[name]]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{checkout}: placebench {name} ended with {process.returncode}")
    return Taken(usage.ru_utime + usage.ru_stime, time.perf_counter() - start)


def line(name: str, before: Sequence[Taken], after: Sequence[Taken]) -> str:
    """A row of figures: medians of both sides, and of their ratio."""
    parts = [f"{name:8}"]
    for kind in ("cpu", "wall"):
        sides = [[getattr(one, kind) for one in side] for side in (before, after)]
        ratios = [second / first for first, second in zip(*sides, strict=True)]
        low, _, high = quantiles(ratios, n=4)
        parts.append(
            f"{kind} {median(sides[0]):6.2f} → {median(sides[1]):5.2f} s, ratio {median(ratios):.2f}"
            f" ({low:.2f} to {high:.2f})"
        )
    return "   ".join(parts)


if __name__ == "__main__":
    main()
