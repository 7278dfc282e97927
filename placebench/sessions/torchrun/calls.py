"""The controller's side of processes that serve it: calls, their answers, and what it means that one is gone."""

import pickle
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from placebench.sessions.torchrun.serving import tuned_socket


class CallError(Exception):
    """An answer that does not come."""


class RankError(CallError):
    """A call has raised an exception in its process.

    Attributes:
        cause: the exception; None where it cannot be sent.
    """

    def __init__(self, message: str, cause: Exception | None) -> None:
        super().__init__(message)
        self.cause = cause


class RankDiedError(CallError):
    """A process has ended."""


class RankCalls:
    """Waits for answers of processes; knows which process was the first to end, from which others fail.

    Attributes:
        error, failed, died: see `placebench.sessions.base.Calls`.
        first_death: what the first process to end was; None while all are there.
    """

    error: type[Exception] = CallError
    failed: type[Exception] = RankError
    died: type[Exception] = RankDiedError

    def __init__(self) -> None:
        self.first_death: RankDiedError | None = None
        self._lock = threading.Lock()

    def report(self, death: RankDiedError) -> RankDiedError:
        """Take a process's end; returns that of the first one."""
        with self._lock:
            self.first_death = self.first_death or death
            return self.first_death

    def get(self, answers: "Sequence[Future[Any]]", timeout_s: float | None = None) -> list[Any]:
        """What was answered, in order.

        Raises:
            RankError: a call has failed.
            RankDiedError: a process has ended.
            TimeoutError: it is not there within `timeout_s` seconds.
        """
        done, pending = wait(answers, timeout_s, FIRST_EXCEPTION)
        for answer in answers:
            if answer in done and (error := answer.exception()):
                raise error
        if pending:
            raise TimeoutError
        return [answer.result() for answer in answers]

    def wait(
        self, answers: "Sequence[Future[Any]]", count: int = 1, timeout_s: float | None = None
    ) -> "list[Future[Any]]":
        """Those of the answers that are there, once they are `count` at least or `timeout_s` seconds have passed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while len(done := [answer for answer in answers if answer.done()]) < count:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            wait([answer for answer in answers if not answer.done()], left, FIRST_COMPLETED)
        return done


class Link:
    """A process that answers calls, `link.method.remote(...)`.

    Args:
        connection: to the process.
        name: what messages call it.
        calls: hears when the process ends.

    Attributes:
        name: as given.
    """

    def __init__(self, connection: Connection, name: str, calls: RankCalls) -> None:
        self._connection, self.name, self._calls = connection, name, calls
        self._socket = tuned_socket(connection)
        self._numbers = count()
        self._asked: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._death: RankDiedError | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def __getattr__(self, method: str) -> SimpleNamespace:
        return SimpleNamespace(remote=lambda *arguments: self.ask(method, arguments))

    def ask(self, method: str, arguments: tuple[Any, ...]) -> "Future[Any]":
        """Ask for a call and return at once; calls are done in this order."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._death is not None:
                answer.set_exception(self._death)
                return answer
            number = next(self._numbers)
            self._asked[number] = answer
            with suppress(OSError):  # it has ended, which is reported once all that it answered before is read
                self._connection.send_bytes(pickle.dumps((number, pickle.dumps((method, arguments)))))
        return answer

    def close(self) -> None:
        """End the connection, and with it the process."""
        with suppress(OSError):  # it has ended by itself
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self) -> None:
        try:
            while True:
                number, succeeded, content = pickle.loads(self._connection.recv_bytes())
                with self._lock:
                    answer = self._asked.pop(number)
                if succeeded:
                    self._settle(answer, content)
                else:
                    pickled, text = content
                    answer.set_exception(RankError(f"{self.name}\n{text.rstrip()}", _unpickled(pickled)))
        except (EOFError, OSError):
            death = self._calls.report(RankDiedError(f"{self.name} has ended: it was killed, or has crashed"))
            with self._lock:
                self._death = death
                pending, self._asked = self._asked, {}
            for answer in pending.values():
                answer.set_exception(death)

    def _settle(self, answer: "Future[Any]", content: bytes) -> None:
        try:
            answer.set_result(pickle.loads(content))
        except Exception as error:  # noqa: BLE001 - whatever is in the way, the next answer may be readable
            answer.set_exception(RankError(f"{self.name}: its answer cannot be read: {error!r}", error))


def _unpickled(error: bytes) -> Exception | None:
    """The exception that a process has sent; None where it cannot be made again here."""
    try:
        cause = pickle.loads(error)
    except Exception:  # noqa: BLE001 - whatever is in the way; its text is known
        return None
    return cause if isinstance(cause, Exception) else None
