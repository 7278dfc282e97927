import json
import time
from typing import Any

import pynvml
import pytest
from nvml_fake import DEFAULTS, FakeGpu, install
from pydantic import TypeAdapter

from placebench.errors import PlacebenchError
from placebench.host.gpus import list_gpus
from placebench.record.launch_lines import ProcessesLine
from placebench.telemetry import gpm
from placebench.telemetry.nvml_source import LOST_CODES, NvmlSource
from placebench.telemetry.samples import QUANTITIES, keys_of
from placebench.telemetry.spans import SpanClock

FIRST, SECOND = "GPU-aaaa", "GPU-bbbb"
GPM_VALUES = {
    pynvml.NVML_GPM_METRIC_SM_UTIL: 96.5,
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 93.6,
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 41.0,
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: 1000.0,
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: 2000.0,
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 3.0,
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 4.0,
}


@pytest.fixture(autouse=True)
def _still(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still but for sleeping, which takes none: no test depends on what it takes to get on."""
    if request.node.get_closest_marker("gpu"):
        return
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.time", lambda: 1.7e9 + now[0])


def two_gpus(**first: Any) -> list[FakeGpu]:
    return [FakeGpu(FIRST, gpm=dict(GPM_VALUES), **first), FakeGpu(SECOND, gpm=dict(GPM_VALUES))]


def lines(source: NvmlSource, kind: str) -> list[dict[str, Any]]:
    return [line for line in source.read() if line["kind"] == kind]


def test_every_quantity_is_read_in_the_units_of_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    library = install(monkeypatch, two_gpus())
    source = NvmlSource([FIRST, SECOND], SpanClock())
    assert source.header()["driver"] == "580.159.03"
    assert (source.header()["gpm"], source.header()["gpm_absent"]) == (True, {})
    time.sleep(2 * gpm.MIN_GAP_S)
    first, second = lines(source, "sample")
    assert (first["device"], second["device"]) == (FIRST, SECOND)
    assert list(first) == ["kind", "wall", "mono", "device", *keys_of("nvml")]
    assert abs(first["wall"] - time.time()) < 1
    assert {key: first[key] for key in keys_of("nvml")} == pytest.approx(
        {
            "util": 0.87,
            "memory_bytes": DEFAULTS["memory_used"],
            "memory_reserved_bytes": DEFAULTS["memory_reserved"],
            "power_w": 412.345,
            "temperature_c": 61,
            "clock_sm_mhz": 1365,
            "clock_memory_mhz": 3201,
            "event_reasons": 4,
            "compute_processes": 0,
            "earlier_processes": 0,
            "sm_activity": 0.965,
            "tensor_activity": 0.936,
            "dram_activity": 0.41,
            "nvlink_rx_bytes_s": 1000 * 2**20,
            "nvlink_tx_bytes_s": 2000 * 2**20,
            "pcie_rx_bytes_s": 3 * 2**20,
            "pcie_tx_bytes_s": 4 * 2**20,
        }
    )
    source.close()
    assert library.samples_held == 0


def test_gpm_waits_for_its_gap_and_never_passes_on_what_comes_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, two_gpus())
    source = NvmlSource([FIRST], SpanClock())
    assert [line["sm_activity"] for line in lines(source, "sample")] == [None]
    time.sleep(2 * gpm.MIN_GAP_S)
    assert [line["sm_activity"] for line in lines(source, "sample")] == [0.965]
    assert [line["sm_activity"] for line in lines(source, "sample")] == [None]
    source.close()


def test_a_gpm_metric_the_device_lacks_is_null_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = two_gpus(gpm_codes={pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: pynvml.NVML_ERROR_NOT_SUPPORTED})
    install(monkeypatch, gpus)
    source = NvmlSource([FIRST], SpanClock())
    time.sleep(2 * gpm.MIN_GAP_S)
    (sample,) = lines(source, "sample")
    assert sample["nvlink_rx_bytes_s"] is None
    assert sample["nvlink_tx_bytes_s"] == 2000 * 2**20
    source.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"gpm_supported": False}, "does not support"),
        ({"errors": {"nvmlGpmSampleGet": pynvml.NVML_ERROR_NOT_SUPPORTED}}, "Not Supported"),
        ({"errors": {"nvmlGpmMetricsGet": pynvml.NVML_ERROR_UNKNOWN}}, "Unknown Error"),
        ({"gpm_codes": {pynvml.NVML_GPM_METRIC_SM_UTIL: pynvml.NVML_ERROR_NO_DATA}}, "no SM activity"),
        ({"errors": {"nvmlGpmQueryDeviceSupport": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}}, "Function Not Found"),
    ],
)
def test_the_header_states_where_gpm_is_absent_and_why(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], reason: str
) -> None:
    library = install(monkeypatch, two_gpus(**settings))
    source = NvmlSource([FIRST, SECOND], SpanClock())
    header = source.header()
    assert header["gpm"] is False
    assert list(header["gpm_absent"]) == [FIRST]
    assert reason in header["gpm_absent"][FIRST]
    time.sleep(2 * gpm.MIN_GAP_S)
    first, second = lines(source, "sample")
    assert (first["sm_activity"], second["sm_activity"]) == (None, 0.965)
    assert first["util"] == 0.87
    source.close()
    assert library.samples_held == 0


def test_energy_is_read_at_the_ends_and_every_half_minute_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    library = install(monkeypatch, [FakeGpu(FIRST, gpm_supported=False), FakeGpu(SECOND, gpm_supported=False)])
    clock = SpanClock()
    mono = [100.0]
    monkeypatch.setattr(clock, "mono", lambda: mono[0])
    source = NvmlSource([FIRST, SECOND], clock)
    read_at: dict[str, list[float]] = {FIRST: [], SECOND: []}
    for tick in range(5 * 65):
        mono[0] = 100 + tick * 0.2
        for line in lines(source, "energy"):
            read_at[line["device"]].append(round(line["mono"] - 100, 3))
    assert read_at == {FIRST: [0, 30, 60], SECOND: [0, 15, 45]}
    last = [line for line in source.finish() if line["kind"] == "energy"]
    assert [(line["device"], line["energy_j"]) for line in last] == [(FIRST, 1_234_567.89), (SECOND, 1_234_567.89)]
    assert sum(name == "nvmlDeviceGetTotalEnergyConsumption" for name, _ in library.calls) == 8
    source.close()


def test_the_power_buffer_is_emptied_once_a_second_and_its_times_are_the_samplers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = [FakeGpu(FIRST, gpm_supported=False)]
    install(monkeypatch, gpus)
    clock = SpanClock()
    start, epoch = clock.mono(), time.time()
    shift = [0.0]
    monkeypatch.setattr(clock, "mono", lambda: start + shift[0])
    # The wall clock has been set forward by an hour since the sampler's start.
    monkeypatch.setattr(time, "time", lambda: epoch + 3600 + shift[0])
    source = NvmlSource([FIRST], clock)
    assert lines(source, "power") == []
    for tick in range(1, 6):
        shift[0] = tick * 0.2
        gpus[0].power_buffer += [
            (round((epoch + 3600 + shift[0] - ago) * 1e6), milliwatts)
            for ago, milliwatts in ((0.11, 128_000), (0.01, 715_500))
        ]
        found = lines(source, "power")
        assert bool(found) == (tick == 5)
    (line,) = found
    assert line["mono"] == pytest.approx(start + 0.99, abs=1e-4)
    assert line["ago_s"] == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0], abs=1e-4)
    assert line["power_w"] == [128.0, 715.5] * 5
    assert [left["kind"] for left in source.finish()] == ["energy"]
    gpus[0].power_buffer.append((round((epoch + 3601) * 1e6), 300_000))
    assert [left["kind"] for left in source.finish()] == ["power", "energy"]
    source.close()


@pytest.mark.parametrize("shift", [-3600.0, -5.0, 5.0, 3600.0])
def test_power_goes_on_when_the_wall_clock_is_set(monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    gpus = [FakeGpu(FIRST, gpm_supported=False)]
    install(monkeypatch, gpus)
    clock = SpanClock()
    start, epoch = clock.mono(), time.time()
    passed, wall = 0.0, 0.0
    monkeypatch.setattr(clock, "mono", lambda: start + passed)
    monkeypatch.setattr(time, "time", lambda: epoch + passed + wall)
    source = NvmlSource([FIRST], clock)
    readings = []
    for tick in range(100):
        passed = 0.1 * tick
        wall = shift if tick >= 52 else 0.0
        gpus[0].power_buffer.append((round((epoch + passed + wall - 0.01) * 1e6), 1000 * tick))
        for line in lines(source, "power"):
            assert start - 0.1 < line["mono"] <= start + passed
            assert max(line["ago_s"]) < 2
            readings += line["power_w"]
        gpus[0].power_buffer = gpus[0].power_buffer[-24:]
    # Of the second in which the clock is set some are lost, and none is told twice.
    assert readings == sorted(set(readings))
    assert len(readings) > 80
    source.close()


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, ["sample", "energy"]),
        (pynvml.NVML_ERROR_NO_PERMISSION, ["sample", "energy", "reading_error"]),
        (pynvml.NVML_ERROR_UNKNOWN, ["sample", "energy", "reading_error"]),
    ],
)
def test_a_gpu_without_a_power_buffer_is_sampled_all_the_same(
    monkeypatch: pytest.MonkeyPatch, code: int, kinds: list[str]
) -> None:
    install(monkeypatch, [FakeGpu(FIRST, gpm_supported=False, errors={"nvmlDeviceGetSamples": code})])
    source = NvmlSource([FIRST], SpanClock())
    assert [line["kind"] for line in source.read()] == kinds
    source.close()


def test_processes_that_were_there_before_the_job_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FakeGpu(FIRST, gpm_supported=False, processes=[7, 8])]
    install(monkeypatch, gpus)
    clock = SpanClock()
    mono = [100.0]
    monkeypatch.setattr(clock, "mono", lambda: mono[0])
    source = NvmlSource([FIRST], clock)
    counted = []
    for now, processes in ((100.0, [7, 8]), (100.5, [7, 8, 9]), (101.0, [7, 9, 10]), (102.0, [9, 10]), (103.0, [7, 9])):
        mono[0], gpus[0].processes = now, processes
        (sample,) = lines(source, "sample")
        counted.append((sample["compute_processes"], sample["earlier_processes"]))
    assert counted == [(2, 2), (None, None), (3, 1), (2, 0), (2, 1)]
    source.close()


def test_processes_and_their_memory_are_written_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [FakeGpu(FIRST, gpm_supported=False, processes=[7, 8], process_memory={7: 5 << 30}), FakeGpu(SECOND)]
    install(monkeypatch, gpus)
    source = NvmlSource([FIRST, SECOND], SpanClock())
    written = []
    for _ in range(20):
        written += lines(source, "processes")
        time.sleep(0.1)
    found = [{"pid": 7, "memory_bytes": 5 << 30}, {"pid": 8, "memory_bytes": None}]
    assert [(line["device"], line["processes"]) for line in written] == [(FIRST, found)] * 2
    # As a reader has it.
    read = TypeAdapter(ProcessesLine).validate_json(json.dumps(written[0]))
    assert [(one.pid, one.memory_bytes) for one in read.processes] == [(7, 5 << 30), (8, None)]
    source.close()


def test_what_a_device_does_not_support_is_null_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = dict.fromkeys(
        ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetSamples", "nvmlDeviceGetTotalEnergyConsumption"],
        pynvml.NVML_ERROR_NOT_SUPPORTED,
    )
    install(monkeypatch, two_gpus(errors=errors))
    source = NvmlSource([FIRST], SpanClock())
    (sample,) = source.read()
    assert (sample["util"], sample["power_w"]) == (None, 412.345)
    source.close()


def test_another_error_is_null_and_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, two_gpus(errors={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NO_PERMISSION}))
    source = NvmlSource([FIRST], SpanClock())
    sample, _, error = source.read()
    assert sample["power_w"] is None
    assert (error["kind"], error["device"], error["quantity"], error["code"]) == ("reading_error", FIRST, "power_w", 4)
    assert [line["kind"] for line in source.read()] == ["sample"]
    source.close()


def test_an_older_driver_gives_the_temperature_by_the_older_call(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, two_gpus(errors={"nvmlDeviceGetTemperatureV": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}))
    source = NvmlSource([FIRST], SpanClock())
    assert [line["temperature_c"] for line in lines(source, "sample")] == [61]
    source.close()


@pytest.mark.parametrize("code", LOST_CODES)
def test_a_lost_device_ends_its_own_series_only(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    gpus = two_gpus()
    install(monkeypatch, gpus)
    source = NvmlSource([FIRST, SECOND], SpanClock())
    assert len(lines(source, "sample")) == 2
    gpus[0].errors["nvmlDeviceGetMemoryInfo_v2"] = code
    error, sample = source.read()
    assert (error["kind"], error["device"], error["code"]) == ("device_error", FIRST, code)
    assert error["message"]
    assert (sample["kind"], sample["device"]) == ("sample", SECOND)
    assert [line["device"] for line in source.read()] == [SECOND]
    source.close()


def test_a_device_that_is_gone_before_the_start_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = two_gpus(errors={"handle": pynvml.NVML_ERROR_GPU_IS_LOST})
    install(monkeypatch, gpus)
    source = NvmlSource([FIRST, SECOND], SpanClock())
    assert [(line["kind"], line["device"]) for line in source.read()] == [
        ("device_error", FIRST), ("sample", SECOND), ("energy", SECOND),
    ]  # fmt: skip
    assert [line["device"] for line in source.read()] == [SECOND]
    source.close()


def test_without_a_driver_gpus_cannot_be_sampled() -> None:
    inventory = list_gpus()
    if inventory.driver is not None:
        pytest.skip(f"NVIDIA driver {inventory.driver} is installed")
    with pytest.raises(PlacebenchError, match="NVML does not answer"):
        NvmlSource([FIRST], SpanClock())


def test_the_schema_names_each_key_once_with_unit_and_meaning() -> None:
    keys = [quantity.key for quantity in QUANTITIES]
    assert len(keys) == len(set(keys))
    assert all(quantity.unit and quantity.meaning and quantity.sources for quantity in QUANTITIES)
    assert {key for key, _, _ in gpm.METRICS} <= set(keys_of("nvml"))
    assert keys_of("cpu")[:3] == keys_of("nvml")[:3] == ("util", "memory_bytes", "power_w")


@pytest.mark.gpu
def test_real_gpus_answer_within_their_limits() -> None:
    inventory = list_gpus()
    if not inventory.gpus:
        pytest.skip(f"no GPU: {inventory.fault or 'no NVIDIA driver on this host'}")
    uuids = [gpu.uuid for gpu in inventory.gpus]
    clock = SpanClock()
    source = NvmlSource(uuids, clock)
    time.sleep(0.2)
    samples = lines(source, "sample")
    header = source.header()
    time.sleep(0.2)
    first, last = ({line["kind"]: line for line in source.finish() if line["device"] == uuids[0]} for _ in range(2))
    now = clock.mono()
    source.close()
    assert 0 < first["energy"]["energy_j"] <= last["energy"]["energy_j"]
    power = first["power"]
    assert 0 <= now - power["mono"] < 1
    assert all(10 < watts < 2000 for watts in power["power_w"])
    assert power["ago_s"] == sorted(power["ago_s"], reverse=True)
    assert [sample["device"] for sample in samples] == uuids
    for gpu, sample in zip(inventory.gpus, samples, strict=True):
        assert 0 <= sample["util"] <= 1
        assert 0 <= sample["memory_bytes"] <= gpu.memory_bytes
        assert 10 < sample["power_w"] < 2000
        assert 0 < sample["temperature_c"] < 110
        if gpu.uuid not in header["gpm_absent"]:
            for key in ("sm_activity", "tensor_activity", "dram_activity"):
                assert 0 <= sample[key] <= 1
