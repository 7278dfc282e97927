#!/usr/bin/env python3
"""What `placebench compare` of a long log takes, by its steps: time and memory a step stay as they are.

The logs are generated in the shape of verl's step lines, with nine timings, tokens and lengths, and a slower start.
Each is compared, or drawn by `plot/plot_timing_metrics.py`, in a fresh process, whose CPU time and peak resident size
the system counts; the start of Python and its imports are part of both.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

SIZES = (20_000, 200_000, 2_000_000)
PHASES = {
    "gen": 4.0,
    "reward": 0.1,
    "old_log_prob": 1.0,
    "ref": 1.0,
    "values": 1.0,
    "adv": 0.1,
    "update_critic": 2.0,
    "update_actor": 3.0,
}
TOKENS, DEVICES, SLOW_STEPS = 8000, 8, 5
ROOT = Path(__file__).parents[1]


def write_log(path: Path, steps: int) -> None:
    """Write a log of so many steps."""
    numbers = random.Random(0)
    with path.open("w") as stream:
        for step in range(1, steps + 1):
            pace = numbers.uniform(0.95, 1.05) * (1.5 if step <= SLOW_STEPS else 1.0)
            whole = 1.01 * pace * sum(PHASES.values())
            timings = " - ".join(f"timing_s/{phase}:{pace * seconds:.4f}" for phase, seconds in PHASES.items())
            stream.write(
                f"step:{step} - {timings} - timing_s/step:{whole:.4f} - perf/total_num_tokens:{TOKENS} - "
                f"perf/throughput:{TOKENS / whole / DEVICES:.4f} - response_length/mean:{100 * pace:.3f}\n"
            )


def measure(command: list[str]) -> tuple[float, float, float]:
    """CPU and wall time (s) and peak memory (MB) of a command."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)}: exit code {process.returncode}")
    return used.ru_utime + used.ru_stime, time.perf_counter() - start, used.ru_maxrss / 1024


@click.command()
@click.option("--steps", type=click.IntRange(min=10), multiple=True, default=SIZES, show_default=True, help="Of a log.")
@click.option("--plot", is_flag=True, help="Draw the logs instead of comparing them.")
def main(steps: tuple[int, ...], plot: bool) -> None:
    """Compare logs of so many steps and print a table."""
    table = Table(title=f"{'plot_timing_metrics.py' if plot else 'placebench compare'} of one log")
    for name in ("steps", "MB", "CPU s", "wall s", "peak MB", "µs of CPU a step"):
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for count in steps:
            log = Path(folder) / f"{count}.log"
            write_log(log, count)
            words = ["-m", "placebench", "compare", str(log)]
            if plot:
                words = [str(ROOT / "plot" / "plot_timing_metrics.py"), str(log), "--output-dir", folder]
            cpu, wall, peak = measure([sys.executable, *words])
            size = log.stat().st_size / 1e6
            table.add_row(
                f"{count:,}", f"{size:.0f}", f"{cpu:.1f}", f"{wall:.1f}", f"{peak:.0f}", f"{1e6 * cpu / count:.0f}"
            )
            log.unlink()
    Console().print(table)


if __name__ == "__main__":
    main()
