#!/usr/bin/env python3
"""How long it takes from the command to the refusal of a layout that cannot be.

Each layout of tests/spec/impossible_layouts.yaml is given to a fresh `placebench run --dry-run`; the time is that of
the whole process, interpreter and imports included: wall time, and CPU time, which a busy machine changes less.
A layout that is not refused with exit code 2 ends the benchmark.
"""

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import yaml
from children import children_cpu_s
from rich.console import Console
from rich.table import Table

LAYOUTS = Path(__file__).resolve().parents[1] / "tests" / "spec" / "impossible_layouts.yaml"


def refuse(case: dict[str, str], folder: Path) -> tuple[float, float]:
    """Wall and CPU seconds until a layout is refused.

    Raises:
        click.ClickException: it is not, or not for its reason.
    """
    if "file" in case:
        (folder / "mine.yaml").write_text(case["file"], encoding="utf-8")
    command = [sys.executable, "-m", "placebench", "run", "--dry-run", *shlex.split(case["run"])]
    start, before = time.perf_counter(), children_cpu_s()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds, cpu_seconds = time.perf_counter() - start, children_cpu_s() - before
    if done.returncode != 2 or case["says"] not in done.stderr:
        raise click.ClickException(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return seconds, cpu_seconds


@click.command()
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True, help="Times of each layout.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Write the figures to a file, too.")
def main(repeats: int, output: Path | None) -> None:
    """Refuse every impossible layout and print the median and the worst time."""
    cases: list[dict[str, str]] = yaml.safe_load(LAYOUTS.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="placebench-refusals-") as folder:
        told = [[refuse(case, Path(folder)) for case in cases] for _ in range(repeats)]
    seconds = [[wall for wall, _ in one] for one in told]
    every = sorted(value for values in seconds for value in values)
    worst = max(range(len(cases)), key=lambda index: statistics.median(values[index] for values in seconds))
    figures: dict[str, Any] = {
        "layouts": len(cases),
        "repeats": repeats,
        "median_s": statistics.median(every),
        "p95_s": every[int(0.95 * (len(every) - 1))],
        "worst_s": every[-1],
        "cpu_median_s": statistics.median(cpu for one in told for _, cpu in one),
        "cpu_worst_s": max(cpu for one in told for _, cpu in one),
        "slowest_layout": cases[worst]["run"],
        "slowest_layout_median_s": statistics.median(values[worst] for values in seconds),
    }
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}" if isinstance(value, float) else str(value))
    Console().print(table)
    if output:
        output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
