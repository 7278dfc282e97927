"""The hooks reach the workers of a job's own Ray, and those of a cluster that was there before it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from clusters import RayNodes, ray_nodes

from placebench.jobs.attach.environment import attached

pytestmark = pytest.mark.slow

_JOB = """
import sys, ray
{start}
@ray.remote
class Worker:
    def work(self):
        from placebench_attach import span
        with span("update_actor"):
            return 1
gpus = int(ray.cluster_resources().get("GPU", 0))
workers = [Worker.options(name=f"worker-{{rank}}", num_gpus=min(gpus, 1)).remote() for rank in range(gpus or 1)]
assert ray.get([worker.work.remote() for worker in workers]) == [1] * len(workers)
ray.shutdown()
"""


def lines_of(start: str, folder: Path, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a job's workers leave; `start` is how the job starts its Ray, or joins one that is there."""
    spans = folder / "spans"
    spans.mkdir()
    hooked = attached(environment, spans, is_on_cluster="address='local'" not in start)
    subprocess.run([sys.executable, "-c", _JOB.format(start=start)], env=hooked, check=True, timeout=300)
    return [json.loads(line) for path in spans.iterdir() for line in path.read_text().splitlines()]


def check(lines: list[dict[str, Any]]) -> None:
    """Each of two workers has left a span, and the GPU that Ray has allotted to it."""
    assert [line["name"] for line in lines if line["kind"] == "span"] == ["update_actor"] * 2
    workers = {line["ray_actor"]: line["ray_gpus"] for line in lines if line["kind"] == "process"}
    assert sorted(workers) == ["worker-0", "worker-1"]
    assert sorted(workers.values()) == [["0"], ["1"]]


def test_workers_of_the_jobs_own_ray_inherit_the_hooks_and_say_what_it_has_allotted_to_them(temp: Path) -> None:
    start = "ray.init(address='local', num_cpus=2, num_gpus=2, include_dashboard=False"
    lines = lines_of(f"{start}, _temp_dir={str(temp / 'ray')!r})", temp, RayNodes().env)
    check(lines)


def test_a_job_that_replaces_its_python_path_has_its_own_ray_all_the_same(temp: Path) -> None:
    job = f"import ray; ray.init(address='local', num_cpus=1, include_dashboard=False, _temp_dir={str(temp / 'ray')!r})"
    command = ["env", "PYTHONPATH=/of/the/user", sys.executable, "-c", job]
    subprocess.run(command, env=attached(RayNodes().env, temp), check=True, timeout=300)


@pytest.mark.parametrize("runtime_env", ["None", "{'env_vars': {'PYTHONPATH': '/of/the/user'}}"])
def test_workers_of_an_existing_cluster_are_given_the_hooks_and_say_it_too(temp: Path, runtime_env: str) -> None:
    with ray_nodes() as nodes:
        nodes.start("head", "--num-gpus=2")
        nodes.wait("head")
        start = f"ray.init(address={nodes.address!r}, runtime_env={runtime_env})"
        check(lines_of(start, temp, nodes.env))
