"""The fuzzer of `fuzz_logs.py`, for as long as a test may take; by hand it runs for as long as one likes."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "fuzz_logs.py"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_half_a_minute_of_fuzzing_finds_no_crash(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="make test-slow installs it")
    command = [sys.executable, str(SCRIPT), "-max_total_time=30", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=360)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Done " in done.stderr
