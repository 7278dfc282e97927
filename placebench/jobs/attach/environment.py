"""What a job's environment needs for its processes to load the hooks."""

import os
from collections.abc import Mapping
from pathlib import Path

SPANS = "PLACEBENCH_SPANS"
"""The variable that names the folder of the processes' spans; without it the hooks do nothing."""
PASSED_ON = "PLACEBENCH_PASSED_ON"
"""The variable that names others, set apart by commas, which workers of an existing Ray cluster are given too."""
ON_PATH = Path(__file__).resolve().parent / "on-path"
"""The folder that a Python of the job must find first, in `PYTHONPATH`."""


def attached(environment: Mapping[str, str], spans: Path, *, is_on_cluster: bool = False) -> dict[str, str]:
    """An environment whose Python processes write their spans.

    Args:
        environment: the job's own; its `PYTHONPATH` stays behind the hooks'.
        spans: an existing folder, for one file a process; a Ray cluster's other nodes need it under the same path.
        is_on_cluster: whether the job joins a Ray cluster that is there, whose workers do not inherit it. Ray then has
            to import the hooks, and fails without them.
    """
    own_path = environment.get("PYTHONPATH")
    hooks = {"PYTHONPATH": os.pathsep.join([str(ON_PATH), *([own_path] if own_path else [])]), SPANS: str(spans)}
    # A runtime environment hook of the user's stays: then only workers that inherit the environment are reached.
    ray = {"RAY_RUNTIME_ENV_HOOK": "placebench_attach.ray_workers.runtime_environment"} if is_on_cluster else {}
    return {**ray, **environment, **hooks}
