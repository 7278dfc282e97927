"""What pydantic says of a wrong value, in words that say what the value must be."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from placebench.spec.legible import shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a section of keys, not one value",
    "model": "a section of keys, not one value",
}


def what_must_be(error: "ErrorDetails") -> str:
    """What a value must be, with the one found: `must be greater than 0 (got -1)`."""
    value = error["input"]
    found = "" if isinstance(value, Mapping) else " (got nothing)" if value is None else f" (got {shown(value)})"
    if error["type"] == "too_long":
        return f"must have at most {error['ctx']['max_length']} values{found}"
    if error["type"] == "missing" and not isinstance(value, Mapping):
        return f"must be given{found}"
    least = error.get("ctx", {}).get("ge")
    if isinstance(least, int | float) and least > 0 and isinstance(value, int | float):
        # A bound that only what is beyond reason meets: nobody needs to read it in place of the 0 that counts.
        return (f"must be greater than 0{found}") if value <= 0 else f"must be at least {least:g}{found}"
    if kind := _KINDS.get(error["type"].split("_")[0]):
        return f"must be {kind}{found}"
    message = re.sub(r"^Input should (be )?", lambda match: "must be " if match[1] else "must ", error["msg"])
    return f"{message[0].lower()}{message[1:]}{found}"


def with_place(place: str, key: str, reason: str) -> str:
    """A reason that may begin with its key, behind where that was set: an option of its own says the key itself."""
    if not reason.startswith(f"{key}: ") or not place.startswith("--") or "," in place:
        return f"{place}: {reason}"
    return f"{place} {reason}" if place == "--set" else f"{place}: {reason.removeprefix(f'{key}: ')}"
