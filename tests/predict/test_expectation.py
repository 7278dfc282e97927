"""How long a run is said to take."""

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import SyntheticRun

from placebench.plan.plan import Plan, make_plan
from placebench.plan.request import RunRequest
from placebench.predict.expectation import Expectation, reachable_flops, step_flops
from placebench.spec.devices import Device, device_to_dict
from placebench.spec.shapes import PRESETS, JobShapes
from placebench.spec.workload_reading import build_workload


def request(folder: Path, **changes: Any) -> RunRequest:
    return RunRequest(**{"out": folder / "runs", "devices": "cpu:2", **changes})


def finished_run(folder: Path, plan: Plan, seconds: float, **changes: Any) -> None:
    """Write the run.json of a finished run of the plan, each launch with half its time in the steps."""
    wall = {"total_s": seconds, "steps_s": seconds / 2, "cleanup_s": 0.0}
    launch = {"round": 1, "trial": "trials/01-any", "status": "done", "wall": wall}
    content = {
        **SyntheticRun().manifest(),
        "workload": plan.workload.model_dump(mode="json"),
        "steps": plan.steps,
        "devices": json.loads(json.dumps([vars(one) for one in plan.devices])),
        "launches": [launch | {"placement": name} for name in ("standard", "split")],
    }
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**content, **changes}))


def expected(plan: Plan) -> Expectation:
    found = plan.expectation
    assert found
    return found


def test_an_earlier_run_of_the_same_work_tells_the_duration(tmp_path: Path) -> None:
    plan = make_plan(request(tmp_path, rounds=2))
    assert expected(plan).source.startswith("rough")
    # An earlier version or driver may have said another size of the same device's memory.
    smaller = [device_to_dict(device) | {"memory_bytes": 1 << 30} for device in plan.devices]
    finished_run(tmp_path / "runs/20260301T100000Z-a", plan, 10.0, devices=smaller)
    finished_run(tmp_path / "runs/20260301T110000Z-b", plan, 99.0, devices=["damaged"])
    finished_run(tmp_path / "runs/20260301T120000Z-c", plan, 99.0, launches="damaged")
    assert expected(plan).seconds == pytest.approx(4 * 10.0)
    assert expected(plan).source == "as in 20260301T100000Z-a"
    longer = make_plan(request(tmp_path, rounds=2, workload={"steps": 3 * plan.workload.steps, "seed": 5}))
    assert expected(longer).seconds == pytest.approx(4 * (5.0 + 3 * 5.0))
    other = make_plan(request(tmp_path, workload={"batch": {"size": 64}}))
    assert expected(other).source.startswith("rough")


def test_operations_of_a_step_by_hand() -> None:
    shape = PRESETS["tiny"]
    batch = {"size": 4, "mini_batch_size": 4, "max_prompt_length": 3, "max_response_length": 2}
    job = build_workload({"batch": batch, "algorithm": {"epochs": 2}})
    n, c = shape.parameters, shape.critic_parameters
    assert step_flops(job, JobShapes(shape, shape)) == 4 * 5 * (2 * (3 * n + c) + 6 * 2 * (n + c))
    grpo = build_workload({"batch": {**batch, "group_size": 2}, "algorithm": {"name": "grpo", "epochs": 2}})
    assert step_flops(grpo, JobShapes(shape, shape)) == 4 * 5 * (2 * 3 * n + 6 * 2 * n)
    h200, h100 = (Device(name, "gpu", 0, "node0", name, 1) for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"))
    assert reachable_flops([h200, h200]) == 2 * reachable_flops([h100])
    two, one = (Device("cpu:0", "cpu", 0, "node0", "cpu", 1, cores) for cores in ((0, 1), (7,)))
    assert reachable_flops([two]) == 2 * reachable_flops([one])
