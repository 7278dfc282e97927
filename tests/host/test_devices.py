import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvml_fake import DEFAULTS, FakeGpu, install

from placebench.errors import UsageError
from placebench.host.devices import discover, host_record, sharing_note, split_cores
from placebench.host.gpus import list_gpus
from placebench.host.machine import cpu_quota, total_memory
from placebench.spec.devices import DeviceSpec, device_from_dict, device_to_dict, parse_devices

UUIDS = [f"GPU-{index}0000000-1111-2222-3333-444444444444" for index in range(4)]


def four_gpus() -> list[FakeGpu]:
    return [FakeGpu(uuid, pci=f"00000000:{index:02X}:00.0", nvlinks=18) for index, uuid in enumerate(UUIDS)]


@given(st.sampled_from(["cpu", "gpu"]), st.integers(1, 64))
def test_a_kind_with_a_count_is_read_and_written_alike(kind: str, count: int) -> None:
    spec = parse_devices(f" {kind}:{count} ")
    assert (spec.kind, spec.count) == (kind, count)
    assert str(spec) == f"{kind}:{count}"


@given(st.sampled_from(["cpu", "gpu"]), st.integers(1, 64), st.integers(1, 64), st.none() | st.integers(1, 999))
def test_devices_elsewhere_are_described(kind: str, count: int, nodes: int, gib: int | None) -> None:
    text = f"{kind}:{count}x{nodes}" + (f"@{gib}GiB" if gib else "")
    spec = parse_devices(text)
    assert str(spec) == text
    assert spec.is_described
    devices = discover(spec)
    assert [device.node for device in devices] == [f"node{node}" for node in range(nodes) for _ in range(count)]
    assert len({device.id for device in devices}) == count * nodes
    assert all(device_from_dict(device_to_dict(device)) == device for device in devices)
    if gib or kind == "gpu":
        assert {device.memory_bytes for device in devices} == {(gib or 80) << 30}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_kind_alone_takes_what_is_there(kind: str) -> None:
    assert parse_devices(kind).count is None


@given(st.text(max_size=12) | st.from_regex(r"(cpu|gpu):?-?[0-9٣]*[a-z.,]?", fullmatch=True))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        answer = str(parse_devices(text))
    except UsageError as error:
        answer = str(error)
    assert answer == text.strip() or (answer.startswith("--devices") and "\n" not in answer)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu:0",
        "cpu:",
        "gpu:-1",
        "tpu:2",
        "cpu:1.5",
        "cpu:²",
        "cpu:65",
        "gpu:" + "9" * 5000,
        "gpu:x2",
        "gpu@80GiB",
        "gpu:8x0",
        "gpu:8@80",
        "gpu:1000x5",
    ],
)
def test_what_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--devices"):
        parse_devices(text)


@given(st.integers(1, 64), st.integers(1, 64))
def test_cores_are_split_evenly_and_disjoint_or_shared_in_turn(cores: int, count: int) -> None:
    shares = split_cores(range(cores), count)
    assert len(shares) == count
    flat = [core for share in shares for core in share]
    if count <= cores:
        assert len({len(share) for share in shares}) == 1
        assert flat == list(range(len(flat)))
        assert cores - len(flat) < count
    else:
        assert all(len(share) == 1 for share in shares)
        uses = [flat.count(core) for core in range(cores)]
        assert max(uses) - min(uses) <= 1


def test_a_host_without_driver_has_cpu_devices() -> None:
    inventory = list_gpus()
    if inventory.driver is not None:
        pytest.skip(f"NVIDIA driver {inventory.driver} is installed")
    assert inventory.fault is None
    devices = discover()
    cores = os.sched_getaffinity(0)
    assert [device.id for device in devices] == [f"cpu:{index}" for index in range(min(max(len(cores), 2), 8))]
    assert {core for device in devices for core in device.cores} <= cores
    assert sum(device.memory_bytes for device in devices) <= total_memory()
    with pytest.raises(
        UsageError, match=r"--devices gpu:2: found no NVIDIA driver .* use --devices cpu; gpu:2x1 describes"
    ):
        discover(parse_devices("gpu:2"))
    record = host_record()
    assert (record["driver"], record["gpus"]) == (None, [])


def test_affinity_limits_the_cores() -> None:
    core = max(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, {{{core}}})\n"
        "from placebench.host.devices import discover, sharing_note\n"
        "from placebench.spec.devices import parse_devices\n"
        "devices = discover(parse_devices('cpu:3'))\n"
        "print([device.cores for device in devices]); print(sharing_note(devices))"
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == str([(core,)] * 3)
    assert lines[1].startswith("3 CPU devices share 1 core:")


def test_devices_with_cores_of_their_own_need_no_note() -> None:
    assert sharing_note(discover(DeviceSpec("cpu", 1))) is None


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_cgroup_v2_limits_of_all_levels_count(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/pod/job\n")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "memory.max", "max\n")
    write(groups / "pod/memory.max", "2147483648\n")
    write(groups / "pod/job/memory.max", "3221225472\n")
    write(groups / "pod/cpu.max", "150000 100000\n")
    write(groups / "pod/job/cpu.max", "max 100000\n")
    assert total_memory(tmp_path) == 2**31
    assert cpu_quota(tmp_path) == 1.5


def test_cgroup_v1_limits_of_all_levels_count(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(groups / "memory/job/memory.limit_in_bytes", "1073741824\n")
    write(groups / "cpu/cpu.cfs_quota_us", "-1\n")
    write(groups / "cpu/job/cpu.cfs_quota_us", "400000\n")
    write(groups / "cpu/job/cpu.cfs_period_us", "100000\n")
    assert total_memory(tmp_path) == 2**30
    assert cpu_quota(tmp_path) == 4


def test_a_host_without_control_groups_has_no_limits(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert total_memory(tmp_path) > 0


def test_gpus_come_in_index_order_under_their_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, four_gpus())
    devices = discover()
    assert [device.id for device in devices] == UUIDS
    assert [device.index for device in devices] == [0, 1, 2, 3]
    assert {(device.kind, device.name, device.cores) for device in devices} == {("gpu", "NVIDIA H200", ())}
    assert discover(DeviceSpec("gpu", 2)) == devices[:2]
    assert discover(DeviceSpec("cpu", 1))[0].kind == "cpu"


def test_the_memory_of_a_gpu_is_what_its_driver_does_not_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = four_gpus()
    library = install(monkeypatch, gpus)
    total, reserved = DEFAULTS["memory_total"], DEFAULTS["memory_reserved"]
    gpus[1].errors["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    gpus[2].errors["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    gpus[3].errors["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    inventory = list_gpus()
    assert [gpu.memory_bytes for gpu in inventory.gpus] == [total - reserved, total, total]
    assert list(inventory.unreadable) == [3]
    assert ("nvmlDeviceGetMemoryInfo", gpus[0].uuid) not in library.calls


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1,3", [1, 3]), ("3,1", [1, 3]), (UUIDS[2], [2]), ("GPU-2,0", [0, 2])],
)
def test_cuda_visible_devices_limits_the_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[int]
) -> None:
    install(monkeypatch, four_gpus())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device.index for device in discover()] == expected


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_not_there(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    install(monkeypatch, four_gpus())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert discover()[0].kind == "cpu"
    with pytest.raises(UsageError, match="no GPUs, 4 more hidden by CUDA_VISIBLE_DEVICES"):
        discover(DeviceSpec("gpu"))


@pytest.mark.parametrize(
    ("visible", "message"),
    [
        ("7", "'7' names no GPUs"),
        ("GPU-", "'GPU-' names 4 GPUs"),
        ("0,0", r"gpu:0 \(GPU-\S+\) is named twice"),
        ("MIG-abc", "MIG"),
        ("x", "'x'"),
    ],
)
def test_a_wrong_cuda_visible_devices_is_refused(monkeypatch: pytest.MonkeyPatch, visible: str, message: str) -> None:
    install(monkeypatch, four_gpus())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UsageError, match=message):
        discover()


def test_a_gpu_in_mig_mode_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [FakeGpu("GPU-whole", mig_mode=0), FakeGpu("GPU-parts", mig_mode=1)])
    with pytest.raises(UsageError, match=r"^gpu:1 \(GPU-parts\) is in MIG mode, .* leave the GPU out with CUDA_"):
        discover()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert [device.id for device in discover()] == ["GPU-whole"]


def test_more_gpus_than_there_are_are_refused_with_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, four_gpus())
    with pytest.raises(UsageError, match=r"--devices gpu:8: found 4 GPUs \(NVIDIA H200\); use --devices gpu:4"):
        discover(DeviceSpec("gpu", 8))


def test_a_driver_that_does_not_answer_is_no_reason_to_measure_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, [], init_code=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(UsageError, match=r"driver does not answer .*mismatch"):
        discover()
    assert "mismatch" in host_record()["gpu_fault"]


def test_a_lost_gpu_must_be_left_out_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = four_gpus()
    gpus[1].errors["handle"] = pynvml.NVML_ERROR_GPU_IS_LOST
    install(monkeypatch, gpus)
    with pytest.raises(UsageError, match=r"gpu:1 does not answer \(GPU is lost\)"):
        discover()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3")
    assert [device.index for device in discover()] == [0, 2, 3]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(UsageError, match="gpu:1 does not answer"):
        discover()
    assert host_record()["unreadable_gpus"] == {"1": "GPU is lost"}


def test_host_record_names_every_gpu_and_link(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = four_gpus()
    gpus[3].nvlinks = 0
    install(monkeypatch, gpus)
    record = host_record()
    assert record["driver"] == "580.159.03"
    assert [gpu["uuid"] for gpu in record["gpus"]] == UUIDS
    assert record["gpus"][2]["pci"] == "00000000:02:00.0"
    assert record["gpu_links"][0] == [None, "NV18", "NV18", "SYS"]
    assert record["cpu_count"] == os.cpu_count()


def test_a_device_survives_its_file() -> None:
    device = discover(DeviceSpec("cpu", 2))[1]
    assert device_from_dict(device_to_dict(device) | {"added_later": 1}) == device


@pytest.mark.parametrize(
    "change", [{"kind": "tpu"}, {"cores": None}, {"cores": []}, {"cores": 3}, {"memory_bytes": "much"}]
)
def test_an_entry_that_is_no_device_is_refused(change: dict[str, object]) -> None:
    content = device_to_dict(discover(DeviceSpec("cpu", 1))[0]) | change
    with pytest.raises(UsageError, match="device"):
        device_from_dict(content)


def test_a_missing_key_is_named() -> None:
    content = device_to_dict(discover(DeviceSpec("cpu", 1))[0])
    del content["node"]
    with pytest.raises(UsageError, match=r"device 'cpu:0': key 'node' is missing"):
        device_from_dict(content)
