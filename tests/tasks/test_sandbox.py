"""The sandbox against code that wants out of it: what it tries fails, and the host does not notice."""

import errno
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import wait_for

import placebench
from placebench.tasks.sandbox import End, Evaluation, Failure, Limits, evaluate, guard, why_unavailable

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
QUICK = Limits(cpu_s=1, wall_s=100.0)  # a second of computing takes long where many compute

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))


def run(code: str, *expressions: str, limits: Limits = QUICK) -> Evaluation:
    return evaluate(textwrap.dedent(code), expressions or ("done",), limits)


def attempt(statement: str, imports: str = "os") -> str:
    """Name of the error that a statement ends with in the sandbox; `None` when it succeeds."""
    code = f"""
    import {imports}
    try:
        {statement}
        error = "none"
    except BaseException as raised:
        error = type(raised).__name__
    """
    evaluation = run(code, "error")
    assert evaluation.end is End.EXITED
    return str(evaluation.values[0])


def test_code_computes_and_uses_the_standard_library() -> None:
    code = """
    import bisect, collections, functools, heapq, itertools, math, re, string
    def common(text):
        return collections.Counter(re.findall("[a-z]+", text)).most_common(1)[0]
    """
    evaluation = run(code, "common('a b a')", "math.comb(5, 2)", "missing", "{1, 2}", "float('nan')", "1 // 0")
    assert evaluation.end is End.EXITED
    assert evaluation.values[:2] == (["a", 2], 10)
    assert [type(value) for value in evaluation.values[2:]] == [Failure] * 4


def test_an_expression_sees_what_others_left_and_an_end_keeps_the_values_before_it() -> None:
    evaluation = run("xs = []", "xs.append(1)", "xs", "__import__('os')._exit(0)", "xs")
    assert evaluation.values == (None, [1])


def test_sets_come_in_the_same_order_each_time() -> None:
    orders = {json.dumps(run("", "list({'apple', 'pear', 'plum', 'fig'})").values) for _ in range(3)}
    assert len(orders) == 1


@pytest.mark.parametrize(
    ("imports", "statement"),
    [
        ("os", "os.fork()"),
        ("subprocess", "subprocess.run(['true'])"),
        ("multiprocessing", "multiprocessing.Process(target=print).start()"),
        ("_thread", "_thread.start_new_thread(print, ())"),
        ("os", "os.execv('/bin/sh', ['sh', '-c', 'true'])"),
        ("os", "os.kill(os.getppid(), 9)"),
        ("os", "os.kill(os.getppid(), 0)"),
        ("os", "os.kill(-1, 9)"),
        ("os", "os.killpg(0, 9)"),
        ("os", "os.setsid()"),
        ("os", "os.listdir('/')"),
        ("os", "os.listdir('/proc/1')"),
        ("os", "open('/etc/passwd').read()"),
        ("os", "open('/proc/self/environ').read()"),
        ("os", "open('/proc/self/mem', 'rb+')"),
        ("os", "open('here', 'w')"),
        ("os", "os.open(os.__file__, os.O_RDONLY | os.O_TRUNC)"),
        ("os", "os.truncate(os.__file__, 0)"),
        ("os", "os.mkdir('/tmp/of-a-sandbox')"),
        ("os", "os.unlink(os.__file__)"),
        ("os", "os.rename(os.__file__, '/tmp/moved')"),
        ("os", "os.symlink('/', '/tmp/link')"),
        ("os", "os.chmod(os.__file__, 0o777)"),
        ("os", "os.utime(os.__file__)"),
        ("os", "os.memfd_create('hidden')"),
        ("resource", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))"),
        ("socket", "socket.socket()"),
        ("socket", "socket.socketpair()"),
        ("socket", "socket.socket(socket.AF_UNIX)"),
        ("time", "time.sleep(0.01)"),
        ("ctypes", "assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0"),
        ("ctypes", "assert ctypes.CDLL(None).unshare(0x10000000) == 0"),
    ],
)
def test_what_reaches_out_is_refused(imports: str, statement: str) -> None:
    assert attempt(statement, imports) in {
        "PermissionError",
        "BlockingIOError",
        "OSError",
        "RuntimeError",
        "error",
        "ValueError",
        "AssertionError",
    }


# Calls that reach others by an argument, each through C. Those that would do harm here fail for a second reason, too,
# which the kernel looks at later than the filter: an address between pages, a deadline long past.
BY_ARGUMENT = {
    "signals of a file": "fcntl(2, F_SETOWN, getppid())",
    "which signal it is": "fcntl(2, F_SETSIG, 9)",
    "signals when a file can be written": "fcntl(2, F_SETFL, O_ASYNC)",
    "a lock that the judge owns": "syscall(FUTEX, byref(c_uint32(getppid())), 6, 0, byref((c_long * 2)(1, 0)))",
    "a page taken from all": "madvise(c_void_p(1), c_size_t(4096), 100)",
    "a page moved": "madvise(c_void_p(1), c_size_t(4096), 101)",
    "pages shared by what is in them": "madvise(c_void_p(0), c_size_t(0), 12)",
    "memory locked": "mmap(None, c_size_t(4096), 3, 0x2022, -1, c_long(0))",
    "huge pages of the host": "mmap(None, c_size_t(1 << 21), 3, 0x40022, -1, c_long(0))",
    "signals of a file, by ioctl": "ioctl(2, 0x8901, byref(c_int(getppid())))",
    "signals of a timer": "timer_create(0, byref((c_int * 16)(0, 0, 9, 4, getppid())), byref(c_long()))",
    "memory of the judge": "process_vm_readv(getppid(), None, c_long(0), None, c_long(0), c_long(0))",
    "its own limits": "prlimit(getppid(), 0, None, byref((c_long * 2)()))",
    "a dump of a crash": "prctl(4, c_long(1), 0, 0, 0)",
}


@pytest.mark.parametrize("call", BY_ARGUMENT.values(), ids=BY_ARGUMENT)
def test_a_call_that_reaches_others_by_an_argument_is_refused(call: str) -> None:
    program = f"""
    from ctypes import *
    from fcntl import F_SETFL, F_SETOWN
    from os import getppid, O_ASYNC
    F_SETSIG, FUTEX = 10, {guard._ALLOWED["futex"][guard._ARCHITECTURES[platform.machine()][0]]}
    kernel = CDLL(None, use_errno=True)
    result = kernel.{call}
    """
    # The filter's own refusal: whatever else forbids these answers otherwise.
    assert run(program, "(result, get_errno())").values == ([-1, errno.EPERM],)


# A judge, whose end the code below wants: by a signal for each of its files that can be written to.
JUDGE = """
import sys
from placebench.tasks.sandbox import evaluate
print(evaluate(sys.argv[1], ["1"]).values)
"""
SIGNALLING = """
import fcntl, os
for file in range(32):
    try:
        fcntl.fcntl(file, fcntl.F_SETOWN, os.getppid())
        fcntl.fcntl(file, 10, 9)  # F_SETSIG, SIGKILL
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        pass
for file in range(32):
    try:
        for _ in range(50):
            os.write(file, b"x" * 1000 + b"\\n")
    except OSError:
        pass
"""


def test_the_judge_outlives_code_that_asks_for_a_signal_to_it() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", JUDGE, SIGNALLING], capture_output=True, text=True, check=False, timeout=60
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.endswith(",)\n")


# What a process that has restricted itself, but for the filter, says about itself.
DUMPABLE = """
import ctypes
from dataclasses import asdict
from placebench.tasks.sandbox import Limits, guard
guard._filter_calls = lambda kernel: None
guard.restrict([], asdict(Limits(memory_bytes=1 << 40)))
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


def test_a_crash_starts_no_program_of_the_host() -> None:
    shown = subprocess.run([sys.executable, "-c", DUMPABLE], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout == "0\n"
    crash = run("import ctypes\nctypes.string_at(0)", "1")
    assert crash == Evaluation(End.EXITED, ())


def test_files_of_the_user_cannot_be_read(tmp_path: Path) -> None:
    secret = tmp_path / ".ssh" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_text("key")
    assert attempt(f"open({str(secret)!r}).read()") == "PermissionError"
    assert attempt("os.listdir(os.path.expanduser('~/.ssh'))") in ("PermissionError", "FileNotFoundError")
    assert attempt(f"os.listdir({str(Path.home())!r})") == "PermissionError"


def installed_in_a_virtual_environment(folder: Path) -> tuple[Path, Path, dict[str, str]]:
    """An interpreter, its folder of installed packages, and the environment that it needs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    return folder / "bin" / "python", folder / "lib" / PYTHON / "site-packages", {}


def installed_beside_the_standard_library(folder: Path) -> tuple[Path, Path, dict[str, str]]:
    standard = folder / "lib" / PYTHON
    standard.mkdir(parents=True)
    for entry in Path(os.__file__).parent.iterdir():
        if entry.name not in ("site-packages", "dist-packages"):
            (standard / entry.name).symlink_to(entry)
    return Path(sys.executable).resolve(), standard / "site-packages", {"PYTHONHOME": str(folder)}


# What an installed placebench says of code that looks for the tests' values in it.
LOOKING = """
import json, sys
from placebench.tasks import code_tests
from placebench.tasks import sandbox
path = code_tests.__file__.replace("code_tests.py", "problems/problems.jsonl")
readings = [f"open({path!r}).read(9)", f"__import__('os').listdir({sys.argv[1]!r})", "len(__import__('csv').__doc__)"]
values = sandbox.evaluate("", readings).values
print(json.dumps([path, [isinstance(value, sandbox.Failure) for value in values]]))
"""


@pytest.mark.parametrize("layout", [installed_in_a_virtual_environment, installed_beside_the_standard_library])
def test_an_installed_placebench_cannot_be_read(
    tmp_path: Path, layout: Callable[[Path], tuple[Path, Path, dict[str, str]]]
) -> None:
    python, packages, environment = layout(tmp_path / "installed")
    copied = shutil.copytree(
        Path(placebench.__file__).parent, packages / "placebench", ignore=shutil.ignore_patterns("__pycache__")
    )
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    shown = subprocess.run(
        [python, "-c", LOOKING, packages], cwd="/", env=environment, capture_output=True, text=True, timeout=60
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert json.loads(shown.stdout) == [str(copied / "tasks" / "problems" / "problems.jsonl"), [True, True, False]]


@pytest.mark.parametrize(
    "folder",
    [
        sysconfig.get_path("purelib"),
        sysconfig.get_path("purelib", vars={"base": sys.base_prefix}),
        "/usr/lib/python3/dist-packages",
        f"/usr/local/lib/{PYTHON}/dist-packages",
        "/usr/lib",
        "/usr/lib/node_modules",
        "/usr/local/lib",
    ],
)
def test_what_is_installed_beside_the_standard_library_cannot_be_read(folder: str) -> None:
    files = [str(file) for file in islice(Path(folder).glob("**/*.py"), 3)]
    evaluation = run("import os", f"os.listdir({folder!r})", *(f"open({file!r}).read(1)" for file in files))
    assert [type(value) for value in evaluation.values] == [Failure] * (1 + len(files))


def test_nothing_of_the_environment_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    assert run("import os", "sorted(os.environ)").values[0] == ["LC_CTYPE", "PYTHONHASHSEED"]


def test_a_server_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert attempt(f"socket.create_connection(('127.0.0.1', {port}), 1)", "socket") == "PermissionError"


# It waits for itself, without computing.
STUCK = "import _thread\nlock = _thread.allocate_lock()\nlock.acquire()\nlock.acquire()"


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("while True: pass", End.EXITED),  # by the kernel, at the limit of CPU time
        (STUCK, End.TIMEOUT),
        ("import os\nwhile True: os.write(3, b'x' * 4096)", End.CUT_OFF),
        (
            "import os\nos.closerange(0, 99)\nimport _thread\na = _thread.allocate_lock()\na.acquire()\na.acquire()",
            End.TIMEOUT,
        ),
        ("import os\nos._exit(0)", End.EXITED),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", End.EXITED),
    ],
)
def test_what_does_not_end_is_ended(code: str, end: End) -> None:
    limits = replace(QUICK, wall_s=1.5) if end is End.TIMEOUT else QUICK
    evaluation = run(code, limits=limits)
    assert (evaluation.end, [value for value in evaluation.values if not isinstance(value, Failure)]) == (end, [])


def test_what_waits_for_itself_ends_with_its_judge() -> None:
    with subprocess.Popen([sys.executable, "-c", JUDGE, STUCK]) as judge:
        wait_for(psutil.Process(judge.pid).children)
        (sandboxed,) = psutil.Process(judge.pid).children()
        # Code runs behind its filter.
        wait_for(lambda: "Seccomp:\t2\n" in Path(f"/proc/{sandboxed.pid}/status").read_text())
        judge.kill()
    try:
        assert psutil.wait_procs([sandboxed], timeout=60)[1] == []
    finally:
        with suppress(psutil.NoSuchProcess):
            sandboxed.kill()


def test_memory_ends_at_its_limit() -> None:
    limits = Limits(memory_bytes=200 << 20)
    assert run("held = [bytearray(1 << 20) for _ in range(50)]", "len(held)", limits=limits).values == (50,)
    hog = """
    held = []
    try:
        while True:
            held.append(bytearray(1 << 20))
    except MemoryError:
        most = len(held)
        del held
    """
    assert 50 < run(hog, "most", limits=limits).values[0] < 200


def test_a_fork_bomb_and_endless_output_leave_nothing() -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    bomb = """
    import os
    forks = 0
    for _ in range(1000):
        try:
            os.fork()
            forks += 1
        except OSError:
            pass
    """
    assert run(bomb, "forks").values == (0,)
    run("while True: print('x' * 10000)")
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before


def test_what_code_writes_to_standard_output_is_no_value() -> None:
    evaluation = run("print('[1]')\nimport os\nos.write(1, b'[2]\\n')", "3")
    assert evaluation.values == (3,)


@settings(max_examples=15)
@given(st.text(max_size=80))
def test_no_text_breaks_the_judge(code: str) -> None:
    assert evaluate(code, ["1 + 1"], QUICK).end in End
