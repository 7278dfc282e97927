#!/usr/bin/env python3
"""How fast, and in how much memory, a large log is read: placebench's reader beside the plain approach.

The log is made by repeating a real one (`--log`), or a generated one of the same shape, with the steps numbered
on, until it has the wanted size. Each reading runs in a fresh process; the readers take turns, so that a machine
whose speed drifts treats them alike. Speed is the file's size over the time of reading it into a frame, imports
not counted: the process's CPU time, all its threads together, and the wall time. Memory is the process's peak
resident size.
"""

import json
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from placebench.logs.read import is_timing, scan_log

STEP_LINE = re.compile(rb"(?<![\w/])step:([0-9]+) - ")
METRIC = re.compile(r" - ([^:]+):(?:np\.\w+\()?([^\s)]+)")


def read_plainly(path: Path) -> pd.DataFrame:
    """The approach of most scripts: a regular expression on every line, the findings into a frame."""
    rows: list[tuple[int, str, float]] = []
    with path.open(errors="replace") as stream:
        for line in stream:
            found = re.search(r"(?<![\w/])step:(\d+) - ", line)
            if found:
                step = int(found[1])
                rows.extend((step, name, float(value)) for name, value in METRIC.findall(line, found.end() - 3))
    return pd.DataFrame(rows, columns=["step", "metric", "value"])


def read_log(path: Path) -> pd.DataFrame:
    """Every metric."""
    return scan_log(path).table.frame(path.stem)


def read_timings(path: Path) -> pd.DataFrame:
    """What the plot needs: the timings alone."""
    return scan_log(path, keep=is_timing).table.frame(path.stem)


READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "re.findall": read_plainly,
    "placebench": read_log,
    "placebench, timings": read_timings,
}


def make_log(path: Path, source: bytes, size: int) -> None:
    """Write `source` again and again until the file has `size` bytes; the step numbers go on."""
    steps = [int(number) for number in STEP_LINE.findall(source)]
    if not steps:
        raise click.ClickException("the log has no step lines")
    span = max(steps) + 1
    written = first = 0

    def number_on(found: re.Match[bytes]) -> bytes:
        return b"step:%d - " % (int(found[1]) + first)

    with path.open("wb") as stream:
        while written < size:
            written += stream.write(STEP_LINE.sub(number_on, source))
            first += span


def generated_log(steps: int = 400) -> bytes:
    """A log in the shape of verl 0.9's: Ray prefixes, a line of other output between steps, numpy scalars."""
    numbers = random.Random(0)
    names = [
        f"{group}/{name}/{stat}" for group in ("critic", "actor") for name in "abcdefgh" for stat in ("mean", "max")
    ]
    phases = ["gen", "reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor", "step"]
    lines = []
    for step in range(1, steps + 1):
        metrics = [f"{name}:np.float64({numbers.gauss(0, 1)!r})" for name in names]
        metrics += [f"timing_s/{phase}:{numbers.uniform(0.1, 60)!r}" for phase in phases]
        lines.append(f"\x1b[36m(TaskRunner pid=7)\x1b[0m step:{step} - {' - '.join(metrics)}\n")
        lines.append(f"\x1b[36m(TaskRunner pid=7)\x1b[0m Training Progress: {step / steps:4.0%}| {step}/{steps}\n")
    return "".join(lines).encode()


def measure(reader: str, path: Path) -> dict[str, float]:
    """Read in this process, and say what it took and a checksum of what came out."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    start, cpu_start = time.perf_counter(), time.process_time()
    frame = READERS[reader](path)
    wall = time.perf_counter() - start
    cpu = time.process_time() - cpu_start
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_mb": after.ru_maxrss / 1024,
        "grown_mb": (after.ru_maxrss - before.ru_maxrss) / 1024,
        "rows": len(frame),
        "sum": float(np.nansum(frame["value"].to_numpy()[np.isfinite(frame["value"])])),
    }


@click.command()
@click.option(
    "--log",
    "log_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A real log to repeat; a generated one otherwise.",
)
@click.option(
    "--megabytes", type=click.IntRange(min=1), default=200, show_default=True, help="Size of the log to read."
)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Readings by each reader.")
@click.option("--step-lines", is_flag=True, help="Only the log's step lines, without the text between them.")
@click.option("--measure", "measured", type=(click.Choice(list(READERS)), Path), hidden=True)
def main(
    log_path: Path | None, megabytes: int, repeats: int, step_lines: bool, measured: tuple[str, Path] | None
) -> None:
    """Measure the readers side by side and print a table."""
    if measured:
        click.echo(json.dumps(measure(*measured)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        source = log_path.read_bytes() if log_path else generated_log()
        if step_lines:
            source = b"".join(line for line in source.splitlines(keepends=True) if STEP_LINE.search(line))
        make_log(path, source, megabytes * 1_000_000)
        size = path.stat().st_size / 1e6
        results: dict[str, list[dict[str, float]]] = {reader: [] for reader in READERS}
        for turn in range(repeats):
            for reader in list(READERS)[:: 1 if turn % 2 == 0 else -1]:
                command = [sys.executable, __file__, "--measure", reader, str(path)]
                results[reader].append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    _print(log_path, size, results)


def _print(log_path: Path | None, size: float, results: dict[str, list[dict[str, float]]]) -> None:
    plain = results["re.findall"]
    table = Table(title=f"{size:.0f} MB of {log_path.name if log_path else 'a generated log'}, medians of {len(plain)}")
    for name in ("reader", "MB/s of CPU", "range", "speed", "MB/s of wall", "peak MB", "above imports", "memory"):
        table.add_column(name, justify="left" if name == "reader" else "right", no_wrap=True)

    def median(runs: list[dict[str, float]], key: str) -> float:
        return statistics.median(run[key] for run in runs)

    for reader, runs in results.items():
        speeds = sorted(size / run["cpu_s"] for run in runs)
        table.add_row(
            reader,
            f"{statistics.median(speeds):.0f}",
            f"{speeds[0]:.0f}–{speeds[-1]:.0f}",
            f"x {median(plain, 'cpu_s') / median(runs, 'cpu_s'):.1f}",
            f"{size / median(runs, 'wall_s'):.0f}",
            f"{median(runs, 'peak_mb'):.0f}",
            f"{median(runs, 'grown_mb'):.0f}",
            f"/ {median(plain, 'grown_mb') / median(runs, 'grown_mb'):.1f}",
        )
    console = Console(width=110)
    console.print(table)
    found = {(run["rows"], round(run["sum"], 3)) for reader in ("re.findall", "placebench") for run in results[reader]}
    verdict = f"found the same {plain[0]['rows']:,.0f} values" if len(found) == 1 else f"differ: {sorted(found)}"
    console.print(f"re.findall and placebench {verdict}.")


if __name__ == "__main__":
    main()
