"""The parsing benchmark runs, and its readers agree."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_both_readers_find_the_same_values() -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "parsing.py"),
        "--megabytes",
        "1",
        "--repeats",
        "1",
        "--step-lines",
    ]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=300, check=True
    )
    assert "re.findall and placebench found the same" in done.stdout
