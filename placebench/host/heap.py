"""Python's garbage collector, kept from stopping a phase or a report.

A full pass visits every object that the collector knows. In a worker with torch, an engine and compiled code those are
hundreds of thousands, so that a pass takes tenths of a second, and it comes in whatever phase its turn falls.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def freeze_heap() -> None:
    """Collect, then leave what there is out of all later passes. What is made afterwards is collected as ever."""
    gc.collect()
    gc.freeze()


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no pass come inside. What reference counts free is freed as ever."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def imports_uncollected() -> Iterator[None]:
    """For imports: nearly all they make stays, so one pass at their end does for the many on the way."""
    with uncollected():
        yield
    freeze_heap()
