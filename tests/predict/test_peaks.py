"""What devices can do at best."""

import re

import pytest

from placebench.errors import UsageError
from placebench.predict.asking import known_gpu
from placebench.predict.known import shipped_calibrations
from placebench.predict.peaks import device_peak, device_peaks, known_peak


def test_names_of_devices_are_taken_in_full() -> None:
    h200 = known_peak("NVIDIA H200")
    assert (h200.flops, h200.bandwidth, h200.link_bandwidth) == (989e12, 4.8e12, 450e9)
    for name in ("", "H200", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "cpu"):
        assert device_peak(name) is None


def test_every_gpu_has_peaks_that_go_together_and_a_source() -> None:
    words = ("A100", "H100", "H200", "B200", "GB200", "MI300X")
    assert all(any(word in name.replace("-", " ").split() for name in device_peaks()) for word in words)
    for name, peak in device_peaks().items():
        # Operations a byte at which computing takes over from reading: a slip of a power of ten shows.
        assert 100 < peak.flops / peak.bandwidth < 400, name
        assert peak.bandwidth > peak.link_bandwidth >= peak.network_bandwidth or "PCIe" in name, name
        # So do GB for MiB; and what stands in its name is the memory, but of a GH200, which has its host's there.
        assert 38 << 30 < peak.memory_bytes < 192 << 30, name
        for size in re.findall(r"(\d+)GB?\b", name.replace("480GB", "96GB")):
            assert peak.memory_bytes == pytest.approx(int(size) << 30, rel=0.02), name
        assert "data sheet" in peak.source, name


def test_a_data_sheets_memory_is_as_much_as_the_drivers_of_calibrated_gpus_told() -> None:
    for file in shipped_calibrations().values():
        assert known_peak(file.device).memory_bytes == pytest.approx(file.device_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("A100", "NVIDIA A100-SXM4-80GB"),
        ("A100-40GB", "NVIDIA A100-SXM4-40GB"),
        ("a100 pcie", "NVIDIA A100 80GB PCIe"),
        ("GH200", "NVIDIA GH200 144G HBM3e"),
        ("H100", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("H200 NVL", "NVIDIA H200 NVL"),
    ],
)
def test_a_gpu_is_known_by_words_of_its_name_and_is_the_largest_of_its_sizes(word: str, name: str) -> None:
    assert known_gpu(word) == name


@pytest.mark.parametrize(
    ("word", "said"), [("NVIDIA", "may be any of"), ("A100-141GB", "not known"), (" ", "not known")]
)
def test_words_that_no_gpu_or_several_have_are_refused(word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        known_gpu(word)


def test_a_gpu_without_peaks_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match=r"peaks of GPU 'H200' are not known.*, NVIDIA H200, ") as refused:
        known_peak("H200")
    assert len(refused.value.args) == 1
