"""A run as tidy tables: one row a launch, a step, a span or a sample, whatever the placement."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import pandas as pd

from placebench.compare.read.launches import launch_times
from placebench.compare.read.run import SAMPLE_COLUMNS, SPAN_COLUMNS, Launch, Run
from placebench.record.folder import Status

# What begins each row: of which launch it is.
LAUNCH = ("placement", "round")


def launch_table(run: Run) -> pd.DataFrame:
    """One row for each launch that the run was to have: see `LoadedRun.launches`."""
    rows = []
    for launch in run.launches:
        times = launch_times(launch, run.wall(launch))
        rows.append(
            {
                "placement": launch.placement,
                "round": launch.round,
                "status": str(launch.status),
                "error": launch.error,
                "steps": launch.steps_done,
                "warmup_steps": launch.warmup_steps,
                **{name: getattr(times, name) for name in ("startup_s", "steps_s", "trace_s", "stop_s")},
            }
        )
    return pd.DataFrame(rows)


def step_table(run: Run) -> pd.DataFrame:
    """One row for each step of each finished launch: see `LoadedRun.steps`."""

    def of(launch: Launch) -> pd.DataFrame:
        steps = launch.steps
        head = {
            "is_warmup": steps.index <= launch.last_warmup_step,
            "step_s": launch.step_seconds.reindex(steps.index).to_numpy(),
        }
        return pd.concat([pd.DataFrame(head, index=steps.index), steps], axis=1).reset_index()

    return _joined(run, of, ("step", "is_warmup", "step_s"))


def span_table(run: Run) -> pd.DataFrame:
    """One row for each span of each finished launch: see `LoadedRun.spans`."""
    columns = [{"start": "start_s", "end": "end_s"}.get(name, name) for name in SPAN_COLUMNS]
    columns.insert(columns.index("end_s") + 1, "seconds")

    def of(launch: Launch) -> pd.DataFrame:
        spans, zero = launch.spans, _zero(launch)
        start, end = spans["start"] - zero, spans["end"] - zero
        times = {"start_s": start, "end_s": end, "seconds": end - start, "device": _labels(run, spans["device"])}
        return spans.assign(**times)[columns]

    return _joined(run, of, columns)


def device_table(run: Run) -> pd.DataFrame:
    """One row for each sample of each device in each finished launch: see `LoadedRun.devices`."""

    def of(launch: Launch) -> pd.DataFrame:
        samples = launch.samples
        changed = {"mono": samples["mono"] - _zero(launch), "device": _labels(run, samples["device"])}
        return samples.assign(**changed).rename(columns={"mono": "time_s"})

    return _joined(run, of, ("time_s", *SAMPLE_COLUMNS[1:]))


TABLES: Mapping[str, Callable[[Run], pd.DataFrame]] = MappingProxyType(
    {"launches": launch_table, "steps": step_table, "spans": span_table, "devices": device_table}
)
"""Each table by the name of its file."""


def _joined(run: Run, of: Callable[[Launch], pd.DataFrame], columns: Iterable[str]) -> pd.DataFrame:
    """The tables of all finished launches under each other, each row with its launch in front."""
    tables = list(_tables(run, of))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=[*LAUNCH, *columns])


def _tables(run: Run, of: Callable[[Launch], pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for launch in run.launches:
        if launch.status is Status.DONE and not (table := of(launch)).empty:
            table.insert(0, "placement", launch.placement)
            table.insert(1, "round", launch.round)
            yield table


def _zero(launch: Launch) -> float:
    """Start of a launch's first span, on the monotonic clock; 0 where it has none."""
    return 0.0 if launch.spans.empty else float(launch.spans["start"].min())


def _labels(run: Run, devices: "pd.Series[str]") -> "pd.Series[str]":
    return devices.map(lambda device: run.labels.get(device, device))
