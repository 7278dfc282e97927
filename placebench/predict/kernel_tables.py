"""Seconds of an engine's kernels as NVIDIA's AIConfigurator has measured them, by its package of tables.

The package is the optional extra `predict`, and takes seconds to load its tables. So each engine is asked once, on a
grid, and what it says is kept in the user's cache.
"""

import importlib.util
import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from placebench.predict.peaks import DevicePeak, device_peak
from placebench.spec.shapes import ModelShape

if TYPE_CHECKING:
    from scipy.interpolate import RegularGridInterpolator

_PACKAGE = "aiconfigurator-core"
# Its names of devices, by those of the driver.
_SYSTEMS: Mapping[str, str] = {
    "NVIDIA A100-SXM4-80GB": "a100_sxm",
    "NVIDIA A100 80GB PCIe": "a100_pcie",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H200": "h200_sxm",
    "NVIDIA B200": "b200_sxm",
    "NVIDIA GB200": "gb200",
}
# It reads a model by the class that transformers has for it.
_ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_SEQUENCES = tuple(2**power for power in range(11))
_LENGTHS = tuple(2**power for power in range(5, 16))


@dataclass(frozen=True)
class KernelTable:
    """Kernels of an engine on a grid of sequences and lengths, the same ones in both tables."""

    decode_s: tuple[tuple[float, ...], ...]
    """Seconds of a token step by sequences and tokens that a new one attends to."""
    prefill_s: tuple[tuple[float, ...], ...]
    """Seconds of a pass over prompts by their number and their length."""


@dataclass(frozen=True)
class TabledKernels:
    """Kernels by a table, as `kernels.EngineKernels` asks for them; between its points and beyond they go by powers."""

    table: KernelTable
    vocab_size: int
    peak: DevicePeak

    parts = ("tables", "sampler")

    def decode(self, sequences: float, context: float) -> NDArray[np.float64]:
        """Seconds of a token step's kernels, and of its sampler, which the tables leave out, at the memory's rate."""
        return np.array([_at(self._decode, sequences, context), 4 * self.vocab_size * sequences / self.peak.bandwidth])

    def prefill(self, tokens: float, length: float) -> float:
        """Seconds of a pass over `tokens` of prompts of `length` tokens each."""
        return _at(self._prefill, tokens / length, length)

    @cached_property
    def _decode(self) -> "RegularGridInterpolator":
        return _interpolator(self.table.decode_s)

    @cached_property
    def _prefill(self) -> "RegularGridInterpolator":
        return _interpolator(self.table.prefill_s)


def _interpolator(seconds: tuple[tuple[float, ...], ...]) -> "RegularGridInterpolator":
    from scipy.interpolate import RegularGridInterpolator

    axes = (np.log(_SEQUENCES), np.log(_LENGTHS))
    return RegularGridInterpolator(axes, np.log(seconds), bounds_error=False, fill_value=None)


def _at(table: "RegularGridInterpolator", sequences: float, length: float) -> float:
    point: NDArray[np.float64] = np.exp(table((np.log(sequences), np.log(length))))
    return float(point)


@cache
def engine_tables(shape: ModelShape, device_name: str, shared_by: int = 1) -> TabledKernels | None:
    """Kernels of a vLLM engine by the tables.

    Args:
        shape: of the model that generates.
        device_name: the name that the driver gives the devices.
        shared_by: devices that share the engine.

    Returns:
        None where the extra is not installed, or has no table of the device or for such a model.
    """
    peak = device_peak(device_name)
    if peak is None or device_name not in _SYSTEMS or shape.model_type not in _ARCHITECTURES or not _is_installed():
        return None
    path = _cache_path(shape, device_name, shared_by)
    table = _read(path)
    if table is None and (table := _ask(shape, _SYSTEMS[device_name], shared_by)):
        _keep(table, path)
    return TabledKernels(table, shape.vocab_size, peak) if table else None


def _is_installed() -> bool:
    return importlib.util.find_spec("aiconfigurator_core") is not None


def _cache_path(shape: ModelShape, device_name: str, shared_by: int) -> Path:
    asked = [version(_PACKAGE), device_name, shared_by, asdict(shape), _SEQUENCES, _LENGTHS]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "placebench")
    return folder / f"kernels-{sha256(json.dumps(asked).encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> KernelTable | None:
    """The table of a file; None where there is none, or a damaged one."""
    with suppress(OSError, ValidationError):
        return TypeAdapter(KernelTable).validate_json(path.read_bytes())
    return None


def _keep(table: KernelTable, path: Path) -> None:
    """Keep a table as a whole or not at all; where the cache cannot be written, the next process asks anew."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Hosts may share it, and have processes of one id: only a random name is a process's own.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
            written = Path(scratch, path.name)
            written.write_bytes(TypeAdapter(KernelTable).dump_json(table))
            written.replace(path)


def _ask(shape: ModelShape, system: str, shared_by: int) -> KernelTable | None:
    """What the package says; None where it has no table for such an engine."""
    # It tells of every table that it fills up from another one.
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    from aiconfigurator_core.sdk.engine import EngineHandle

    with tempfile.TemporaryDirectory(prefix="placebench-") as folder:
        config = {**shape.config(), "model_type": shape.model_type, "architectures": [_ARCHITECTURES[shape.model_type]]}
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        try:
            engine = EngineHandle.compile(folder, system, "vllm", tp_size=shared_by)
        except (ValueError, RuntimeError, LookupError):
            return None
        return KernelTable(
            _grid(lambda count, length: engine.decode_step_latency(gen_tokens=count, isl=length, osl=2)),
            _grid(engine.predict_prefill_latency),
        )


def _grid(milliseconds: Callable[[int, int], float]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(milliseconds(count, length) / 1e3 for length in _LENGTHS) for count in _SEQUENCES)
