"""Saying what the reading of logs is at, where it takes longer than a moment."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

FIRST_S = 2.0
NEXT_S = 0.5

_tell: ContextVar[Callable[[str], None] | None] = ContextVar("tell", default=None)


@contextmanager
def told_by(tell: Callable[[str], None]) -> Iterator[None]:
    """Let `tell` be called, from another thread, with what is read where that takes long, and with "" when it ends."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


@contextmanager
def telling(state: Callable[[], str]) -> Iterator[None]:
    """Tell, as long as it is entered, what `state` says: after 2 s and again and again, if anybody wants to know."""
    tell = _tell.get()
    if tell is None:
        yield
        return
    end = threading.Event()

    def watch() -> None:
        wait = FIRST_S
        while not end.wait(wait):
            tell(state())
            wait = NEXT_S
        if wait == NEXT_S:
            tell("")

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
