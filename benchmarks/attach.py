#!/usr/bin/env python3
"""What the hooks in a job's own Python cost: microseconds a span, and seconds more at the start of every process.

Processes with and without the hooks take turns. A span is written to a file each time, as in a job; what is printed is
the median of all repeats with its 5th and 95th percentile, in CPU time, which a busy machine changes less.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from children import children_cpu_s

from placebench.jobs.attach.environment import attached

_SPANS = """
import time
from placebench_attach import span
with span("the first one opens the file"):
    pass
start = time.process_time()
for _ in range({spans}):
    with span("update_actor"):
        pass
print((time.process_time() - start) / {spans})
"""


def run_python(program: str, environment: Mapping[str, str]) -> tuple[str, float]:
    """What a program prints in a fresh Python, and the CPU seconds of that process."""
    before = children_cpu_s()
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout, children_cpu_s() - before


def describe(values: Sequence[float]) -> str:
    """Median, 5th and 95th percentile of values of at least two repeats."""
    marks = statistics.quantiles(values, n=20, method="inclusive")
    return f"{statistics.median(values):.3g} ({marks[0]:.3g} to {marks[-1]:.3g})"


@click.command()
@click.option("--repeats", type=click.IntRange(min=2), default=20, show_default=True, help="Processes of each kind.")
@click.option("--spans", type=click.IntRange(min=1), default=20_000, show_default=True, help="Spans of a process.")
def main(repeats: int, spans: int) -> None:
    """Time spans, and the start of processes with the hooks and without."""
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    span_us, starts = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="placebench-attach-") as folder:
            hooked = attached(without, Path(folder))
            span_us.append(float(run_python(_SPANS.format(spans=spans), hooked)[0]) * 1e6)
            starts.append((run_python("", without)[1], run_python("", hooked)[1]))
    print(f"a span                      {describe(span_us)} µs CPU")
    print(f"start without hooks         {describe([plain for plain, _ in starts])} s CPU")
    print(f"more with hooks             {describe([hooks - plain for plain, hooks in starts])} s CPU")


if __name__ == "__main__":
    main()
