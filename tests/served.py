"""What small processes of `test_torchrun_calls` serve; they find it by its module's name."""

import os
import signal
import socket
import threading
import time
from contextlib import suppress


class UnsendableError(Exception):
    """Cannot be made again from what it says of itself."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class UnreadableResult:
    """Is made again from what the one that asked cannot do."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)


class Served:
    """Methods to call."""

    def __init__(self, number: int) -> None:
        if number < 0:
            raise ValueError("below 0")
        self._number = number

    def number(self) -> int:
        return self._number

    def same(self, content: bytes) -> bytes:
        return content

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def undelayed(self) -> list[bool]:
        """Of each TCP connection of this process: whether its messages go at once."""
        found = []
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError), socket.socket(fileno=os.dup(int(number))) as known:
                found.append(bool(known.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        return found

    def fail(self, source: str) -> None:
        exec(source, {"UnsendableError": UnsendableError})

    def lock(self) -> object:
        return threading.Lock()

    def unreadable(self) -> object:
        return UnreadableResult()

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
