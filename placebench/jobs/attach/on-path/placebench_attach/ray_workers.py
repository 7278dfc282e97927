"""The hooks for workers of a Ray cluster that was there before the job, which do not inherit its environment."""

from __future__ import annotations

import os
from typing import Any

_OWN = ("PLACEBENCH_SPANS", "PLACEBENCH_LAUNCH")
# Names those of the job's environment that its workers need, set apart by commas.
_PASSED_ON = "PLACEBENCH_PASSED_ON"
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def runtime_environment(asked: dict[str, Any] | None) -> dict[str, Any]:
    """A job's runtime environment with what the hooks need; Ray calls it as `RAY_RUNTIME_ENV_HOOK`."""
    environment = dict(asked or {})
    variables = dict(environment.get("env_vars") or {})
    path = variables.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    places = [_HERE, *(place for place in path.split(os.pathsep) if place and place != _HERE)]
    names = (*_OWN, *os.environ.get(_PASSED_ON, "").split(","))
    passed_on = {name: os.environ[name] for name in names if name in os.environ}
    environment["env_vars"] = {**passed_on, **variables, "PYTHONPATH": os.pathsep.join(places)}
    return environment
