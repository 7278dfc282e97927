"""What tests of the log readers have in common."""

from pathlib import Path

import log_samples
import pandas as pd
from hypothesis import HealthCheck, settings

from placebench.logs.read import scan_log
from placebench.logs.run import LoggedRun, read_run

SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def write(folder: Path, content: bytes | str, name: str = "train.log") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def frame_of(path: Path, log_format: str | None = None) -> pd.DataFrame:
    return scan_log(path, log_format=log_format).table.frame("log")


def sample(folder: Path, name: str) -> LoggedRun:
    return read_run([write(folder, log_samples.SAMPLES[name][1])])


def metrics(run: LoggedRun, step: int) -> dict[str, float]:
    frame = pd.concat([log.table.frame("log") for log in reversed(run.logs)])
    rows = frame[frame["step"] == step]
    return dict(zip(rows["metric"], rows["value"], strict=True))


def phases(run: LoggedRun, step: int) -> dict[str, tuple[float, str]]:
    assert run.timings is not None
    rows = run.timings.tidy("log")
    rows = rows[rows["step"] == step]
    return {
        phase: (round(seconds, 6), kind)
        for phase, seconds, kind in zip(rows["phase"], rows["seconds"], rows["kind"], strict=True)
    }


def flags(run: LoggedRun) -> set[str]:
    return {flag.name for flag in run.flags}
