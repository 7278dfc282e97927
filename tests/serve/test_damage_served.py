"""Whatever becomes of a run's files, its page goes on, and tells what can still be read."""

import shutil
from pathlib import Path

import pytest
from damage import DAMAGES
from growing_run import GrowingRun, Reader

from placebench.record.writing import append_jsonl, write_json
from placebench.serve.metrics import registry_of
from placebench.serve.site import Site

OF_LAUNCH = ("progress.json", "steps.jsonl", "spans.jsonl", "devices.jsonl", "processes.jsonl", "launch.json", "status")
OTHERS = ("train.log", "log.json")
FILES = (*(f"trials/02-split/{name}" for name in (*OF_LAUNCH, *OTHERS)), "summary.json", "lock", "run.json")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = GrowingRun(tmp_path_factory.mktemp("page") / "run")
    for _ in range(3):
        run.add_step(**{"training/queue_mean": 1.0, "perf/total_num_tokens": 9.0})
        run.sample(100.0 + run.steps, event_reasons=4, temperature_c=50)
    with (run.trial.path / "processes.jsonl").open("w") as stream:
        append_jsonl(stream, {"pid": 7, "device": "cpu:0"})
    with run.trial.device_samples.open("a") as stream:
        processes = [{"pid": 7, "memory_bytes": 9}]
        append_jsonl(
            stream, {"kind": "processes", "wall": 1.0, "mono": 101.0, "device": "cpu:0", "processes": processes}
        )
    run.be_at(4, ("gen", 108.0, 109.0), ("ref", 109.0, None))
    run.trial.log.write_text("step:1\n")
    flags = [{"name": "spans", "text": "none"}]
    content = {"schema_version": 1, "framework": "verl", "format": "verl", "flags": flags}
    write_json(run.trial.log_facts, content)
    write_json(run.folder.summary_file, {"name": "demo", "status": "done", "placements": []})
    return run.folder.path


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_page_outlives_damaged_files(sound: Path, tmp_path: Path, damage: str) -> None:
    path = shutil.copytree(sound, tmp_path / "runs" / "run")
    reader = Reader(path)
    reader.look()
    assert reader.known["now"]["doing"] == "step 4/6: ref"
    for file in FILES:  # more and more of them, those last without which there is nothing to show
        DAMAGES[damage](path / file, (path / file).read_bytes())
        reader.look()
        assert reader.known["run"]["status"]
    late = Reader(path)
    late.look()
    assert late.known["run"]["status"]
    assert list(registry_of([reader.sections.files, late.sections.files]).collect())
    site = Site(path.parent)
    assert [run["id"] for run in site.runs()] == list(site.folders())
