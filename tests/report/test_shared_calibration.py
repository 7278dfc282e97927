"""Calibrations from runs that were shared without their raw files: what they are of is what the run's own would be."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from layouts import Layout
from synthetic_run import SyntheticRun, read_json

from placebench.cli import main
from placebench.record.writing import write_json
from placebench.report.calibrations import load_calibration
from placebench.report.shared_calibration import shared_calibration
from placebench.spec.placement import Role

TIMES = {"gen": (0.0, 0.5), "old_log_prob": (0.5, 0.6), "ref": (0.6, 0.7), "update_actor": (0.7, 1.0)}
LEARNERS = {"learners": ("node0/cpu:0", "node0/cpu:1"), "engines": ("node1/cpu:0", "node1/cpu:1")}
APART = dict.fromkeys(map(str, Role), "learners") | {"rollout": "engines"}
WORKLOAD: dict[str, object] = {"model": "tiny", "algorithm": {"name": "grpo"}, "rollout": {"backend": "vllm"}}
WORKLOAD |= {"batch": {"size": 64, "mini_batch_size": 32, "group_size": 4}}


def write_run(folder: Path, placement: str) -> Path:
    """A run of one placement on two nodes with an engine of two devices, and its report."""
    SyntheticRun(layouts={placement: Layout(LEARNERS, APART, TIMES, 1.1)}, rounds=2, workload=WORKLOAD).write(folder)
    manifest = read_json(folder / "run.json")
    manifest["placements"][0]["tensor_parallel"] = 2
    for device in manifest["devices"]:
        device["node"] = device["id"].split("/")[0]
    write_json(folder / "run.json", manifest)
    assert CliRunner().invoke(main, ["report", str(folder)]).exit_code == 0
    return folder


@pytest.mark.parametrize(("placement", "is_early"), [("learners:2+engines:1xtp2", True), ("mine", False)])
def test_engines_and_nodes_are_those_of_the_run(tmp_path: Path, placement: str, *, is_early: bool) -> None:
    folder = write_run(tmp_path / "run", placement)
    own = load_calibration(folder)
    (case,) = own.cases
    engines = {phase.name: (phase.devices, phase.tensor_parallel) for phase in case.phases}
    assert engines == {name: (2, 2 if name == "gen" else 1) for name in engines}
    if is_early:
        summary = read_json(folder / "summary.json")
        del summary["placements"][0]["tensor_parallel"]
        (folder / "summary.json").write_text(json.dumps(summary))
    shutil.rmtree(folder / "trials")
    (folder / "run.json").unlink()
    shared = shared_calibration(folder)
    assert (shared.nodes, shared.device_count) == (own.nodes, own.device_count) == (2, 4)
    (kept,) = shared.cases
    assert kept.workload["rollout"]["tensor_parallel_size"] == 2
    assert [phase.seconds for phase in kept.phases] == pytest.approx([phase.seconds for phase in case.phases])
    assert {phase.name: (phase.devices, phase.tensor_parallel) for phase in kept.phases} == engines


def test_a_shared_run_of_two_nodes_is_predicted_on_two_nodes(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "learners:2+engines:1xtp2")
    shutil.rmtree(folder / "trials")
    (folder / "run.json").unlink()
    words = ["predict", "--from", str(folder), "--placements", "learners:2+engines:1xtp2,split@nodes"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert re.search(r"learners\S* +1\.1\d* s", result.stdout)


def test_tokens_of_a_step_are_those_that_were_counted(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    SyntheticRun(rounds=2, workload=WORKLOAD).write(folder)
    assert CliRunner().invoke(main, ["report", str(folder)]).exit_code == 0
    words = ["predict", "--from", str(folder), "--placements", "standard,split", "--json", str(tmp_path / "p.json")]

    def predicted() -> list[float]:
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        return [one["tokens_per_s_per_device"] for one in read_json(tmp_path / "p.json")["placements"]]

    own = predicted()
    shutil.rmtree(folder / "trials")
    (folder / "run.json").unlink()
    assert predicted() == pytest.approx(own, rel=0.02)


def test_what_a_placement_does_not_do_is_not_measured_as_no_time() -> None:
    kept = shared_calibration(Path(__file__).parents[2] / "runs" / "reference" / "4x-h200" / "ppo-1.5b-placements")
    phases = {case.name: {phase.name for phase in case.phases} for case in kept.cases}
    assert {"sleep", "wake_up"} <= phases["standard"]
    assert phases["standard"] - phases["learners:2+engines:2/staleness=1"] == {"sleep", "wake_up"}
    assert all(phase.seconds > 0 for case in kept.cases for phase in case.phases)
