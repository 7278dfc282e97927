"""What `run --track` does when the run is over: export it, each tracker by a process of its own.

A client that fails, hangs, ends its process or asks for a login can so do nothing to the run.
"""

import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from placebench.errors import InterruptedRunError
from placebench.host.terminal import say
from placebench.spec.legible import one_line

TRACKERS = ("wandb", "tensorboard", "mlflow")
# For uploading a report of a few MB.
_LIMIT_S = 900.0


def track_run(folder: Path, trackers: Iterable[str]) -> None:
    """Export a run to trackers; says where it is, or why it is not there.

    Raises:
        InterruptedRunError: a signal has ended it; the process that exports is ended with it.
    """
    from placebench.host.signals import Stopped, raised_signals

    for name in dict.fromkeys(trackers):
        command = f"placebench export {shlex.quote(str(folder))} --to {name}"
        try:
            with raised_signals():
                failure = _failure(folder, name)
        except Stopped as stopped:
            said = f"stopped by {stopped} before the run was in {name}: export it with {command}"
            raise InterruptedRunError(said, stopped.exit_code) from None
        if failure:
            again = f"the run itself is complete: try again with {command}"
            say(f"placebench: --track {name}: {one_line(failure)}; {again}", sys.stderr)


def _failure(folder: Path, name: str) -> str | None:
    command = [sys.executable, "-m", "placebench", "export", str(folder), "--to", name]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"nothing within {_LIMIT_S:.0f} s"
    if done.returncode == 0:
        say(done.stdout.strip())
        return None
    lines = [line.removeprefix("placebench: ") for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with {done.returncode}"
