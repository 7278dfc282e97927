"""The frameworks that are known, by the word of `--job`."""

from collections.abc import Mapping

from placebench.jobs.adapter import Adapter
from placebench.jobs.adapters.areal import AREAL
from placebench.jobs.adapters.command import COMMAND
from placebench.jobs.adapters.nemo_rl import NEMO_RL
from placebench.jobs.adapters.open_instruct import OPEN_INSTRUCT
from placebench.jobs.adapters.openrlhf import OPENRLHF
from placebench.jobs.adapters.prime_rl import PRIME_RL
from placebench.jobs.adapters.skyrl import SKYRL
from placebench.jobs.adapters.slime import SLIME
from placebench.jobs.adapters.trl import TRL
from placebench.jobs.adapters.verl import VERL

_KNOWN = (VERL, TRL, OPENRLHF, SKYRL, OPEN_INSTRUCT, NEMO_RL, SLIME, AREAL, PRIME_RL, COMMAND)
ADAPTERS: Mapping[str, Adapter] = {adapter.name: adapter for adapter in _KNOWN}
