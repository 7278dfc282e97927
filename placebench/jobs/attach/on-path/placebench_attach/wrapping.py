"""Ways to record what a framework times, one for each form that timers have.

What is wrapped takes, returns and raises what it did before.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import threading
import time
from typing import Any, Callable, Iterator

from placebench_attach.spans import ENGINE, TIMER, WORKER, emit, note

_worker = threading.local()


def _first(args: Any, kwargs: Any) -> Any:
    """The first argument of a call, named or not."""
    return next(iter((*args, *kwargs.values())), None)


def timing_generator(module: Any, name: str) -> None:
    """A generator function that yields once while it times its first argument, a name."""
    original = getattr(module, name)

    @functools.wraps(original)
    def timer(*args: Any, **kwargs: Any) -> Iterator[Any]:
        start = time.monotonic()
        try:
            yield from original(*args, **kwargs)
        finally:
            emit(_first(args, kwargs), TIMER, start, time.monotonic())

    setattr(module, name, timer)


def timing_method(cls: Any, name: str) -> None:
    """A method that returns a context manager, which times its first argument, a name."""
    original = getattr(cls, name)

    @functools.wraps(original)
    @contextlib.contextmanager
    def timer(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        start = time.monotonic()
        try:
            with original(self, *args, **kwargs) as value:
                yield value
        finally:
            emit(_first(args, kwargs), TIMER, start, time.monotonic())

    setattr(cls, name, timer)


def timing_context(cls: Any, attribute: str) -> None:
    """A context manager, also an asynchronous one, whose name is in an attribute of it."""
    for enter, leave, is_async in (("__enter__", "__exit__", False), ("__aenter__", "__aexit__", True)):
        if hasattr(cls, enter):
            wrap = _async_ends if is_async else _ends
            wrap(cls, enter, leave, attribute)


def _ends(cls: Any, enter: str, leave: str, attribute: str) -> None:
    on, off = getattr(cls, enter), getattr(cls, leave)

    @functools.wraps(on)
    def begin(self: Any) -> Any:
        _start(self)
        return on(self)

    @functools.wraps(off)
    def end(self: Any, *raised: Any) -> Any:
        _stop(self, getattr(self, attribute, attribute))
        return off(self, *raised)

    setattr(cls, enter, begin)
    setattr(cls, leave, end)


def _async_ends(cls: Any, enter: str, leave: str, attribute: str) -> None:
    on, off = getattr(cls, enter), getattr(cls, leave)

    @functools.wraps(on)
    async def begin(self: Any) -> Any:
        _start(self)
        return await on(self)

    @functools.wraps(off)
    async def end(self: Any, *raised: Any) -> Any:
        _stop(self, getattr(self, attribute, attribute))
        return await off(self, *raised)

    setattr(cls, enter, begin)
    setattr(cls, leave, end)


def start_and_stop(cls: Any, start: str, stop: str) -> None:
    """Two methods that take a name, one to start its time and one to stop it."""
    on, off = getattr(cls, start), getattr(cls, stop)

    @functools.wraps(on)
    def begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        _start(self, str(_first(args, kwargs)))
        return on(self, *args, **kwargs)

    @functools.wraps(off)
    def end(self: Any, *args: Any, **kwargs: Any) -> Any:
        label = _first(args, kwargs)
        _stop(self, label, str(label))
        return off(self, *args, **kwargs)

    setattr(cls, start, begin)
    setattr(cls, stop, end)


# Begun times of a timer, by itself and the name of each: kept here, so that any class of timer will do.
_begun: dict[tuple[int, str], list[float]] = {}


def _start(timer: Any, name: str = "") -> None:
    _begun.setdefault((id(timer), name), []).append(time.monotonic())


def _stop(timer: Any, label: object, name: str = "") -> None:
    """Write the span of a timer; one that was not started, which the framework may refuse itself, leaves none."""
    now, starts = time.monotonic(), _begun.get((id(timer), name))
    if starts:
        emit(label, TIMER, starts.pop(), now)
        if not starts:
            del _begun[id(timer), name]


def timed_methods(cls: Any, names: dict[str, str]) -> None:
    """Methods that the framework's loop calls: each call is a span under the name beside it, also within another.

    Raises:
        AttributeError: the class has one of the methods no more.
    """
    for method, name in names.items():
        setattr(cls, method, timed(getattr(cls, method), name))


def from_call_to_call(cls: Any, first: str, last: str, name: str, is_end: Callable[[Any], Any]) -> None:
    """Spans that follow each other, from one call of a method to the next.

    Args:
        cls: the class.
        first: the method whose first call begins the first span.
        last: the method whose calls end a span each.
        name: of the spans.
        is_end: whether a call of `last` ends one, by the object that it is called of.

    Raises:
        AttributeError: the class has one of the methods no more.
    """
    begin, end, is_end = getattr(cls, first), getattr(cls, last), unbroken(is_end, otherwise=False)
    begun: list[float] = []

    @functools.wraps(begin)
    def start(*args: Any, **kwargs: Any) -> Any:
        if not begun:
            begun.append(time.monotonic())
        return begin(*args, **kwargs)

    @functools.wraps(end)
    def stop(self: Any, *args: Any, **kwargs: Any) -> Any:
        if begun and is_end(self):
            now = time.monotonic()
            emit(name, TIMER, begun[0], now)
            begun[0] = now
        return end(self, *args, **kwargs)

    setattr(cls, first, start)
    setattr(cls, last, stop)


def moments_of_calls(cls: Any, method: str, name: str, counts: Callable[[Any], Any]) -> None:
    """The moments at which a method is called, as spans without length.

    Args:
        cls: the class.
        method: its method.
        name: of the spans.
        counts: whether a call is one, by its first argument.

    Raises:
        AttributeError: the class has the method no more.
    """
    original, counts = getattr(cls, method), unbroken(counts, otherwise=False)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if counts(_first(args, kwargs)):
            now = time.monotonic()
            emit(name, TIMER, now, now)
        return original(self, *args, **kwargs)

    setattr(cls, method, call)


def before_return(cls: Any, method: str, act: Callable[[], None]) -> None:
    """Have something done each time a method has done its work.

    Args:
        cls: the class.
        method: its method.
        act: what is to be done; raises nothing.

    Raises:
        AttributeError: the class has the method no more.
    """
    original = getattr(cls, method)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        act()
        return result

    setattr(cls, method, call)


def worker_methods(cls: Any, phases: dict[str, str]) -> None:
    """Methods by which a worker is called: each call is a span of the phase beside it, unless it is within another.

    Raises:
        AttributeError: the class has one of the methods no more.
    """
    for method, phase in phases.items():
        setattr(cls, method, called(getattr(cls, method), functools.partial(_always, phase)))


def _always(phase: str, _worker: Any) -> str:
    return phase


def timed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, each call of it a span; an asynchronous one stays one."""
    if inspect.iscoroutinefunction(function):
        return _called_async(function, lambda _: name, TIMER)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            emit(name, TIMER, start, time.monotonic())

    return call


def unbroken(question: Callable[[Any], Any], otherwise: Any) -> Callable[[Any], Any]:
    """A question to an object of the framework's; whatever is in its way is noted once, and answered as given."""
    is_noted = False

    def ask(of: Any) -> Any:
        nonlocal is_noted
        try:
            return question(of)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not break the job that is watched
            if not is_noted:
                note(f"{type(of).__name__} is not as this version of placebench knows it: {error!r}")
            is_noted = True
            return otherwise

    return ask


def noted_calls(module: Any, function: str, says: Callable[[Any], str | None]) -> None:
    """A note of what a function of a module does, once, where it is there and does so.

    Args:
        module: the module.
        function: its name in it.
        says: the note of a call, by its first argument; None for one that is not worth a note.
    """
    original, says = getattr(module, function, None), unbroken(says, otherwise=None)
    if original is None:
        return
    is_noted = False

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_noted
        text = None if is_noted else says(_first(args, kwargs))
        if text is not None:
            is_noted = True
            note(text)
        return original(*args, **kwargs)

    setattr(module, function, call)


def called(function: Callable[..., Any], phase_of: Callable[[Any], str | None]) -> Callable[..., Any]:
    """The method of a worker, each call of it a span, unless one around it in the same thread is one.

    Args:
        function: the method.
        phase_of: gives the phase by the worker; None for work of no phase.
    """
    phase_of = unbroken(phase_of, None)
    if inspect.iscoroutinefunction(function):
        return _called_async(function, phase_of, WORKER)

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        phase = None if getattr(_worker, "is_called", False) else phase_of(self)
        if phase is None:
            return function(self, *args, **kwargs)
        _worker.is_called, start = True, time.monotonic()
        try:
            return function(self, *args, **kwargs)
        finally:
            _worker.is_called = False
            emit(phase, WORKER, start, time.monotonic())

    return call


def _called_async(
    function: Callable[..., Any], name_of: Callable[[Any], str | None], source: str
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        name, start = name_of(self), time.monotonic()
        try:
            return await function(self, *args, **kwargs)
        finally:
            if name is not None:
                emit(name, source, start, time.monotonic())

    return call


class BusyEngine:
    """The work of an inference engine in this process: its steps, joined to spans of `gen`.

    Steps that follow each other within `gap_s` are one span. It is written when the engine has nothing left to do, and
    in any case every `longest_s`, so that a process that is killed loses no more.

    Args:
        gap_s: longest time between two steps of one span, seconds.
        longest_s: longest span, seconds.
    """

    def __init__(self, gap_s: float = 0.02, longest_s: float = 0.25) -> None:
        self._gap_s, self._longest_s = gap_s, longest_s
        self._start: float | None = None
        self._end = 0.0
        atexit.register(self.write)
        os.register_at_fork(after_in_child=self._forget)

    def write(self) -> None:
        """Write the span so far, if there is one."""
        if self._start is not None:
            emit("gen", ENGINE, self._start, self._end)
            self._forget()

    def watch(self, cls: Any, method: str, has_more: Callable[[Any], bool]) -> None:
        """Take every call of a method for a step.

        Args:
            cls: the engine's class.
            method: its method that makes a step.
            has_more: whether the engine has work left after it.
        """
        original, has_more = getattr(cls, method), unbroken(has_more, True)

        @functools.wraps(original)
        def step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            self._begin(time.monotonic())
            try:
                return original(engine, *args, **kwargs)
            finally:
                self._end = time.monotonic()
                if (self._start is not None and self._end - self._start > self._longest_s) or not has_more(engine):
                    self.write()

        setattr(cls, method, step)

    def _forget(self) -> None:
        self._start = None

    def _begin(self, now: float) -> None:
        if self._start is not None and now - self._end > self._gap_s:
            self.write()
        if self._start is None:
            self._start = now
