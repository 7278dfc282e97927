"""What the commands' checks need: a name that nothing finds, or that is no option and no key, would silence a check."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from checkpoint_files import write_checkpoint

from placebench.plan import plan, resume
from placebench.plan.request import RunRequest, request_facts
from placebench.slurm import checks as slurm_checks
from placebench.spec.check import Check, collect
from placebench.spec.workload import workload_keys
from placebench.spec.workload_reading import RUN_KEYS


@pytest.mark.parametrize("checks", [plan._CHECKS, slurm_checks._CHECKS])
def test_of_a_request_that_is_right_every_check_is_asked(tmp_path: Path, checks: Sequence[Check]) -> None:
    request = RunRequest(
        workload={"steps": 9},
        devices="cpu:2",
        rounds="auto",
        name="all",
        checkpoint_every=2,
        resume_from=write_checkpoint(tmp_path, 3),
        ray_address=None,
    )
    facts = request_facts(request)
    facts.add(folder=tmp_path / "run", node_count=2, gpus_per_node=0)
    assert collect(checks, facts).lines == ()
    assert [check for check in checks if not check.can_answer(facts)] == []


@pytest.mark.parametrize("checks", [plan._CHECKS, resume._CHECKS, slurm_checks._CHECKS])
def test_checks_hang_on_options_and_keys_that_there_are(checks: Sequence[Check]) -> None:
    known = {"host", *RUN_KEYS, *workload_keys()}
    assert {key for check in checks for key in (*check.needs, *check.settled)} <= known
