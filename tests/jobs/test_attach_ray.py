"""The hooks reach the workers of a job's own Ray, and those of a cluster that was there before it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from clusters import RayNodes, ray_nodes

from placebench.jobs.attach.environment import attached

pytestmark = pytest.mark.slow

_JOB = """
import sys, ray
{start}
@ray.remote
def work():
    from placebench_attach import span
    with span("update_actor"):
        return 1
assert ray.get(work.remote()) == 1
ray.shutdown()
"""


def spans_of(start: str, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Names of the spans that a job's worker leaves; `start` is how the job starts its Ray."""
    spans = folder / "spans"
    spans.mkdir()
    subprocess.run(
        [sys.executable, "-c", _JOB.format(start=start)], env=attached(environment, spans), check=True, timeout=120
    )
    lines = [json.loads(line) for path in spans.iterdir() for line in path.read_text().splitlines()]
    return [line["name"] for line in lines if line["kind"] == "span"]


def test_workers_of_the_jobs_own_ray_inherit_the_hooks(temp: Path) -> None:
    start = f"ray.init(address='local', num_cpus=1, include_dashboard=False, _temp_dir={str(temp / 'ray')!r})"
    assert spans_of(start, temp, RayNodes().env) == ["update_actor"]


@pytest.mark.parametrize("runtime_env", ["None", "{'env_vars': {'PYTHONPATH': '/of/the/user'}}"])
def test_workers_of_an_existing_cluster_are_given_the_hooks(temp: Path, runtime_env: str) -> None:
    with ray_nodes("head") as nodes:
        start = f"ray.init(address={nodes.address!r}, runtime_env={runtime_env})"
        assert spans_of(start, temp, nodes.env) == ["update_actor"]
