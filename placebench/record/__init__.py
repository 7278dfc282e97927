"""The files of a run: where they lie, what stands in them, reading them back."""

from pathlib import Path

# Where runs lie that are named without a folder.
RUNS = Path("runs")
