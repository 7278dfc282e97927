"""Measured tables of an engine's kernels."""

import importlib.util
from pathlib import Path

import pytest
from disks import small_disk
from hypothesis import given
from hypothesis import strategies as st

from placebench.predict import kernel_tables
from placebench.predict.kernel_tables import KernelTable, TabledKernels, engine_tables
from placebench.predict.kernels import Roofline, engine_kernels
from placebench.predict.peaks import known_peak
from placebench.spec.shapes import PRESETS, ModelShape

SHAPE, GPU = PRESETS["qwen2.5-1.5b"], "NVIDIA H200"


def table() -> KernelTable:
    """A token step takes 1e-4 · sequences^0.5 · length^0.25 seconds, a pass over prompts 1e-6 · all their tokens."""
    return KernelTable(
        kernel_tables._grid(lambda count, length: 0.1 * count**0.5 * length**0.25),
        kernel_tables._grid(lambda count, length: 1e-3 * count * length),
    )


@given(st.floats(0.5, 3000), st.floats(8, 60_000))
def test_between_the_points_of_a_table_and_beyond_them_times_go_by_powers(sequences: float, length: float) -> None:
    kernels = TabledKernels(table(), SHAPE.vocab_size, known_peak(GPU))
    step, sampler = kernels.decode(sequences, length)
    assert step == pytest.approx(1e-4 * sequences**0.5 * length**0.25)
    assert sampler == pytest.approx(4 * SHAPE.vocab_size * sequences / 4.8e12)
    assert kernels.prefill(sequences * length, length) == pytest.approx(1e-6 * sequences * length)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices for which the package was asked, which gives the table above and is not here itself."""
    devices: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel_tables, "_is_installed", lambda: True)
    monkeypatch.setattr(kernel_tables, "version", lambda package: "0.12.0")

    def ask(shape: ModelShape, system: str, shared_by: int) -> KernelTable:
        devices.append(system)
        return table()

    monkeypatch.setattr(kernel_tables, "_ask", ask)
    engine_tables.cache_clear()
    return devices


def test_an_engine_is_asked_for_once_and_again_where_the_cache_is_damaged(asked: list[str], tmp_path: Path) -> None:
    first = engine_tables(SHAPE, GPU)
    assert first is not None
    assert first.table == table()
    for content, times in ((None, 1), (b'{"decode_s": [[1', 2)):
        (kept,) = tmp_path.glob("placebench/kernels-*.json")
        if content:
            kept.write_bytes(content)
        engine_tables.cache_clear()
        assert engine_tables(SHAPE, GPU) == first
        assert asked == ["h200_sxm"] * times
    engine_tables(SHAPE, GPU, 2)
    assert len(list(tmp_path.glob("placebench/kernels-*.json"))) == 2


def test_a_cache_that_cannot_be_written_is_done_without(asked: list[str], tmp_path: Path) -> None:
    (tmp_path / "placebench").write_text("a file, no folder")
    assert engine_tables(SHAPE, GPU) is not None
    assert asked == ["h200_sxm"]


@pytest.mark.usefixtures("asked")
def test_of_a_table_for_which_the_disk_has_no_room_nothing_is_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "placebench", "4k") as disk:
        (disk / "full").write_bytes(bytes(4096))
        assert engine_tables(SHAPE, GPU) is not None
        assert [path.name for path in disk.iterdir()] == ["full"]


@pytest.mark.usefixtures("asked")
def test_what_the_tables_do_not_have_is_bound_by_the_roofline() -> None:
    peak = known_peak("AMD Instinct MI300X")
    assert isinstance(engine_kernels(SHAPE, GPU, known_peak(GPU), 1), TabledKernels)
    assert engine_kernels(SHAPE, "AMD Instinct MI300X", peak, 1) == Roofline(SHAPE, peak, 1)
    assert engine_tables(PRESETS["tiny"], "cpu") is None


def test_without_the_extra_there_are_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "aiconfigurator_core" else found(name)
    )
    engine_tables.cache_clear()
    assert engine_tables(SHAPE, GPU) is None


@pytest.mark.slow
def test_the_package_gives_tables_near_what_it_says_between_their_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine_tables.cache_clear()
    kernels = engine_tables(SHAPE, GPU)
    assert kernels is not None, "the environment of slow tests has the extra predict"
    # Kernels of 64 sequences of 512 + 512 tokens took 1.45 s on an H200; the tables leave a tenth of it out.
    steps = sum(kernels.decode(64, 512 + step)[0] for step in range(512)) + kernels.prefill(64 * 512, 512)
    assert steps == pytest.approx(1.286, rel=0.03)
    assert engine_tables(SHAPE, "NVIDIA A100-SXM4-80GB") is not None
    sharing = engine_tables(PRESETS["qwen2.5-7b"], GPU, 4)
    assert sharing is not None
    assert sharing.decode(64, 768)[0] < 0.6 * engine_tables(PRESETS["qwen2.5-7b"], GPU, 1).decode(64, 768)[0]  # type: ignore[union-attr]
