"""The sandboxed process: limits itself for good, then runs the code it was given on standard input.

A script of its own that imports nothing but the standard library. It writes `READY`, or why it cannot be isolated; then
one line a value: a JSON list of that value, or an empty one where there is none.
"""

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
from typing import Any, NoReturn

READY = b"isolated\n"

# Numbers of the kernel's interface, from include/uapi/linux: landlock.h, seccomp.h, filter.h, prctl.h, audit.h.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION, _LANDLOCK_RULE_PATH_BENEATH = 1, 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
# How many rights on files each version of Landlock knows.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 1, 4, 38, 22, 2
_RET_ALLOW, _RET_ERRNO, _RET_KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _AND, _JUMP_EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
# Offsets in struct seccomp_data: number, architecture, first argument (both machines are little-endian, so that it is
# the lower half of the argument), and from one argument to the next.
_NUMBER, _ARCHITECTURE, _ARGUMENT, _ARGUMENT_SIZE = 0, 4, 16, 8
_EPERM = 1

# What computing in Python takes: memory, reading files, time, its own end. No sockets, processes, threads, signals to
# others, sleeping, limits, or changes of files. Not fcntl, which can name another process as the one that gets a
# file's signals. Numbers for (x86-64, AArch64); None where there is no such call.
_ALLOWED = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "lseek": (8, 62),
    "pread64": (17, 67),
    "readv": (19, 65),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "openat": (257, 56),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getcwd": (79, 17),
    "getdents64": (217, 61),
    "dup": (32, 23),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "getrusage": (98, 165),
    "times": (100, 153),
    "gettimeofday": (96, 169),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "getrandom": (318, 278),
    "futex": (202, 98),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
# Calls of which an argument decides: its position, the bits that count, and what these may be.
_ALL_BITS = 0xFFFFFFFF
_CHECKED: dict[str, tuple[int, int, tuple[int, ...]]] = {
    # Opening for reading: without O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND and O_TMPFILE's own bit.
    "openat": (2, 0x1 | 0x2 | 0x40 | 0x200 | 0x400 | 0x400000, (0,)),
    # Without MAP_LOCKED and MAP_HUGETLB, which take memory that others need and no limit counts where root runs it.
    "mmap": (3, 0x2000 | 0x40000, (0,)),
    # What allocators give: MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE. Root's MADV_HWPOISON takes a page of a library away
    # from every process, and MADV_MERGEABLE shows by the clock what is in others' memory.
    "madvise": (2, _ALL_BITS, (4, 8, 14)),
    # Waiting and waking, without and with a bit set, private and on the wall's clock or not. FUTEX_LOCK_PI would make
    # any other process its lock's owner.
    "futex": (1, _ALL_BITS & ~(128 | 256), (0, 1, 9, 10)),
}
# Column of the tables above, and the kernel's number of the architecture.
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


class NotIsolatedError(Exception):
    """The kernel does not offer what isolation takes."""


def _end_with(judge: int) -> None:
    """Have this process killed when its parent ends: code that waits for itself would stay for good."""
    _prctl(ctypes.CDLL(None, use_errno=True), _PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != judge:
        raise NotIsolatedError("the process that judges it has ended")


def restrict(readable: list[str], limits: dict[str, Any]) -> None:
    """Give up, for the rest of this process, all but computing.

    Args:
        readable: files and folders that it may read.
        limits: fields of `Limits`.

    Raises:
        NotIsolatedError: with what is missing.
    """
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        raise NotIsolatedError(f"it takes Linux on {' or '.join(_ARCHITECTURES)}, this is {platform.platform()}")
    kernel = ctypes.CDLL(None, use_errno=True)
    _limit_resources(limits)
    # A limit of 0 keeps no crash from starting the host's program for dumps, where core_pattern names one.
    _prctl(kernel, _PR_SET_DUMPABLE, 0)
    _prctl(kernel, _PR_SET_NO_NEW_PRIVS, 1)
    _restrict_files(kernel, readable)
    _filter_calls(kernel)


def _prctl(kernel: Any, option: int, first: Any, second: Any = None) -> None:
    # The kernel looks at whole registers, of which ctypes would fill the lower half.
    arguments = (ctypes.c_ulong(first), second or ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    if kernel.prctl(option, *arguments):
        raise NotIsolatedError(f"prctl {option} is refused: {os.strerror(ctypes.get_errno())}")


def _limit_resources(limits: dict[str, Any]) -> None:
    for kind, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def _restrict_files(kernel: Any, readable: list[str]) -> None:
    version = kernel.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    if version < 1:
        raise NotIsolatedError(
            "the kernel offers no Landlock (Linux 5.13 or later, 'landlock' among its security modules, system calls"
            " 444 to 446 allowed in the container)"
        )
    handled = (1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1
    ruleset = kernel.syscall(_LANDLOCK_CREATE_RULESET, struct.pack("=Q", handled), 8, 0)
    for path in readable:
        rights = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", rights, opened)
        if kernel.syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0):
            raise NotIsolatedError(f"Landlock takes no rule for {path}: {os.strerror(ctypes.get_errno())}")
        os.close(opened)
    if kernel.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0):
        raise NotIsolatedError(f"Landlock is refused: {os.strerror(ctypes.get_errno())}")
    os.close(ruleset)


def _filter_calls(kernel: Any) -> None:
    """Refuse every system call that is not listed, by a filter in classic BPF."""
    column, architecture = _ARCHITECTURES[platform.machine()]
    filters = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, architecture, 1, 0),
        _instruction(_RETURN, _RET_KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    for name, numbers in _ALLOWED.items():
        if (number := numbers[column]) is not None:
            answer = _answer(name)
            filters += [_instruction(_JUMP_EQUAL, number, 0, len(answer)), *answer]
    filters.append(_instruction(_RETURN, _RET_ERRNO | _EPERM))
    code = ctypes.create_string_buffer(b"".join(filters))
    program = struct.pack("@HP", len(filters), ctypes.addressof(code))
    _prctl(kernel, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program)


def _answer(name: str) -> list[bytes]:
    """What follows once a call is known to be an allowed one; it always returns."""
    if name not in _CHECKED:
        return [_instruction(_RETURN, _RET_ALLOW)]
    position, bits, values = _CHECKED[name]
    answer = [_instruction(_LOAD, _ARGUMENT + position * _ARGUMENT_SIZE), _instruction(_AND, bits)]
    for value in values:
        answer += [_instruction(_JUMP_EQUAL, value, 0, 1), _instruction(_RETURN, _RET_ALLOW)]
    return [*answer, _instruction(_RETURN, _RET_ERRNO | _EPERM)]


def _instruction(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)


def _run(code: str, expressions: list[str], output: int) -> None:
    """Execute the code and write the value of every expression, which sees what the code has defined."""
    write, dumps = os.write, json.dumps
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.suppress(Exception):
        exec(compile(code, "<response>", "exec"), namespace)
    for expression in expressions:
        try:
            line = dumps([eval(expression, namespace)], allow_nan=False)
        except Exception:  # noqa: BLE001 - whatever generated code raises, it has no value
            line = "[]"
        write(output, line.encode() + b"\n")


def main() -> NoReturn:
    """Read the job, restrict this process, say so, run the code."""
    job = json.load(sys.stdin)
    output = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    try:
        _end_with(job["judge"])
        restrict(job["readable"], job["limits"])
    except (NotIsolatedError, OSError, ValueError) as error:
        os.write(output, f"{error}\n".encode())
        os._exit(1)
    os.write(output, READY)
    _run(job["code"], job["expressions"], output)
    os._exit(0)


if __name__ == "__main__":
    main()
