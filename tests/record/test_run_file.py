"""`run.json` and `launch.json` as records: of this version, of older ones, and damaged."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from placed import devices_of
from synthetic_run import SyntheticRun, read_json

from placebench.errors import UsageError
from placebench.record.folder import RunFolder, Status, recorded_text
from placebench.record.launch_file import LaunchFile
from placebench.record.parts import PlacementRecord
from placebench.record.run_file import RunFile, read_run_file, replace_status
from placebench.spec.bound import bind
from placebench.spec.words import parse_placement

# What the first version wrote, and a key of which this one knows nothing.
FIRST_VERSION_LACKS = ("models", "resumptions", "launcher", "calibrates", "sample_hz", "cluster", "auto", "min_effect")


def first_version() -> dict[str, Any]:
    content = SyntheticRun(rounds=1).manifest()
    for placement in content["placements"]:
        for key in ("staleness", "inflight_updates", "scaling"):
            del placement[key]
    return {key: value for key, value in content.items() if key not in FIRST_VERSION_LACKS} | {"color": "blue"}


def test_a_run_of_the_first_version_is_read_as_this_one_would_have_written_it(tmp_path: Path) -> None:
    record = RunFile.parse(first_version())
    assert (record.launcher, record.resumptions, record.auto, record.cluster) == ("ray", (), None, None)
    assert record.models is not None
    standard, split = record.run_placements
    assert (standard.staleness, standard.scaling, standard.tensor_parallel) == (0, None, None)
    assert [device.node for device in split.members["critic_pool"]] == ["bench"]
    record.write(tmp_path / "run.json")
    written = read_json(tmp_path / "run.json")
    assert written["color"] == "blue"
    assert RunFile.read(tmp_path / "run.json") == record


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "sleeping"}, "status: Input should be 'planned', 'running', "),
        ({"launcher": "mpi"}, "launcher 'mpi'"),
        ({"resumptions": 1}, "resumptions: 1 is not a list"),
        ({"devices": []}, "device 'cpu:0' of a placement is none of the run's"),
        ({"devices": [{}]}, "key 'kind' is missing"),
        ({"launches": [{"round": 1}]}, "'placement' is missing"),
        ({"models": "large"}, "not as placebench writes it"),
    ],
)
def test_a_damaged_record_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps(SyntheticRun(rounds=1).manifest() | changes))
    with pytest.raises(UsageError) as caught:
        read_run_file(RunFolder(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / 'run.json'}: not as placebench writes it: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_status_is_read_and_replaced_whatever_else_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text('{"color": "blue", "status": "running"}')
    replace_status(path, Status.DONE, Status.FAILED)
    assert recorded_text(path, "status") == "running"
    replace_status(path, Status.RUNNING, Status.INTERRUPTED)
    assert read_json(path) == {"color": "blue", "status": "interrupted"}
    path.write_text("[]")
    assert recorded_text(path, "status") == recorded_text(tmp_path / "none.json", "status") == ""


def test_a_launch_is_read_as_it_was_written(tmp_path: Path) -> None:
    devices = devices_of((2, 2))
    placement = bind(parse_placement("split:1+3", (2, 2)), devices)
    launch = LaunchFile(
        schema_version=1,
        round=2,
        placement=PlacementRecord.of(placement),
        devices=tuple(devices),
        workload={"model": "tiny"},
        ray_temp_dir="/tmp/pb-1",
    )
    path = tmp_path / "launch.json"
    launch.write(path)
    found = LaunchFile.read(path)
    assert found == launch
    assert found.run_placement == placement
    content = read_json(path)
    del content["launcher"], content["placement"]["staleness"]
    path.write_text(json.dumps(content))
    assert LaunchFile.read(path) == launch


def test_records_are_read_without_torch_ray_and_pandas() -> None:
    heavy = "{'torch', 'ray', 'pandas', 'vllm'}"
    program = (
        f"import sys, placebench.record.run_file, placebench.record.launch_file; print(sys.modules.keys() & {heavy})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
