"""A process that does what the controller asks of it: connected by TCP, one call after the other in its main thread."""

import json
import os
import pickle
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection
from queue import SimpleQueue
from typing import Any

CONTROLLER_VARIABLE = "PLACEBENCH_CONTROLLER"
"""Environment: a JSON object with host, port and key of the controller, out of everybody's sight but the user's."""
NODE_VARIABLE = "PLACEBENCH_NODE"
CREATE = "__init__"
"""The call that makes the object whose methods the others are."""
# A host that says nothing for twice as many seconds is gone.
_SILENT_S = 10


def connect(greeting: Mapping[str, Any]) -> Connection:
    """Connect to the controller and say who this is.

    Args:
        greeting: what the controller knows this process by.
    """
    # Not for what this process starts itself.
    controller = json.loads(os.environ.pop(CONTROLLER_VARIABLE))
    connection = Client((controller["host"], controller["port"]), authkey=bytes.fromhex(controller["key"]))
    tuned_socket(connection).close()
    connection.send_bytes(pickle.dumps({**greeting, "pid": os.getpid()}))
    return connection


def tuned_socket(connection: Connection) -> socket.socket:
    """Let messages of a connection go at once and its end be seen; returns its socket under another descriptor.

    A long message is written in two parts, and the second would wait until the other side has acknowledged the first,
    which takes it 40 ms (RFC 896, RFC 1122 section 4.2.3.2). A host that is gone says nothing of it.
    """
    found = socket.socket(fileno=os.dup(connection.fileno()))
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Asked after so many seconds without a word, and as often a second apart.
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPCNT):
        found.setsockopt(socket.IPPROTO_TCP, option, _SILENT_S)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    return found


def serve(connection: Connection, on_end: Callable[[], None] = lambda: None) -> None:
    """Answer calls until the controller ends, or ends the connection: the process ends then, whatever it does.

    Args:
        connection: to the controller.
        on_end: called before.
    """
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, requests, on_end), daemon=True).start()
    target: Any = None
    unmade: Exception | None = None
    while True:
        number, request = pickle.loads(requests.get())
        try:
            if unmade is not None:
                raise unmade
            method, arguments = pickle.loads(request)
            if method == CREATE:
                kind, *rest = arguments
                target, result = kind(*rest), None
            else:
                result = getattr(target, method)(*arguments)
            answer = pickle.dumps((number, True, pickle.dumps(result)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            unmade = error if target is None else None  # all that is asked later fails for it
            answer = pickle.dumps((number, False, (_pickled(error), "".join(traceback.format_exception(error)))))
        connection.send_bytes(answer)


def _receive(connection: Connection, requests: "SimpleQueue[bytes]", on_end: Callable[[], None]) -> None:
    try:
        while True:
            requests.put(connection.recv_bytes())
    except (EOFError, OSError):
        # The main thread may wait for another rank that will never come.
        try:
            on_end()
            sys.stdout.flush()
        finally:
            os._exit(0)


def _pickled(error: Exception) -> bytes:
    """The exception; one that cannot be sent is known by its text alone."""
    try:
        return pickle.dumps(error)
    except Exception:  # noqa: BLE001 - whatever is in the way
        return pickle.dumps(None)
