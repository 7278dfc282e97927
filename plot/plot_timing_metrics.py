#!/usr/bin/env python3
"""Draw where the time of training steps goes, from one log or several side by side."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

try:
    import click
    import pandas as pd

    from placebench.commands.console import let_everything_be_printed, progress_on_stderr
    from placebench.commands.group import fail, refuse_undecodable
    from placebench.commands.outputs import OutputPath
    from placebench.errors import PlacebenchError, UsageError
    from placebench.host.signals import StopSignals
    from placebench.host.terminal import say
    from placebench.logs.follow import GrowingLog
    from placebench.logs.read import Log, is_timing, launch_names, scan_log
    from placebench.logs.registry import FORMATS
    from placebench.logs.run import run_of_logs
    from placebench.logs.timing import Kind, Timings
    from placebench.record.writing import replacing
    from placebench.report import figures
    from placebench.report.style import save_figure
    from placebench.spec.auto_rounds import MOST_STEPS
    from placebench.spec.legible import sheet_cell
except ModuleNotFoundError as missing:
    # Called with a Python that lacks the package: the one that `make demo` has set up has it.
    venv = Path(__file__).resolve().parents[1] / ".venv"
    if (venv / "bin" / "python").exists() and Path(sys.prefix).resolve() != venv:
        os.execv(venv / "bin" / "python", [str(venv / "bin" / "python"), *sys.argv])
    sys.exit(f"Error: {missing.name} is not installed in this Python: run make demo, or pip install -e .")

CSV_NAME = "timing_s.csv"
CSV_STEPS = 50_000
# How often growing logs are looked at.
LOOK_S = 0.5
_EXAMPLE = """\b
Example:
  python plot/plot_timing_metrics.py runs/demo.log runs/demo_split.log --output-dir out --skip-first 1
"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXAMPLE)
@click.argument("logs", metavar="LOG [LOG …]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output-dir", type=OutputPath(is_folder=True), default=Path("plots"), show_default=True, help="Where to write."
)
@click.option(
    "--format",
    "suffix",
    type=click.Choice(["png", "svg", "pdf"]),
    default="png",
    show_default=True,
    help="Of the figures.",
)
@click.option(
    "--skip-first",
    type=click.IntRange(0, MOST_STEPS),
    default=0,
    show_default=True,
    metavar="N",
    help="Leave out the first N steps of each log: warm-up.",
)
@click.option(
    "--smooth",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Draw the moving average of N steps.",
)
@click.option(
    "--log-format",
    type=click.Choice([known.name for known in FORMATS]),
    help="Read the logs as this format; told by their content otherwise.",
)
@click.option("--follow", is_flag=True, help="The logs still grow: draw again as steps come, until Ctrl-C.")
def plot_timing_metrics(
    logs: tuple[Path, ...],
    output_dir: Path,
    suffix: str,
    skip_first: int,
    smooth: int,
    log_format: str | None,
    follow: bool,
) -> None:
    """Draw every phase over the steps, the mean per phase and the share of the step."""
    for path in logs:
        if logs.count(path) > 1:
            raise UsageError(f"{path} is given twice: name each log once")
    if follow:
        _follow(logs, log_format, skip_first, lambda timings: _draw(timings, output_dir, suffix, smooth))
        return
    timings = {}
    for path, name in zip(logs, launch_names(logs), strict=True):
        log = scan_log(path, log_format=log_format, keep=is_timing)
        found = log.timings()
        for line in _flag_lines(log):
            say(line, sys.stderr)
        timings[name] = found.without_first(skip_first)
        if not len(timings[name].steps):
            has = f"which has timings of {len(found.steps)} steps"
            raise UsageError(f"--skip-first {skip_first} leaves nothing of {path}, {has}")
    for written in _draw(timings, output_dir, suffix, smooth):
        say(written)


def _draw(logs: dict[str, Timings], output_dir: Path, suffix: str, smooth: int) -> list[Path]:
    """Write the figures and their numbers; returns the files."""
    thinned = figures.thinning(logs.values())
    lines = pd.concat([timings.thinned(thinned).tidy(name) for name, timings in logs.items()], ignore_index=True)
    means = [
        figures.mean_table(timings.only([phase]).tidy(name))
        for name, timings in logs.items()
        for phase in timings.kinds
    ]
    sums = pd.concat([timings.whole().tidy(name) for name, timings in logs.items()], ignore_index=True)
    drawn = {
        "phases_over_steps": figures.phases_over_steps(lines, smooth=smooth, thinned=thinned),
        "mean_per_phase": figures.mean_per_phase(pd.concat(means, ignore_index=True)),
        "share_of_step": figures.share_of_step(sums),
    }
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        written = [output_dir / f"{name}.{suffix}" for name in drawn]
        for path, figure in zip(written, drawn.values(), strict=True):
            with replacing(path) as scratch:
                save_figure(figure, scratch)
        with replacing(output_dir / CSV_NAME) as scratch, scratch.open("w", newline="") as stream:
            for place, table in enumerate(_tables(logs, smooth)):
                table.to_csv(stream, index=False, header=not place)
    except OSError as error:
        raise UsageError(f"--output-dir {output_dir}: cannot write there: {error.strerror}") from None
    return [*written, output_dir / CSV_NAME]


def _tables(logs: dict[str, Timings], smooth: int) -> Iterator[pd.DataFrame]:
    """The numbers of some thousand steps at a time, which is what there is memory for."""
    for name, timings in logs.items():
        shown = timings.only([phase for phase, kind in timings.kinds.items() if kind != Kind.DETAIL])
        averages = _as_cells(shown.averaged(smooth)) if smooth > 1 else None
        shown = _as_cells(shown)
        for first in range(0, len(shown.steps), CSV_STEPS):
            table = shown.between(first, first + CSV_STEPS).tidy(sheet_cell(name))
            if averages:
                lines = averages.between(first, first + CSV_STEPS).tidy(sheet_cell(name)).drop(columns="kind")
                lines = lines.rename(columns={"seconds": "moving_average"})
                table = table.merge(lines, how="left", on=["launch", "phase", "step"])
            yield table


def _as_cells(timings: Timings) -> Timings:
    """The same with names that a sheet takes for no formula."""
    kinds = {sheet_cell(phase): kind for phase, kind in timings.kinds.items()}
    return Timings(timings.seconds.rename(columns=sheet_cell), kinds)


def _flag_lines(log: Log) -> list[str]:
    """What to mind of a log."""
    return [f"{log.path}: {flag.name}: {flag.text}" for flag in log.flags]


def _follow(
    logs: tuple[Path, ...], log_format: str | None, skip_first: int, draw: Callable[[dict[str, Timings]], list[Path]]
) -> None:
    """Draw growing logs whenever they have new steps, until the user says stop.

    Raises:
        UsageError: a log cannot be read on, or nothing was drawn; the message says what was waited for.
    """
    lock, is_last = threading.Lock(), False
    drawing = _Drawing(logs, skip_first, draw)
    with StopSignals() as signals, ExitStack() as stack:
        growing = [stack.enter_context(GrowingLog(path, lock, log_format=log_format, keep=is_timing)) for path in logs]
        while not is_last:
            time.sleep(LOOK_S)
            is_last = signals.received is not None
            drawing.look(growing, lock)
    if not drawing.has_drawn:
        raise UsageError(f"nothing was drawn: {drawing.waiting}")


class _Drawing:
    """What is drawn of growing logs.

    Attributes:
        has_drawn: whether anything was.
        waiting: what is waited for until all logs can be drawn.
    """

    def __init__(
        self, paths: tuple[Path, ...], skip_first: int, draw: Callable[[dict[str, Timings]], list[Path]]
    ) -> None:
        self.has_drawn, self.waiting = False, "no step was read yet"
        self._paths, self._skip_first, self._draw = paths, skip_first, draw
        self._steps = -1
        self._told: set[str] = set()

    def look(self, growing: list[GrowingLog], lock: threading.Lock) -> None:
        """Draw the logs anew if they have new steps, or say what is waited for; once, what to mind of them."""
        with lock:
            steps = sum(log.steps for log in growing)
            if steps == self._steps:
                return
            found = [log.log for log in growing]
            lines = [line for log in found if log for line in _flag_lines(log)]
            timings = [_drawable(log, self._skip_first) for log in found]
        self._steps = steps
        self._tell(lines)
        lacking = [str(path) for path, one in zip(self._paths, timings, strict=True) if one is None]
        if lacking:
            self._wait_for(lacking)
            return
        drawable = {name: one for name, one in zip(launch_names(self._paths), timings, strict=True) if one is not None}
        say(f"{steps} steps: {', '.join(map(str, self._draw(drawable)))}")
        self.has_drawn = True

    def _tell(self, lines: list[str]) -> None:
        """Say what was not said yet."""
        for line in lines:
            if line not in self._told:
                say(line, sys.stderr)
        self._told.update(lines)

    def _wait_for(self, lacking: list[str]) -> None:
        """Say so, unless it is what was said last."""
        before, behind = self.waiting, f" after the first {self._skip_first}" if self._skip_first else ""
        self.waiting = f"no step with timings{behind} yet in {', '.join(lacking)}"
        if self.waiting != before:
            say(f"waiting: {self.waiting}")


def _drawable(log: Log | None, skip_first: int) -> Timings | None:
    """The timings of a growing log that are drawn; None while there are none."""
    timings = run_of_logs((log,)).timings if log else None
    return timings.without_first(skip_first) if timings and len(timings.steps) > skip_first else None


def main() -> None:
    """Run the command; what the user got wrong ends in one line and its exit code."""
    let_everything_be_printed()
    try:
        refuse_undecodable(sys.argv)
        with progress_on_stderr():
            plot_timing_metrics.main(standalone_mode=False)
    except PlacebenchError as error:
        sys.exit(fail(error.exit_code, *error.args, name="Error"))
    except click.ClickException as error:
        sys.exit(fail(error.exit_code, error.format_message(), name="Error"))
    except click.Abort:
        sys.exit(130)


if __name__ == "__main__":
    main()
