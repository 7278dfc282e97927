"""The formats that are known, in the order in which they are tried."""

from placebench.errors import UsageError
from placebench.logs.formats import LogFormat
from placebench.logs.placebench_jsonl import PLACEBENCH_JSONL
from placebench.logs.verl import VERL
from placebench.logs.verl_jsonl import VERL_JSONL

FORMATS: tuple[LogFormat, ...] = (PLACEBENCH_JSONL, VERL_JSONL, VERL)


def format_named(name: str) -> LogFormat:
    """The format that a word names.

    Raises:
        UsageError: there is no such format.
    """
    for known in FORMATS:
        if known.name == name:
            return known
    raise UsageError(f"unknown log format {name!r}: use {', '.join(known.name for known in FORMATS)}")


def format_of(block: bytes) -> LogFormat | None:
    """The format of which a step begins in a block of whole lines, None where there is none."""
    return next((known for known in FORMATS if known.begins(block)), None)
