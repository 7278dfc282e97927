"""What a run's record says of its host, as people read it."""

from collections.abc import Iterator, Mapping
from typing import Any

from placebench.spec.devices import index_ranges
from placebench.spec.text import quantity

_NAMES = {"cpu_model": "processor", "cpu_count": "processor cores", "driver": "NVIDIA driver"}


def host_facts(host: Mapping[str, Any]) -> dict[str, str]:
    """Text by name, one fact a GPU; what is not known is left out.

    Args:
        host: as `devices.host_record` made it, or of an older version.
    """
    return {name: text for name, text in _facts(host) if text}


def _facts(host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in host.items():
        if key == "usable_cores":
            yield "usable cores", index_ranges(value)
        elif key == "memory_bytes":
            yield "memory", quantity(value, "B")
        elif key == "gpus":
            yield from ((f"gpu:{gpu['index']}", _gpu(gpu)) for gpu in value)
        elif key == "gpu_links":
            yield from _links(host)
        elif key == "unreadable_gpus":
            yield from ((f"gpu:{index}", f"does not answer ({reason})") for index, reason in value.items())
        else:
            yield _NAMES.get(key, key.replace("_", " ")), "" if value is None else str(value)


def _gpu(gpu: Mapping[str, Any]) -> str:
    known = [gpu.get("name"), gpu.get("uuid"), f"PCI {gpu['pci']}" if gpu.get("pci") else None]
    memory = gpu.get("memory_bytes")
    return ", ".join(part for part in (known[0], quantity(memory, "B") if memory else None, *known[1:]) if part)


def _links(host: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How each GPU is linked to the others."""
    rows = host["gpu_links"] or []
    labels = [f"gpu:{gpu['index']}" for gpu in host["gpus"]] if rows else []
    for label, row in zip(labels, rows, strict=True):
        yield f"links of {label}", ", ".join(f"{other} {link}" for other, link in zip(labels, row, strict=True) if link)
