"""The frameworks that are known, by the word of `--job`."""

from collections.abc import Mapping

from placebench.jobs.adapter import Adapter
from placebench.jobs.adapters.command import COMMAND
from placebench.jobs.adapters.trl import TRL
from placebench.jobs.adapters.verl import VERL

ADAPTERS: Mapping[str, Adapter] = {adapter.name: adapter for adapter in (VERL, TRL, COMMAND)}
