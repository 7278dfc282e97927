"""One call of a reward function of the user's before anything starts, in a process of its own: it may hang or crash.

`python -m placebench.tasks.reward_trial` reads what to call from standard input and writes what came of it, as JSON.
"""

import faulthandler
import inspect
import json
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from placebench.errors import UsageError
from placebench.host import child
from placebench.host.processes import TOKEN_VARIABLE, LaunchMark, kill_processes, launch_processes
from placebench.host.signals import signal_name
from placebench.spec.legible import shown
from placebench.tasks.rewards import in_a_line, load_reward, place_of, relative

IMPORT_S = 60.0
CALL_S = 20.0
_IMPORTED = "imported "
# faulthandler's words, the innermost frame first.
_FRAME = re.compile(r'File "([^"<]+)", line ([0-9]+) in ')


@dataclass(frozen=True)
class TriedReward:
    """What came of a call."""

    error: str | None = None
    """What is wrong with the function, in a line."""
    only_from: str | None = None
    """The current folder, where its module can be imported from there alone."""


def try_reward(name: str, case: tuple[str, str, str]) -> TriedReward:
    """Import a reward function and call it once; nothing that it starts is left.

    Args:
        name: `module:function`.
        case: prompt, response and answer that it is called with.
    """
    asked = {"name": name, "case": case, "import_s": IMPORT_S, "call_s": CALL_S}
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="placebench-") as folder:
        answers, errors = Path(folder) / "answers", Path(folder) / "errors"
        # Files, not pipes: what the function starts may keep these open.
        with answers.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, TOKEN_VARIABLE: token},
                start_new_session=True,
            )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(json.dumps(asked).encode(), IMPORT_S + 2 * CALL_S)
        finally:
            process.kill()
            kill_processes(lambda: launch_processes(LaunchMark(token, Path(folder) / "none")))
            code = process.wait()
        lines = answers.read_text(encoding="utf-8").splitlines()
        if lines and lines[-1].startswith("{"):
            return TriedReward(**json.loads(lines[-1]))
        told = errors.read_text(encoding="utf-8", errors="replace")
    module, _, _ = name.partition(":")
    doing, limit, place = f"importing {module}", IMPORT_S, ""
    if lines and lines[0].startswith(_IMPORTED):
        doing, limit, place = "a call of it", CALL_S, lines[0].removeprefix(_IMPORTED)
    what = f"data.reward {shown(name)}{place and f' ({place})'}: {doing}"
    here = [frame for frame in _FRAME.findall(told) if frame[0].startswith(os.getcwd())]
    at = "".join(f" at {relative(file)}, line {line}" for file, line in here[:1])
    if "Timeout (" in told or code == -signal.SIGKILL:
        return TriedReward(f"{what} takes more than {limit:g} s{at}; make that quicker")
    end = code if code >= 0 else signal_name(-code)
    return TriedReward(
        f"{what} ends the process ({end}){at}; remove what ends it from {module}, or name another function"
    )


def why_unusable(name: str, reward: Callable[..., Any], case: tuple[str, str, str]) -> str | None:
    """What is wrong with a reward function, in a line; None where a call of it gives a score."""
    place = place_of(reward)
    what = f"data.reward {shown(name)}{place and f' ({place})'}"
    try:
        inspect.signature(reward).bind(*case)
    except TypeError as error:
        return f"{what}: cannot be called with prompt, response and answer: {error}"
    except ValueError:
        pass  # a function that is not Python's does not say what it takes
    try:
        score = reward(*case)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it may raise anything
        at, called = place_of(error), ", ".join(f"{word!r:.40}" for word in case)
        return f"{what}: raises {in_a_line(error)}{at and f' at {at}'}, when called with {called}"
    if inspect.isawaitable(score):
        return f"{what}: is asynchronous, but must return its score itself; let it call asyncio.run"
    number = math.nan
    if not isinstance(score, str | bytes):
        with suppress(Exception):  # told below
            number = float(score)
    if not math.isfinite(number):
        return f"{what}: returns {score!r:.40} ({type(score).__name__}); a score is a finite number, such as 0.5"
    return None


def _main() -> None:
    asked = json.load(sys.stdin)
    name, case = asked["name"], tuple(asked["case"])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the function prints is no answer
    faulthandler.enable()
    faulthandler.dump_traceback_later(asked["import_s"], exit=True)
    here = os.getcwd()
    sys.path = [path for path in sys.path if os.path.abspath(path) != here]
    only_from = None
    with suppress(Exception):  # told below
        only_from = None if find_spec(name.split(":")[0].split(".")[0]) else here
    error = None
    try:
        reward = load_reward(name)
    except UsageError as unusable:
        error = str(unusable)
    else:
        print(f"{_IMPORTED}{place_of(reward)}", file=answers, flush=True)
        faulthandler.dump_traceback_later(asked["call_s"], exit=True)
        error = why_unusable(name, reward, case)
    print(json.dumps({"error": error, "only_from": only_from}), file=answers, flush=True)
    os._exit(0)  # threads that its module has started need not end


if __name__ == "__main__":
    _main()
