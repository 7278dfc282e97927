"""The live page beside a run, as long as that goes on."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from placebench.errors import MissingExtraError, UsageError

_MODULES = ("starlette", "uvicorn", "sse_starlette", "prometheus_client")
# It has less right to the processor than what is measured.
_NICE = 10
_GRACE_S = 6.0


def check_modules() -> None:
    """See that there is what the page needs.

    Raises:
        MissingExtraError: a package is not installed.
    """
    for module in _MODULES:
        if find_spec(module) is None:
            raise MissingExtraError("the live page", "serve", module)


@contextmanager
def page_beside(run: Path, port: int) -> Iterator[str]:
    """Serve the page of a run, whose folder need not be there yet, by a process of its own; gives the link.

    Args:
        run: the run's folder.
        port: where to listen on the loopback interface; 0 for a free port.

    Raises:
        UsageError: it cannot be served there.
    """
    import subprocess
    import tempfile

    from placebench.host import child
    from placebench.host.processes import stop_process

    check_modules()
    run.parent.mkdir(parents=True, exist_ok=True)
    place = ["--host", "127.0.0.1", "--port", str(port)]
    serve = [sys.executable, "-m", "placebench", "serve", str(run.parent), *place]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ["nice", "-n", str(_NICE), sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *serve],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # Ctrl-C is for the run, whose end the page still shows
        )
        assert process.stdout is not None
        try:
            with process.stdout:
                link = process.stdout.readline().decode().strip()
                if not link:
                    process.wait()
                    errors.seek(0)
                    said = errors.read().decode(errors="replace").strip().splitlines()
                    reason = said[-1].removeprefix("placebench: ") if said else "the live page does not start"
                    raise UsageError(reason.replace(" ".join(place), f"--serve {port}"))
                yield f"{link}#/{quote(run.name)}"
        finally:
            stop_process(process, _GRACE_S)
            process.kill()  # where it has not ended
