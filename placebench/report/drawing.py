"""A report's figures as texts, drawn in processes of their own beside the rest of the report where that can be.

Drawing takes longer than all else of a report. This module loads nothing heavy, so that the processes can be forked
before matplotlib is loaded, which is then loaded beside the comparison.
"""

import contextlib
import gc
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from placebench.compare.comparison import Comparison

Result = TypeVar("Result")
# Of OpenBLAS, and of the allocator in pyarrow, which pandas loads: a process that has threads cannot be forked safely,
# for one of them may hold a lock. Each starts some when it is loaded, and a report has no use for them.
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


@dataclass(frozen=True)
class DrawnPlot:
    """One figure of the report as its files have it."""

    name: str
    """The files' name without its suffix."""
    title: str
    """Its heading."""
    caption: str
    """What it shows."""
    svg: str
    """The `<svg>` element."""
    narrow_svg: str
    """The same for the width of a phone."""
    png: bytes | None
    """The figure as a PNG, if that is wanted."""


class Drawing:
    """The figures of one report, which are drawn when its comparison is there: see `drawing`."""

    def __init__(self, artist: "Forked[list[DrawnPlot]] | None") -> None:
        self._artist = artist
        self._task: tuple[Comparison, bool] | None = None

    def begin(self, comparison: "Comparison", *, with_png: bool) -> None:
        """Say what is to be drawn, and whether as PNGs too."""
        self._task = comparison, with_png
        if self._artist:
            self._artist.send(self._task)

    def plots(self) -> list[DrawnPlot]:
        """The figures for which there are measurements, most important first.

        Raises:
            RuntimeError: a process that draws ended early.
        """
        if self._task is None:
            raise ValueError("what is to be drawn has not been said")
        return self._artist.result() if self._artist else _draw(*self._task)


@contextlib.contextmanager
def drawing() -> Iterator[Drawing]:
    """Figures that are drawn in processes of their own where cores and this process allow; they end with the block."""
    with _forked_if_possible(_draw_by_two) as artist:
        yield Drawing(artist)


def start_no_threads() -> None:
    """Keep libraries that are not loaded yet from starting threads, so that this process can be forked."""
    for name, value in _NO_THREADS.items():
        os.environ.setdefault(name, value)


def can_fork() -> bool:
    """Whether this process can be forked safely, having a single thread, and has more cores than one."""
    try:
        threads = len(os.listdir("/proc/self/task"))
    except OSError:  # not Linux
        return False
    return threads == 1 and len(os.sched_getaffinity(0)) > 1


class Forked(Generic[Result]):
    """A function that runs in a fork of this process: see `forked`."""

    def __init__(self, connection: Connection, memory: int | None) -> None:
        self._connection = connection
        self._memory = memory

    def send(self, message: Any) -> None:
        """Send the function something, once, without waiting for it; what it then has no use for is lost."""
        if self._memory is not None:
            with open(self._memory, "wb", closefd=False) as memory:
                pickle.dump(message, memory, pickle.HIGHEST_PROTOCOL)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(message if self._memory is None else None)

    def result(self) -> Result:
        """Wait for what the function returns.

        Raises:
            RuntimeError: its process ended early.
            Exception: whatever the function raised, with its traceback as a note.
        """
        try:
            result, error = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise RuntimeError("a process that draws figures ended early; was it killed for want of memory?") from None
        if error is not None:
            raise error
        returned: Result = result
        return returned


@contextlib.contextmanager
def forked(function: Callable[[Callable[[], Any]], Result]) -> Iterator[Forked[Result]]:
    """Run a function in a fork of this process, which is killed at the end of the block, or of this process.

    Args:
        function: gets a function that waits for what it is sent; what it returns or raises can be pickled.
    """
    context, before = get_context("fork"), os.getpid()
    here, there = context.Pipe()
    memory = _memory_file()

    def receive() -> Any:
        message = there.recv()
        if memory is None:
            return message
        with open(memory, "rb", closefd=False) as stream:
            stream.seek(0)  # from where the process before has left it
            return pickle.load(stream)

    def run() -> None:
        from placebench.host.child import die_with  # ctypes is then loaded beside the process before

        if not die_with(before):
            return
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the process before, which ends this one
        here.close()  # so that the end of the process before is the end of what it sends
        try:
            answer: tuple[Result | None, Exception | None] = (function(receive), None)
        except EOFError:  # the process before has ended
            return
        except Exception as error:  # noqa: BLE001 - raised again in the process before
            error.add_note(traceback.format_exc())
            answer = (None, error)
        with contextlib.suppress(BrokenPipeError):
            there.send(answer)

    process = context.Process(target=run)
    with contextlib.ExitStack() as stack, here:
        if memory is not None:
            stack.callback(os.close, memory)
        with there:
            process.start()
        try:
            yield Forked(here, memory)
        finally:
            process.kill()
            process.join()
            process.close()


@contextlib.contextmanager
def _forked_if_possible(function: Callable[[Callable[[], Any]], Result]) -> Iterator[Forked[Result] | None]:
    """As `forked`; None where this process cannot be forked, or may have no process more."""
    with contextlib.ExitStack() as stack:
        other = None
        if can_fork():
            with contextlib.suppress(OSError):  # a limit on processes; whoever asked does it all then
                other = stack.enter_context(forked(function))
        yield other


def _memory_file() -> int | None:
    """A file in memory, for what is sent; None where there is none, and a pipe has to do.

    A pipe holds less than a comparison, and would keep the process before until the function has time for it.
    """
    try:
        return os.memfd_create("sent")
    except (AttributeError, OSError):  # a Python built for glibc before 2.27, such as conda's; a host that forbids it
        return None


def _draw_by_two(receive: Callable[[], Any]) -> list[DrawnPlot]:
    """Draw what is sent, in this process and one more if possible; each takes the next figure when it has drawn one."""
    gc.disable()  # for the process is gone in a second, and passes would be a sixth of it
    import_module("scipy.special")  # for the intervals in figures: loaded here, it is in both processes
    from matplotlib.figure import Figure

    from placebench.report.plots import captions, slowest_first
    from placebench.report.style import svg_text

    # What matplotlib makes ready with its first figure, fonts above all, is then ready in both processes.
    first = Figure(layout="constrained")
    first.subplots().set_title("title", fontweight="bold")
    svg_text(first)
    comparison, with_png = receive()
    with (
        _handed_out(slowest_first()) as places,
        _forked_if_possible(lambda _: _draw(comparison, with_png, places)) as other,
    ):
        plots = [*_draw(comparison, with_png, places), *(other.result() if other else ())]
    order = [name for name, _, _ in captions(of_run=comparison.run is not None)]
    return sorted(plots, key=lambda plot: order.index(plot.name))


@contextlib.contextmanager
def _handed_out(places: Sequence[int]) -> Iterator[Iterator[int]]:
    """Places below 256, each of which goes to one alone of this process and those that are forked in the block."""
    reader, writer = os.pipe()
    os.write(writer, bytes(places))
    os.close(writer)
    try:
        yield (taken[0] for taken in iter(lambda: os.read(reader, 1), b""))
    finally:
        os.close(reader)


def _draw(comparison: "Comparison", with_png: bool, places: Iterable[int] | None = None) -> list[DrawnPlot]:
    """Draw the figures of a comparison, or those alone of some places in their list."""
    from placebench.report.plots import draw_plots
    from placebench.report.style import lay_out_narrowly, png_bytes, svg_text

    drawn = []
    for plot in draw_plots(comparison, places):
        png, svg = png_bytes(plot.figure) if with_png else None, svg_text(plot.figure)
        lay_out_narrowly(plot.figure)
        drawn.append(DrawnPlot(plot.name, plot.title, plot.caption, svg, svg_text(plot.figure, "narrow"), png))
    return drawn
