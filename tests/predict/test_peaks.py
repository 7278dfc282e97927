"""What devices can do at best."""

import pytest

from placebench.errors import UsageError
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
        assert "data sheet" in peak.source, name


def test_a_gpu_without_peaks_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError, match=r"peaks of GPU 'H200' are not known.*, NVIDIA H200, ") as refused:
        known_peak("H200")
    assert len(refused.value.args) == 1
