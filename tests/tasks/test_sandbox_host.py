"""The sandbox on hosts that cannot isolate code, and without privileges on those that can."""

import os
import shutil
import subprocess
import sys

import pytest

from placebench.tasks.sandbox import why_unavailable

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))

# A process in which one system call is refused, as a container's own filter refuses it.
REFUSING = """
import ctypes, errno, struct, sys
from placebench.tasks.sandbox import guard, why_unavailable
kernel = ctypes.CDLL(None, use_errno=True)
refused, column = int(sys.argv[1]), guard._ARCHITECTURES[guard.platform.machine()][0]
filters = [
    guard._instruction(guard._LOAD, guard._NUMBER),
    guard._instruction(guard._JUMP_EQUAL, refused, 0, 1),
    guard._instruction(guard._RETURN, guard._RET_ERRNO | errno.EPERM),
    guard._instruction(guard._RETURN, guard._RET_ALLOW),
]
code = ctypes.create_string_buffer(b"".join(filters))
program = struct.pack("@HP", len(filters), ctypes.addressof(code))
guard._prctl(kernel, guard._PR_SET_NO_NEW_PRIVS, 1)
guard._prctl(kernel, guard._PR_SET_SECCOMP, guard._SECCOMP_MODE_FILTER, program)
print(why_unavailable())
"""


@pytest.mark.parametrize(("call", "reason"), [(444, "the kernel offers no Landlock"), (446, "Landlock is refused")])
def test_a_host_that_cannot_isolate_is_refused(call: int, reason: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", REFUSING, str(call)], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout.startswith(f"generated code cannot be isolated here: {reason}")
    assert len(shown.stdout.splitlines()) == 1


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv to give privileges up with")
def test_it_takes_no_privilege() -> None:
    without = ("setpriv", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all") if os.geteuid() == 0 else ()
    program = (
        "from placebench.tasks.sandbox import why_unavailable\n"
        "print(open('/proc/self/status').read().split('CapEff:')[1].split()[0], why_unavailable())"
    )
    shown = subprocess.run(
        [*without, sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert shown.stdout == "0000000000000000 None\n"
