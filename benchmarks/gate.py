#!/usr/bin/env python3
"""How often the gate is wrong: the same code again and again, which must pass, and a planted slowdown, which must not.

Every check is examples/ci/gate.sh: real launches of both on two CPU devices, in turn, and `placebench check`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
GATE = ROOT / "examples" / "ci" / "gate.sh"
PROJECT = ROOT / "examples" / "ci" / "project"
PLANTED = ROOT / "benchmarks" / "planted"


def run_gate(after: Path, out: Path) -> tuple[int, float, dict[str, float]]:
    """One check of a folder's code against that of the project; returns exit code, seconds and the step's numbers."""
    begun = time.monotonic()
    # `placebench` of the path, else the one beside this Python.
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    environment = {**os.environ, "CI": "true", "PATH": path}
    done = subprocess.run(
        ["bash", str(GATE), str(PROJECT), str(after), str(out)], env=environment, capture_output=True, text=True
    )
    seconds = time.monotonic() - begun
    try:
        case = json.loads((out / "gate.json").read_text(encoding="utf-8"))["cases"][0]
    except (FileNotFoundError, IndexError):
        raise click.ClickException(f"no check came about (exit code {done.returncode}):\n{done.stderr}") from None
    return done.returncode, seconds, case


@click.command()
@click.option("--repeats", type=click.IntRange(min=1), default=20, show_default=True, help="Checks without a slowdown.")
def main(repeats: int) -> None:
    """Check the same code so many times, then the planted slowdown; exit with 1 unless every verdict is right."""
    table = Table(box=None, pad_edge=False)
    for name in ("check", "exit code", "seconds", "baseline", "run", "ratio", "95 % interval"):
        table.add_column(name, justify="left" if name == "check" else "right")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        out = Path(folder) / "gate"
        for number in range(1, repeats + 2):
            is_planted = number > repeats
            code, seconds, case = run_gate(PLANTED if is_planted else PROJECT, out)
            wrong += code != int(is_planted)
            name = "planted slowdown" if is_planted else f"same code {number}"
            click.echo(f"{name}: exit code {code} after {seconds:.0f} s", err=True)
            table.add_row(
                name,
                str(code),
                f"{seconds:.0f}",
                f"{case['baseline']:.3f} s",
                f"{case['run']:.3f} s",
                f"{case['ratio']:.2f}",
                f"{case['low']:.2f}–{case['high']:.2f}",
            )
    Console(width=110).print(table)
    click.echo(f"{wrong} of {repeats + 1} verdicts wrong")
    sys.exit(min(wrong, 1))


if __name__ == "__main__":
    main()
