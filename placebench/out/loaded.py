"""A run in Python, for scripts and notebooks: `run = placebench.load("runs/…")`.

Tables are pandas DataFrames with one row an observation, figures are matplotlib's. All of it is read from the run's
files when it is first asked for, and kept; load the run again where it has gone on.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from placebench.compare.comparison import Comparison, compare_run
from placebench.compare.read.run import Run
from placebench.compare.read.run_reading import load_run
from placebench.errors import Reasons, UsageError
from placebench.out.tables import device_table, launch_table, span_table, step_table
from placebench.predict.asking import asked_devices, asked_workload, explain_lookups, known_gpu, step_model
from placebench.predict.memory.fitting import fits
from placebench.predict.possible import lay_out
from placebench.predict.prediction import MOST_PRICE, predict
from placebench.predict.step import StepModel
from placebench.record.folder import RunFolder
from placebench.record.run_file import read_run_file
from placebench.report.calibrations import load_calibration
from placebench.report.comparison_table import comparison_rows, note_on
from placebench.report.deciding import DecidingRun
from placebench.report.kept import kept_summary, read_summary
from placebench.report.placement_schema import QuantitySummary
from placebench.report.plots import draw_plots
from placebench.report.predicted import prediction_rows
from placebench.report.schema import Summary
from placebench.report.summary import summarize
from placebench.report.tables import Grid, single_grid
from placebench.spec.legible import shown, visible
from placebench.spec.nested import merge, nest
from placebench.spec.placement import Placement
from placebench.spec.words import given_twice, read_placement, split_words

_NUMBER = ("key", "label", "unit", "value", "low", "high", "n")
_RATIO = ("ratio", "ratio_low", "ratio_high", "p_value")


class LoadedRun:
    """A run as `placebench.load` returns it.

    Of a run that was shared without its raw files there is `compare` alone, without figures, and `predict`.

    Args:
        path: the run's folder.

    Raises:
        UsageError: there is no such folder, it is not a run's, or its `run.json` is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        """The run's folder."""
        self._is_shared = RunFolder(path).lacks_raw_files
        of = read_summary(path) if self._is_shared else read_run_file(RunFolder(path))
        self.name: str = of.name or path.name
        """The run's name, or its folder's where it has none."""
        self.status: str = str(of.status)
        """`running`, `done`, `failed` or `interrupted`."""
        self.placements: tuple[str, ...] = tuple(placement.name for placement in of.placements)
        """The placements in their order; the others are compared with the first."""

    @cached_property
    def launches(self) -> pd.DataFrame:
        """One row for each launch that the run was to have, whether or not it is done.

        Columns: `placement`; `round`, from 1; `status`; `error`, one line, missing where there is none; `steps`, on
        record; `warmup_steps`, those left out of the numbers; `startup_s`, `steps_s`, `trace_s` and `stop_s`, seconds,
        NaN unless it is done.
        """
        return launch_table(self._run)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row for each step of each finished launch.

        Columns: `placement`; `round`, from 1; `step`; `is_warmup`, whether it is left out of the numbers; `step_s`, its
        seconds without validation and checkpoints, NaN where a pause was a part of it; then whatever the job logged of
        the step, under verl's names: `timing_s/…` seconds, `perf/throughput` tokens/s/device, losses and lengths as
        they are.
        """
        return step_table(self._run)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """One row for each phase of each step on each device, and as the controller saw it, of each finished launch.

        Columns: `placement`; `round`, from 1; `step`, 0 outside all steps; `phase`; `role` and `pool`, missing where
        it has none; `device`, such as `gpu:0`, or `controller`; `start_s` and `end_s`, seconds from the launch's first
        span; `seconds`, between them; `allocated_bytes` and `reserved_bytes`, the most that tensors took at a time,
        and with what their allocator held in reserve; `pid`, the process. Phases overlap: do not add up seconds of
        different ones.
        """
        return span_table(self._run)

    @cached_property
    def devices(self) -> pd.DataFrame:
        """One row for each sample of each device, and of the controller's process, of each finished launch.

        Columns: `placement`; `round`, from 1; `time_s`, seconds from the first span of the launch, as in the table of
        spans; `wall`, seconds since the epoch; `device`, such as `gpu:0`, or `controller`; `util`, a share, on a GPU
        that of the time in which any kernel ran, waiting ones included; `memory_bytes`; `power_w`, W; and what else the
        source tells, on GPUs `sm_activity`, `tensor_activity` and `dram_activity`, shares of their peaks,
        `clock_sm_mhz`, and bytes/s as `nvlink_rx_bytes_s`. `placebench.telemetry.samples.QUANTITIES` says all of them
        with their units. NaN is what could not be read.
        """
        return device_table(self._run)

    def compare(self, min_effect: float | None = None) -> "RunComparison":
        """Compare the placements of the run, each with the first, as `placebench show` does.

        Args:
            min_effect: smallest effect of interest, as a fraction; None for the run's own, or 2 %.

        Raises:
            UsageError: a file of the run is damaged, or another effect is asked of a run without its raw files.
        """
        if self._is_shared:
            return RunComparison(read_summary(self.path, min_effect), None, self.path)
        if summary := kept_summary(self.path, min_effect):
            return RunComparison(summary, None, self.path)
        comparison = compare_run(self.path, min_effect)
        return RunComparison(summarize(comparison), comparison, self.path)

    def predict(
        self,
        placements: str | Sequence[str] = (),
        *,
        devices: str | None = None,
        gpu: str | None = None,
        workload: Mapping[str, Any] | None = None,
        price: float | None = None,
    ) -> pd.DataFrame:
        """Predict the step of placements from what this run measured, as `placebench predict --from` does.

        Of a job of the user's its framework is not asked, which may have no such placement.

        Args:
            placements: their words, such as `"standard,split:3+1"`; none for those of the run.
            devices: where they are to be, such as `"gpu:8x2"`; None for as many as the run had.
            gpu: which GPU these are, such as `"H200"`; None for the run's. Of several sizes of memory the largest is
                taken, and the memory of its data sheet where `devices` describes none.
            workload: workload keys that are to be otherwise, such as `{"batch.size": 256}`.
            price: of a device for an hour, above 0; adds the cost of a million tokens.

        Returns:
            One row a placement. Columns: `placement`; `devices`, their number; `step_s`, `low_s` and `high_s`, seconds
            and the ends of their interval; `ratio`, `ratio_low` and `ratio_high`, over the fastest; `is_tied`, whether
            it cannot be told from the fastest; `prediction_class`, and of its held-out cases `held_out_cases`,
            `mean_error` and `worst_error`, fractions; `host_bound_share`, of generation, in which no kernel runs;
            `peak_memory_bytes` of a device; `tokens_per_s_per_device`;
            `cost_per_million_tokens`. What is not known is NaN.

        Raises:
            UsageError: one line for every reason why nothing can be predicted.
        """
        files = (load_calibration(self.path),)
        device = known_gpu(gpu) if gpu is not None else files[0].device
        if price is not None and not 0 < price <= MOST_PRICE:
            raise UsageError(f"price {shown(price)}: must be above 0 and at most {MOST_PRICE:,.0f}")
        asked: dict[str, Any] = {}
        for key, value in (workload or {}).items():
            if not isinstance(key, str):
                raise UsageError(f"workload: key {shown(key)} is not text: write workload keys, such as 'batch.size'")
            asked = merge(asked, nest(key.split("."), value))
        model = step_model(
            files,
            asked_workload(files, asked, lambda _: "workload"),
            asked_devices(devices, files, device, by_name=gpu is not None),
        )
        given = (placements,) if isinstance(placements, str) else placements
        words = [word for text in given for word in split_words(text)]
        with explain_lookups(model.devices[0].name, is_known_work=model.phases.workload is not None):
            found = predict(model, _possible(words or self.placements, model), price=price)
        rows = [
            one.model_dump(exclude={"phases", "memory_bytes", "waits_s", "gaps_s", "cannot_say", "extrapolated"})
            | {"peak_memory_bytes": max(one.memory_bytes.values(), default=None)}
            for one in prediction_rows(found, DecidingRun(None))
        ]
        return _with_numbers(pd.DataFrame(rows))

    def __repr__(self) -> str:
        return f"<placebench run {visible(self.name)}: {visible(', '.join(self.placements))}; {self.status}>"

    def _repr_html_(self) -> str:
        return self.compare()._repr_html_()

    @cached_property
    def _run(self) -> Run:
        if self._is_shared:
            raise UsageError(f"{self.path}: shared without its raw files: only what compare() returns is known")
        return load_run(self.path)


class RunComparison:
    """The placements of a run, each against the first, as `LoadedRun.compare` returns them."""

    def __init__(self, summary: Summary, comparison: Comparison | None, path: Path) -> None:
        self.summary = summary
        """Every number of the report, as in `summary.json`."""
        self._comparison, self._path = comparison, path

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict on each placement, a sentence, by its name; the first of several has none."""
        return {one.name: one.headline for one in self.summary.placements if one.headline}

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row for each number of each placement.

        Columns: `placement`; `key` and `label`, what it is; `unit`, `1` for a share; `value`, mean of the launches, and
        `low` and `high`, its interval; `n`, launches that have it; `ratio` over the first placement's, `ratio_low` and
        `ratio_high`, its interval; `p_value`, corrected for how many are looked at; `verdict`, one of `faster`,
        `slower`, `higher`, `lower`, `same` and `undecided`, as far as they have a meaning. What is missing is NaN or
        None.
        """
        placements = self.summary.placements
        rows = [{"placement": one.name, **_row(quantity)} for one in placements for quantity in one.quantities]
        return _with_numbers(pd.DataFrame(rows, columns=["placement", *_NUMBER, *_RATIO, "verdict"]))

    @cached_property
    def figures(self) -> dict[str, Figure]:
        """The report's figures by name: `timeline`, `ratios`, `phases`, … as far as there are measurements.

        Each is matplotlib's, without a window: show it in a notebook by its name, or `figure.savefig("step.pdf")`.
        """
        if self._comparison is None and not RunFolder(self._path).lacks_raw_files:
            self._comparison = compare_run(self._path, self.summary.method.min_effect)
        return {plot.name: plot.figure for plot in draw_plots(self._comparison)} if self._comparison else {}

    def __repr__(self) -> str:
        return visible("\n".join(self.verdicts.values()) or self.summary.coverage)

    def _repr_html_(self) -> str:
        sentences = [*self.verdicts.values(), self.summary.coverage]
        return "".join(f"<p>{escape(visible(one))}</p>" for one in sentences) + "".join(
            map(_html, _grids(self.summary))
        )


def load_folder(run: str | PathLike[str]) -> LoadedRun:
    """As `placebench.load`."""
    return LoadedRun(Path(run))


def _grids(summary: Summary) -> Iterator[Grid]:
    """The numbers as the report shows them."""
    first, *others = summary.placements
    if not others:
        yield single_grid(first)
    for other in others:
        header = ("", first.name, other.name, "ratio", "95 % interval", "verdict")
        rows = comparison_rows(first, other)
        cells = ((row.label, row.first, row.other, row.ratio, row.interval, row.marked_verdict) for row in rows)
        notes = filter(None, [note_on(rows)])
        yield Grid(f"{other.name} against {first.name}", header, tuple(cells), tuple(notes))


def _html(grid: Grid) -> str:
    cells = [[visible(cell) for cell in row] for row in grid.rows]
    table = pd.DataFrame(cells, columns=[visible(name) for name in grid.header])
    notes = "".join(f"<p>{escape(note)}</p>" for note in grid.notes)
    return f"<h4>{escape(visible(grid.title))}</h4>{table.to_html(index=False, border=0)}{notes}"


def _row(quantity: QuantitySummary) -> dict[str, Any]:
    row = quantity.model_dump(include=set(_NUMBER))
    if found := quantity.ratio:
        numbers = (found.value, found.low, found.high, found.p_value)
        row |= {**dict(zip(_RATIO, numbers, strict=True)), "verdict": str(found.verdict)}
    return row


def _with_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose columns without any value are numbers, as those are that are missing."""
    empty = [column for column in table.columns if column != "verdict" and table[column].isna().all()]
    return table.astype(dict.fromkeys(empty, float))


def _possible(words: Sequence[str], model: StepModel) -> list[Placement]:
    """The placements of words, on the devices of a model.

    Raises:
        UsageError: one line for every reason why one of them cannot be.
    """
    reasons, placements = Reasons(), []
    for word in words:
        workload, shapes = model.phases.workload, model.phases.shapes
        if workload is None or shapes is None:
            placement = read_placement(word, model.nodes, reasons)
        else:
            bound, lines = lay_out(word, model.devices, workload)
            reasons.add(lines)
            placement = bound.placement if bound else None
            if bound and not lines and not fits(workload, shapes, bound, model.devices):
                reasons.add([f"{word} does not fit into the memory of these devices"])
        if placement:
            placements.append(placement)
    reasons.add(given_twice((one.name for one in placements), ",".join(words), "placements"))
    reasons.raise_any()
    return placements
