"""The formats and the frameworks that are known, in the order in which they are tried."""

from collections.abc import Iterable

from placebench.errors import UsageError
from placebench.logs.areal import AREAL
from placebench.logs.csv_table import CSV
from placebench.logs.formats import Dialect, LogFormat
from placebench.logs.nemo_rl import NEMO_RL
from placebench.logs.open_instruct import OPEN_INSTRUCT
from placebench.logs.openrlhf import OPENRLHF
from placebench.logs.placebench_jsonl import PLACEBENCH_JSONL
from placebench.logs.prime_rl import FLAT_JSONL, PRIME_RL
from placebench.logs.skyrl import SKYRL
from placebench.logs.slime import SLIME
from placebench.logs.tensorboard import TENSORBOARD
from placebench.logs.timing import TimingRules
from placebench.logs.trl import TRL, TRL_STATE
from placebench.logs.verl import VERL, VERL_JSONL
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean

FORMATS: tuple[LogFormat, ...] = (
    TENSORBOARD,
    PLACEBENCH_JSONL,
    VERL_JSONL,
    TRL_STATE,  # all of it may be on one line, which would be one of JSONL
    FLAT_JSONL,
    VERL,
    OPENRLHF,
    SLIME,
    SKYRL,
    AREAL,
    NEMO_RL,
    OPEN_INSTRUCT,
    PRIME_RL,
    TRL,
    CSV,
)
DIALECTS = tuple({known.dialect.framework: known.dialect for known in FORMATS if known.dialect}.values())
UNKNOWN_DIALECT = Dialect("an unknown framework", (), TimingRules(prefixes=("timing_s/",)))


def format_named(name: str) -> LogFormat:
    """The format that a word names.

    Raises:
        UsageError: there is no such format.
    """
    if found := next((known for known in FORMATS if known.name == name), None):
        return found
    names = [known.name for known in FORMATS]
    raise UsageError(f"unknown log format {shown(name)}: use {', '.join(names)}{did_you_mean(name, names)}")


def format_of(block: bytes) -> LogFormat | None:
    """The format of which a step begins in a block of whole lines, None where there is none."""
    return next((known for known in FORMATS if known.begins(block)), None)


def dialect_of(names: Iterable[str]) -> Dialect:
    """The framework that writes metrics of these names."""
    names = tuple(names)
    return next((known for known in DIALECTS if known.owns(names)), UNKNOWN_DIALECT)
