"""Telling the user what a run is doing: a live display on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, Self, TextIO, cast

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from placebench.host.terminal import in_ci, new_console, say
from placebench.record.folder import Status
from placebench.record.progress import LaunchPosition, LaunchState, activity, step_of
from placebench.spec.text import format_bytes, format_seconds


class Display(AbstractContextManager["Display"], Protocol):
    """Where a run reports to while it goes on; entered for as long as it does."""

    def begin(self, position: LaunchPosition) -> None:
        """A launch begins."""

    def update(self, state: LaunchState, left_s: float | None) -> None:
        """The launch goes on; `left_s` is the time left of the whole run in seconds, None while unknown."""

    def end(self, status: Status, seconds: float, said: str | None) -> None:
        """The launch has ended after `seconds`; `said` is why it is not done, or what it measured."""

    def note(self, text: str) -> None:
        """Something the user should know, in one line."""

    def released(self) -> AbstractContextManager[None]:
        """The terminal belongs to others in the body."""


def open_display(stream: TextIO | None = None) -> Display:
    """The display for a stream (stderr when not given): plain lines with CI=true, and where nothing can be redrawn."""
    steady = cast("TextIO", SteadyStream(stream or sys.stderr))
    can_redraw = steady.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return LiveDisplay(steady) if can_redraw and not in_ci() else PlainDisplay(steady)


class SteadyStream:
    """A stream that falls silent when its reader has gone (`| head`, a closed terminal): the run goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._deaf = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write as long as somebody reads."""
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush as long as somebody reads."""
        self._try(self._stream.flush)

    def _try(self, call: Callable[[], object]) -> None:
        if not self._deaf:
            try:
                call()
            except OSError:
                self._deaf = True


class PlainDisplay(Display):
    """One line at the start and end of a launch, one per step, and a sign of life where steps are long."""

    def __init__(self, stream: TextIO, pause_s: float = 2.0, silence_s: float = 30.0) -> None:
        self._stream = stream
        self._pause_s = pause_s
        self._silence_s = silence_s
        self._head = ""
        self._steps = self._before = self._shown = 0
        self._printed = 0.0

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def begin(self, position: LaunchPosition) -> None:
        """Name the launch."""
        self._head = f"[{position.number}/{position.of_total}] round {position.round} {position.placement}"
        self._steps, self._before = position.steps, position.steps_before
        self._shown = self._before
        self._print(f"{self._head}: start")

    def update(self, state: LaunchState, left_s: float | None) -> None:
        """Print finished steps, `pause_s` apart, and what is being done after `silence_s` without a line."""
        done, since = self._before + len(state.step_times), time.monotonic() - self._printed
        if done > self._shown and (since >= self._pause_s or done == self._steps):
            self._shown = done
            left = "" if left_s is None or left_s < 1 else f", about {format_seconds(left_s)} left"
            self._print(f"{self._head}: {step_of(done, self._steps)} {format_seconds(state.step_times[-1])}{left}")
        elif since >= self._silence_s:
            self._print(f"{self._head}: {activity(state, self._steps)}, {format_seconds(state.silent_s)} so far")

    def end(self, status: Status, seconds: float, said: str | None) -> None:
        """Print how it ended."""
        self._print(f"{self._head}: {status} after {format_seconds(seconds)}" + (f": {said}" if said else ""))

    def note(self, text: str) -> None:
        """Print the note."""
        self._print(f"note: {text}")

    def released(self) -> AbstractContextManager[None]:
        """Nothing is held."""
        return nullcontext()

    def _print(self, line: str) -> None:
        self._printed = time.monotonic()
        say(line, self._stream)


class LiveDisplay(Display):
    """A few lines that are redrawn in place; finished launches scroll up as one line each."""

    def __init__(self, stream: TextIO, interval_s: float = 0.4) -> None:
        self._console = new_console(stream)
        # Redrawn by `update` alone: a thread of its own would be forked with every launch.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._interval_s = interval_s
        self._drawn = 0.0
        self._position: LaunchPosition | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, position: LaunchPosition) -> None:
        """Show the new launch at the next update."""
        self._position, self._drawn = position, 0.0

    def update(self, state: LaunchState, left_s: float | None) -> None:
        """Redraw, at most every `interval_s`."""
        now = time.monotonic()
        if self._position is not None and now - self._drawn >= self._interval_s:
            self._drawn = now
            self._live.update(_render(self._position, state, left_s), refresh=True)

    def end(self, status: Status, seconds: float, said: str | None) -> None:
        """Leave one line about the launch."""
        position = self._position
        if position is None:
            return
        self._live.update("")
        style = "green" if status is Status.DONE else "red"
        self._console.print(
            f"[bold]{position.number}/{position.of_total}[/] round {position.round} {escape(position.placement)}"
            f" [{style}]{status}[/] after {format_seconds(seconds)}" + (f": {escape(said)}" if said else "")
        )

    def note(self, text: str) -> None:
        """Leave the note above the display."""
        self._console.print(f"[yellow]note:[/] {escape(text)}")

    @contextmanager
    def released(self) -> Iterator[None]:
        """Give the cursor back, and draw again after it."""
        self._live.stop()
        yield
        self._live.start()


def _render(position: LaunchPosition, state: LaunchState, left_s: float | None) -> RenderableType:
    done = len(state.step_times)
    last = f"last step {format_seconds(state.step_times[-1])}" if done else "no step finished yet"
    left = "time left unknown" if left_s is None else f"about {format_seconds(left_s)} left"
    about = "about " if position.is_estimate else ""
    head = Text.assemble(
        (f"round {position.round}/{about}{position.rounds}  {position.placement}", "bold"),
        f"  launch {position.number} of {position.of_total}  {left}",
    )
    work = Table.grid(padding=(0, 2))
    work.add_row(
        ProgressBar(position.steps, position.steps_before + done, width=24), activity(state, position.steps), last
    )
    devices = Table.grid(padding=(0, 2))
    for load in state.loads:
        if load.device in position.labels:
            devices.add_row(
                position.labels[load.device],
                ProgressBar(1.0, load.util or 0.0, width=16),
                "load unknown" if load.util is None else f"{load.util:4.0%}",
                "" if load.memory_bytes is None else format_bytes(load.memory_bytes),
            )
    return Group(head, work, devices)
