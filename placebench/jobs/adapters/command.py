"""Any command: nothing is known of it, so that placements are what the user says they are."""

from placebench.errors import UsageError
from placebench.jobs.adapter import Adapter, AskedPlacement, Settings

NOT_KNOWN = (
    "placebench does not know how to give this placement to a plain command: write its args or env under placements in"
    " a job file (placebench run --write-config FILE writes one to begin with), or name the framework with --job"
)


def _settings(asked: AskedPlacement) -> Settings:
    if asked.placement.name == "standard":
        return Settings()
    raise UsageError(NOT_KNOWN)


COMMAND = Adapter(
    name="command",
    reading="any command; a job file says which arguments each placement adds",
    example=("bash", "run.sh"),
    settings=_settings,
)
