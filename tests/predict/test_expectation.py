"""How long a run is said to take."""

import json
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import write_checkpoint
from rich.console import Console
from synthetic_run import SyntheticRun

from placebench.plan.plan import Plan, make_plan
from placebench.plan.request import RunRequest
from placebench.plan.views import show_plan
from placebench.predict.expectation import Expectation, reachable_flops, step_flops
from placebench.spec.auto_rounds import AutoRounds, StepChoice
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


def test_launches_of_later_rounds_count_with_the_steps_that_they_had(tmp_path: Path) -> None:
    plan = make_plan(request(tmp_path, rounds=2, placements="standard", workload={"steps": 12, "warmup_steps": 2}))
    auto = AutoRounds(chooses_steps=True, choice=StepChoice(38, start_s=5.0, step_s=1.0, between=0.1, within=0.1))
    launch = {"trial": "trials/01-any", "status": "done", "placement": "standard"}
    # Twelve steps of 1 s in the third round, 2 + 38 of them in the fourth, and 10 s around them.
    launches = [
        launch | {"round": number, "wall": {"total_s": steps + 10.0, "steps_s": steps, "cleanup_s": 0.0}}
        for number, steps in ((3, 12.0), (4, 40.0))
    ]
    finished_run(tmp_path / "runs/20260301T100000Z-a", plan, 0.0, auto=asdict(auto), launches=launches, warmup_steps=2)
    assert expected(plan).seconds == pytest.approx(2 * (10.0 + 12 * 1.0))
    assert expected(replace(plan, auto=auto, rounds=4)).seconds == pytest.approx(
        3 * (10.0 + 12 * 1.0) + 10.0 + 40 * 1.0
    )


def test_steps_of_a_checkpoint_are_not_run_again(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoints", 20)
    scratch = make_plan(request(tmp_path, rounds=1, workload={"steps": 24}))
    plan = make_plan(request(tmp_path, rounds=1, workload={"steps": 24}, resume_from=path))
    # The time of a start, in which nothing is known, and a sixth of the operations.
    assert expected(plan).seconds - 2 * 15.0 == pytest.approx((expected(scratch).seconds - 2 * 15.0) * 4 / 24)
    started = {"checkpoint": str(path), "step": 16}
    finished_run(tmp_path / "runs/20260301T100000Z-a", scratch, 16.0, resumed_from=started)
    # The earlier run had eight steps of 1 s after the 16 of its checkpoint.
    assert expected(plan).seconds == pytest.approx(2 * (8.0 + 4 * 1.0))
    assert expected(scratch).seconds == pytest.approx(2 * (8.0 + 24 * 1.0))
    shown = StringIO()
    show_plan(plan, Console(file=shown, width=300))
    assert f"start     every launch from checkpoint {path}, after step 20\n" in shown.getvalue()
    assert "steps     4 a launch, up to number 24, the first " in shown.getvalue()


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
