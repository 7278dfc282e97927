"""Clean up after a run whose process ends without doing so: `python -I -S guardian.py RECORD`, its stdin a pipe.

The run holds the other end of the pipe. While it lives the guardian sleeps in one read: a few megabytes, no time, no
import but the interpreter's own. It has a session of its own and blocks every signal, so that what ends the run (a
terminal that hangs up, a signal to the process group or to all processes of a batch job) does not end it first.
"""

import os
import signal
import sys

# At the end the cursor, which the run's display had hidden: a terminal that does not take it keeps nothing alive.
_CLEAN_UP = """
import os, sys
from pathlib import Path
from placebench.host.ownership import clean_up_after
clean_up_after(Path(sys.argv[1]))
if os.isatty(2):
    os.write(2, b"\\x1b[?25h")
"""


def guard(record: str) -> None:
    """Wait for the run's end; one that has said nothing before (it was killed) is cleaned up after.

    Args:
        record: folder of the run's record; gone where the next command has cleaned up already.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if not os.read(0, 1) and os.path.exists(record):
        os.execv(sys.executable, [sys.executable, "-c", _CLEAN_UP, record])


if __name__ == "__main__":
    guard(sys.argv[1])
