#!/usr/bin/env python3
"""Coverage-guided fuzzing of the log readers with atheris: `python tests/fuzz_logs.py -max_total_time=600`.

Every reader must give a frame or a UsageError, and a comparison its numbers and facts or a UsageError. The options are
libFuzzer's and override the script's own limits of memory; the samples of all formats are the first inputs. Needs
`pip install atheris`.
"""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

with atheris.instrument_imports(include=["placebench.logs", "placebench.compare.measure.log_sides"]):
    from placebench.compare.measure.log_sides import side_of_logs
    from placebench.logs.registry import FORMATS
    from placebench.logs.run import read_run

import log_samples

from placebench.errors import UsageError

FOLDER = Path(os.environ.get("FUZZ_FOLDER", ""))
# What atheris instruments with grows by some 30 KB an input, though the readers leak nothing: libFuzzer's limit of 2 GB
# would end a run of ten minutes. The limit of one allocation, which is the other one unless it is given, stays low.
LIMITS = ("-rss_limit_mb=8192", "-malloc_limit_mb=1024")
CHOICES = (None, *(known.name for known in FORMATS))


def read_one(data: bytes) -> None:
    """Read data as a log; the first byte chooses the format."""
    path = FOLDER / "train.log"
    path.write_bytes(data[1:])
    log_format = CHOICES[data[0] % len(CHOICES)] if data else None
    with suppress(UsageError):
        run = read_run([path], log_format=log_format, devices=2, learner_ranks=2)
        assert run.metrics.index.is_unique
        assert run.metrics.index.is_monotonic_increasing
        arm = side_of_logs([run], devices=2, warmup_steps=0)
        assert len(arm.launch_values) == 1


def main() -> None:
    """Write the first inputs and fuzz until the options say stop."""
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number, (known, content) in enumerate(log_samples.SAMPLES.values()):
        (corpus / str(number)).write_bytes(bytes([CHOICES.index(known)]) + content)
    verl = log_samples.VERL_CONFIG + "step:1 - timing_s/gen:1.5 - timing_s/testing:1.0 - timing_s/step:2.5\n"
    (corpus / "verl").write_bytes(bytes([CHOICES.index("verl")]) + verl.encode())
    # The last of two options counts.
    atheris.Setup([sys.argv[0], *LIMITS, *sys.argv[1:], str(corpus)], read_one)
    atheris.Fuzz()


def run_in_a_folder() -> int:
    """Run this script with a folder that is removed at the end: libFuzzer leaves without any clean-up."""
    with tempfile.TemporaryDirectory(prefix="fuzz-logs-") as folder:
        return subprocess.call([sys.executable, *sys.argv], env={**os.environ, "FUZZ_FOLDER": folder})


if __name__ == "__main__":
    if "FUZZ_FOLDER" not in os.environ:
        sys.exit(run_in_a_folder())
    main()
