"""`/metrics` as Prometheus reads it, and the dashboard that shows it."""

import json
import re
from pathlib import Path

import pytest
from pages import ROOT
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from serve_requests import BEARER, client
from synthetic_run import SyntheticRun, gpu_run

NASTY = 'run "}\n<script>'


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    run = gpu_run(rounds=1).write(tmp_path / "runs" / "20260302T100000Z-newest")
    content = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(content | {"name": NASTY, "status": "running"}))
    SyntheticRun(rounds=1, started="2026-03-01T00:00:00Z").write(tmp_path / "runs" / "20260301T000000Z-old")
    return tmp_path / "runs"


def test_openmetrics_of_the_runs_that_go_on(runs: Path) -> None:
    answer = client(runs).get("/metrics", headers=BEARER | {"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    found = {family.name: family.samples for family in text_string_to_metric_families(answer.text)}
    name = "20260302T100000Z-newest"
    [info] = found["placebench_run"]
    assert info.labels == {"run": name, "name": 'run "}\\n<script>', "status": "running"}
    launches = {sample.labels["status"]: sample.value for sample in found["placebench_launches"]}
    assert (launches["done"], launches["running"], launches["planned"]) == (2, 0, 0)
    [step] = found["placebench_step_seconds"]
    assert step.labels == {"run": name, "round": "1", "placement": "split"}
    assert step.value == pytest.approx(1.83 * 1.004)
    assert [sample.value for sample in found["placebench_step"]] == [6]
    assert found["placebench_tokens_per_second"][0].value == pytest.approx(1300 / step.value)
    phases = {sample.labels["phase"]: sample.value for sample in found["placebench_phase_seconds"]}
    assert phases["gen"] == pytest.approx(0.9 * 1.004)
    assert "step" not in phases
    clocks = {sample.labels["device"]: sample.value for sample in found["placebench_device_sm_clock_hertz"]}
    assert clocks == {"gpu:0": 1.9e9, "gpu:1": 1.9e9}
    assert {sample.value for sample in found["placebench_device_load_ratio"]} == {0.5}


def test_other_scrapers_get_the_plain_format(runs: Path) -> None:
    answer = client(runs).get("/metrics", headers=BEARER)
    assert answer.headers["content-type"].startswith("text/plain")
    assert "placebench_step_seconds{" in answer.text


def test_a_folder_without_runs_has_no_numbers(tmp_path: Path) -> None:
    answer = client(tmp_path).get("/metrics", headers=BEARER)
    assert answer.status_code == 200
    assert [line for line in answer.text.splitlines() if not line.startswith("#")] == []


def test_the_dashboard_asks_for_all_metrics_that_there_are_and_no_others(runs: Path) -> None:
    dashboard = json.loads((ROOT / "examples" / "grafana" / "placebench.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"placebench_\w+", target["expr"])
    }
    text = client(runs).get("/metrics", headers=BEARER).text
    assert {*re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)} - {"placebench_run_info"} == asked
