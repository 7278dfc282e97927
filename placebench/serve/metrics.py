"""What runs measure as they go on, for Prometheus: OpenMetrics, written by its own client library."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from placebench.record.folder import Status
from placebench.record.run_file import RunFile
from placebench.serve.launch_files import LaunchFiles, readings
from placebench.serve.run_files import RunFiles
from placebench.spec.devices import device_labels
from placebench.spec.legible import visible
from placebench.spec.phases import STEP

_TIMING = "timing_s/"
_DEVICE = {
    "load": ("placebench_device_load_ratio", "Busy share of a device", 1.0),
    "memory": ("placebench_device_memory_bytes", "Memory in use on a device", 1.0),
    "power": ("placebench_device_power_watts", "Power of a device", 1.0),
    "clock": ("placebench_device_sm_clock_hertz", "Clock of a device's SMs", 1e6),
}
_LABELS = ("run", "round", "placement")


class RunCollector(Collector):
    """The numbers of runs, as they stand.

    Args:
        runs: their files, read on.
    """

    def __init__(self, runs: Iterable[RunFiles]) -> None:
        self._runs = list(runs)

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        known = [(one, one.record) for one in self._runs if one.record is not None]
        info = InfoMetricFamily("placebench_run", "A run and how it stands", labels=("run",))
        launches = GaugeMetricFamily("placebench_launches", "Launches of a run", labels=("run", "status"))
        for files, record in known:
            name = _name(files)
            info.add_metric((name,), {"name": visible(record.name), "status": files.status})
            for status, count in _statuses(files).items():
                launches.add_metric((name, status), count)
        yield info
        yield launches
        yield from _steps([(files, files.current) for files, _ in known if files.current])
        yield from _devices([(files, record, files.current) for files, record in known if files.current])


def registry_of(runs: Iterable[RunFiles]) -> CollectorRegistry:
    """A registry with the numbers of runs alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RunCollector(runs))
    return registry


def _name(files: RunFiles) -> str:
    return visible(files.folder.path.name)


def _statuses(files: RunFiles) -> dict[str, int]:
    found = {str(status): 0 for status in Status if status is not Status.DAMAGED}
    for key in files.order:
        status = str(files.statuses.get(key, Status.PLANNED))
        found[status] = found.get(status, 0) + 1
    return found


def _steps(runs: Sequence[tuple[RunFiles, LaunchFiles]]) -> Iterator[Metric]:
    number = GaugeMetricFamily("placebench_step", "The last step of the launch that runs", labels=_LABELS)
    seconds = GaugeMetricFamily("placebench_step_seconds", "Time of the last step", labels=_LABELS)
    tokens = GaugeMetricFamily(
        "placebench_tokens_per_second", "Real tokens of the last step over its time", labels=_LABELS
    )
    phases = GaugeMetricFamily(
        "placebench_phase_seconds", "Time of a phase in the last step", labels=(*_LABELS, "phase")
    )
    for files, current in runs:
        labels = (_name(files), str(current.steps.round), visible(current.steps.placement))
        metrics = current.steps.metrics
        took = metrics.get(f"{_TIMING}{STEP}")
        if took is None:
            continue
        number.add_metric(labels, current.steps.last)
        seconds.add_metric(labels, took)
        if (counted := metrics.get("perf/total_num_tokens")) is not None and took > 0:
            tokens.add_metric(labels, counted / took)
        for name, value in metrics.items():
            if name.startswith(_TIMING) and name != f"{_TIMING}{STEP}":
                phases.add_metric((*labels, visible(name.removeprefix(_TIMING))), value)
    yield from (number, seconds, tokens, phases)


def _devices(runs: Sequence[tuple[RunFiles, RunFile, LaunchFiles]]) -> Iterator[Metric]:
    families = {
        key: GaugeMetricFamily(name, text, labels=("run", "device")) for key, (name, text, _) in _DEVICE.items()
    }
    for files, record, current in runs:
        names = device_labels(record.devices)
        for device, state in tuple(current.devices.items()):  # a page's reader may add some meanwhile
            for key, value in readings(state.last).items() if state.last else ():
                if value is not None:
                    families[key].add_metric(
                        (_name(files), visible(names.get(device, device))), value * _DEVICE[key][2]
                    )
    yield from families.values()
