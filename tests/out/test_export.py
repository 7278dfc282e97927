"""`placebench export`: what each target holds, read back by its own reader; and `run --track`, which fails no run."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from disks import small_disk
from google.protobuf.json_format import ParseDict
from invoking import invoke
from launching import processes_of
from layouts import SPLIT, STANDARD
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from pages import ROOT
from showing import write_report
from synthetic_run import gpu_run

import placebench
from placebench.commands.export import _TARGETS
from placebench.commands.tracking import track_run
from placebench.errors import InterruptedRunError
from placebench.out.export import TARGETS
from placebench.record.folder import Status

FULL = "no space is left on the disk that it writes to: free some, and export again"
RATIO = SPLIT.step_s / STANDARD.step_s


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = gpu_run(rounds=3, pace=lambda *_: 1.0, statuses={(3, "split"): Status.OOM})
    folder = run.write(tmp_path_factory.mktemp("runs") / "run")
    write_report(folder)
    return folder


def export(path: Path, target: str, out: Path, **variables: str) -> str:
    """By a process of its own, as clients leave threads, processes and settings behind in theirs; what it says."""
    command = [sys.executable, "-m", "placebench", "export", str(path), "--to", target, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=out.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{target}: ")
    return done.stdout


def test_the_command_has_every_target() -> None:
    assert set(_TARGETS) == set(TARGETS)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_are_read_back(path: Path, tmp_path: Path, kind: str) -> None:
    done = invoke("export", path, "--to", kind, "--out", tmp_path / "tables")
    assert (done.exit_code, done.output) == (0, f"{kind}: {tmp_path / 'tables'}\n")
    read = pd.read_csv if kind == "csv" else pd.read_parquet
    run = placebench.load(path)
    for name in ("launches", "steps", "spans", "devices"):
        found, known = read(tmp_path / "tables" / f"{name}.{kind}"), getattr(run, name)
        assert list(found.columns) == list(known.columns)
        pd.testing.assert_frame_equal(found, known, check_dtype=False, check_like=True)
    ratios = read(tmp_path / "tables" / f"comparison.{kind}").set_index(["placement", "key"])
    assert ratios.loc[("split", "step_time"), "ratio"] == pytest.approx(RATIO)


def test_otlp_is_read_back_by_the_messages_of_opentelemetry(path: Path, tmp_path: Path) -> None:
    done = invoke("export", path, "--to", "otlp-json", "--out", tmp_path / "run.jsonl")
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 5
    for content in lines[::2]:
        spans = ParseDict(content, TracesData()).resource_spans[0].scope_spans[0].spans
        ids = {span.span_id for span in spans}
        (root,) = (span for span in spans if not span.parent_span_id)
        assert len(ids) == len(spans)
        assert all(span.parent_span_id in ids for span in spans if span is not root)
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)
        assert all(len(span["traceId"]) == 32 and len(span["spanId"]) == 16 for span in _raw_spans(content))
    by_name = {span["name"]: span for span in _raw_spans(lines[0]) if _device(span) == "controller"}
    assert _seconds(by_name["step 3"]) == pytest.approx(STANDARD.step_s)
    found = ParseDict(lines[1], MetricsData()).resource_metrics[0].scope_metrics[0].metrics
    (step,) = (metric for metric in found if metric.name == "timing_s/step")
    assert (step.unit, len(step.gauge.data_points)) == ("s", 6)
    assert step.gauge.data_points[5].as_double == pytest.approx(STANDARD.step_s)


def _raw_spans(content: Any) -> Iterator[dict[str, Any]]:
    yield from content["resourceSpans"][0]["scopeSpans"][0]["spans"]


def _device(span: dict[str, Any]) -> str:
    return next((one["value"]["stringValue"] for one in span["attributes"] if one["key"] == "device"), "")


def _seconds(span: dict[str, Any]) -> float:
    return (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9


def test_tensorboard_is_read_back_by_its_accumulator(path: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in ("once", "again"):
        done = invoke("export", path, "--to", "tensorboard", "--out", tmp_path / "board")
        assert (done.exit_code, done.output) == (0, f"tensorboard: {tmp_path / 'board'}\n")
    names = sorted(folder.name for folder in (tmp_path / "board").iterdir())
    assert names == ["comparison", "split-1", "split-2", "standard-1", "standard-2", "standard-3"]
    launch = EventAccumulator(str(tmp_path / "board" / "split-2")).Reload()
    steps = launch.Scalars("timing_s/step")
    assert [one.step for one in steps] == [1, 2, 3, 4, 5, 6]
    assert steps[-1].value == pytest.approx(SPLIT.step_s)
    assert [one.value for one in launch.Scalars("devices/gpu:0/power_w")] == pytest.approx([400.0] * 6)
    comparison = EventAccumulator(str(tmp_path / "board" / "comparison")).Reload()
    assert comparison.Scalars("ratio/step_time/split")[0].value == pytest.approx(RATIO)
    (text,) = comparison.Tensors("verdict/text_summary")
    assert b"split is slower than standard" in text.tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # and used by MLflow's store
def test_mlflow_is_read_back_by_its_client(path: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient  # a second or two, which no other test should wait for

    export(path, "mlflow", tmp_path / "mlflow")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("placebench")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"demo", "split/1", "split/2", "standard/1", "standard/2", "standard/3"}
    parent, launch = runs["demo"], runs["split/2"]
    assert launch.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (launch.data.params["placement"], launch.data.params["round"]) == ("split", "2")
    history = client.get_metric_history(launch.info.run_id, "timing_s/step")
    assert sorted((one.step, round(one.value, 6)) for one in history)[-1] == (6, SPLIT.step_s)
    assert parent.data.metrics["ratio/step_time/split"] == pytest.approx(RATIO)
    assert "split is slower than standard" in parent.data.tags["placebench.verdict"]
    names = {Path(file.path).name for file in client.list_artifacts(parent.info.run_id, "report")}
    assert {"report.html", "summary.json"} <= names


def records_of(file: Path) -> dict[str, list[Any]]:
    """The contents of an offline run by their kind, as wandb's own program reads them."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "HOME": file.anchor})
    found = defaultdict(list)
    for line in map(json.loads, told.stdout.splitlines()):
        found[line["type"]].append(line.get(line["type"]))
    return found


def test_wandb_offline_files_are_read_back_by_its_program(path: Path, tmp_path: Path) -> None:
    told = export(path, "wandb", tmp_path / "wandb", WANDB_MODE="offline", HOME=str(tmp_path))
    assert told.endswith(f"; to upload it: wandb sync {tmp_path / 'wandb' / 'wandb'}/offline-run-*\n")
    runs = {}
    for file in (tmp_path / "wandb").rglob("*.wandb"):
        records = records_of(file)
        (run,) = records["run"]
        runs[run["display_name"]] = (run, records)
    assert set(runs) == {"comparison", "split/1", "split/2", "standard/1", "standard/2", "standard/3"}
    assert {run["run_group"] for run, _ in runs.values()} == {"demo"}
    run, records = runs["split/2"]
    assert (run["project"], run["job_type"]) == ("placebench", "split")
    assert run["config"]["update"]["placement"] == "split"
    history = [row["item"] for row in records["history"]]
    assert [row["_step"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1]["timing_s/step"] == pytest.approx(SPLIT.step_s)
    comparison = runs["comparison"][1]
    results = {key: value for row in comparison["summary"] for key, value in row["update"].items()}
    assert results["ratio/step_time/split"] == pytest.approx(RATIO)
    assert "report.html" in json.dumps(comparison["artifact"])


def test_what_cannot_be_exported_is_refused_in_a_line(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, reason in (
        ((path,), "--to"),
        ((path, "--to", "excel"), "excel"),
        ((path, "--to", "csv", "--to", "parquet", "--out", tmp_path / "x"), "2 targets are named with --to: name one"),
        ((path, "--to", "csv", "--out", tmp_path / "file" / "x"), "Not a directory"),
        ((path, "--to", "wandb", "--out", tmp_path / "file" / "x"), "Not a directory"),
        ((tmp_path / "nowhere", "--to", "csv"), "there is no such folder"),
        ((ROOT / "runs" / "reference" / "4x-h200" / "ppo-7b", "--to", "csv"), "without its raw files"),
    ):
        done = invoke("export", *words)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
        assert reason in done.stderr
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("words", [("export", "latest", "--to", "mlflow"), ("run", "--track", "mlflow")])
def test_a_client_that_is_not_installed_is_named_before_anything_starts(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placebench.out.export.find_spec", lambda name: None)
    done = invoke(*words)
    assert (done.exit_code, done.stderr) == (
        2,
        "placebench: mlflow needs mlflow: pip install 'placebench[mlflow]'\n",
    )


def test_a_full_disk_leaves_the_events_of_before_and_no_traceback(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    words = ("export", path, "--to", "tensorboard", "--out", tmp_path / "board")
    assert invoke(*words).exit_code == 0
    before = {file: file.read_bytes() for file in (tmp_path / "board").rglob("*.*")}

    def full(self: RecordWriter, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", full)
    done = invoke(*words)
    assert (done.exit_code, done.stderr) == (
        3,
        f"placebench: tensorboard has failed: {FULL}\n",
    )
    assert {file: file.read_bytes() for file in (tmp_path / "board").rglob("*.*")} == before


@pytest.mark.parametrize("target", ["csv", "parquet", "tensorboard", "otlp-json"])
def test_a_full_disk_leaves_no_empty_folder(path: Path, tmp_path: Path, target: str) -> None:
    with small_disk(tmp_path / "full", "40k") as folder, (folder / "all").open("wb", buffering=0) as rest:
        while (free := os.statvfs(folder)).f_bavail:
            rest.write(bytes(free.f_bsize))
        done = invoke("export", path, "--to", target, "--out", folder / "new" / "out")
        assert done.exit_code in (2, 3)
        assert "o space" in done.stderr
        assert [*folder.iterdir()] == [folder / "all"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that a client of a tracker fills."""
    with small_disk(tmp_path / "full", "100k") as folder:
        yield folder


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_full_disk_is_told_in_a_line_and_spoils_no_later_export(
    path: Path, full_disk: Path, tmp_path: Path, tracker: str
) -> None:
    command = [
        sys.executable,
        "-m",
        "placebench",
        "export",
        str(path),
        "--to",
        tracker,
        "--out",
        str(full_disk / "out"),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", "HOME": str(tmp_path)}

    def run() -> tuple[int, str, str]:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert run() == (3, "", f"placebench: {tracker} has failed: {FULL}\n")
    subprocess.run(["mount", "-o", "remount,size=50m", full_disk], check=True)
    code, out, error = run()
    assert (code, out[: len(tracker) + 2], error) == (0, f"{tracker}: ", "")


def broken_client(folder: Path, code: str) -> Path:
    (folder / "tensorboard").mkdir(parents=True)
    (folder / "tensorboard" / "__init__.py").write_text(code)
    return folder


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no route\\nto the service')", "tensorboard has failed: RuntimeError: no route"),
        ("import os; os._exit(9)", "it ended with 9"),
        ("input()", "tensorboard has failed: EOFError"),
    ],
)
def test_a_service_that_fails_fails_no_run(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: str,
    reason: str,
) -> None:
    paths = os.pathsep.join((str(broken_client(tmp_path, code)), str(ROOT)))
    monkeypatch.setenv("PYTHONPATH", paths)
    track_run(path, ["tensorboard"])
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"placebench: --track tensorboard: {reason}")
    assert told.err.endswith(f"the run itself is complete: try again with placebench export {path} --to tensorboard\n")
    assert told.err.count("\n") == 1


def test_a_signal_ends_what_exports_too(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(300)"
    paths = os.pathsep.join((str(broken_client(tmp_path, code)), str(ROOT)))
    monkeypatch.setenv("PYTHONPATH", paths)
    with pytest.raises(InterruptedRunError) as stopped:
        track_run(path, ["tensorboard", "mlflow"])
    again = f"export it with placebench export {path} --to tensorboard"
    assert str(stopped.value) == f"stopped by SIGTERM before the run was in tensorboard: {again}"
    assert stopped.value.exit_code == 143
    assert processes_of(tmp_path) == []
