"""Mappings in mappings, as settings are: laid on each other, made of dotted keys, and brought into them."""

from collections.abc import Mapping, Sequence
from typing import Any


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` on `base`, section by section; values of `over` win."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def nest(keys: Sequence[str], value: Any) -> dict[str, Any]:
    """A value below a path of keys: `["a", "b"], 1` → `{"a": {"b": 1}}`."""
    for key in reversed(keys):
        value = {key: value}
    return dict(value)


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a nested mapping by dotted key: `{"a": {"b": 1}}` → `{"a.b": 1}`."""
    values: dict[str, Any] = {}
    for key, value in content.items():
        values |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return values
