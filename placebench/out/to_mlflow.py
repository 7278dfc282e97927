"""Launches as runs of MLflow, below a run of the comparison that has the report as its artifact."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from placebench.out.tracked import TrackedRun

# What MLflow takes in one request.
_MOST_METRICS, _MOST_PARAMS, _LONGEST = 1000, 100, 500
_SQLITE = "sqlite:///"
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


def write(run: TrackedRun, where: Path | None) -> str:
    """Log a run; the experiment is MLFLOW_EXPERIMENT_NAME, or `placebench`.

    Args:
        run: what to log.
        where: a folder that is there, for `mlflow.db` and artifacts; None for where MLFLOW_TRACKING_URI says.

    Returns:
        Where it is, in words.
    """
    # Its own are seven, four minutes of a server that is not there.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    uri = f"sqlite:///{where.resolve() / 'mlflow.db'}" if where else mlflow.get_tracking_uri()
    artifacts = where.resolve() / "artifacts" if where else None
    places = [Path(uri.removeprefix(_SQLITE)) if uri.startswith(_SQLITE) else None, artifacts]
    new = [place for place in places if place and not place.exists()]
    try:
        return _log_run(run, MlflowClient(uri), artifacts.as_uri() if artifacts else None)
    except Exception:
        for place in new:  # MLflow can neither use nor mend a database that it has made half
            shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink(missing_ok=True)
        raise


def _log_run(run: TrackedRun, client: MlflowClient, artifacts: str | None) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "placebench")
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name, artifacts)
    parent = client.create_run(experiment, run_name=run.name, tags={"placebench.verdict": run.verdict})
    ended = int(1000 * run.ended)
    results = [Metric(_name(key), value, ended, 0) for key, value in run.results.items()]
    _log(client, parent.info.run_id, run.config, results)
    for file in run.report:
        client.log_artifact(parent.info.run_id, str(file), "report")
    for launch in run.launches:
        begun = int(1000 * launch.steps[0].wall)
        tags = {"mlflow.parentRunId": parent.info.run_id, "placebench.placement": launch.placement}
        child = client.create_run(experiment, start_time=begun, run_name=launch.name, tags=tags)
        metrics = [
            Metric(_name(key), value, int(1000 * step.wall), step.step)
            for step in launch.steps
            for key, value in step.values.items()
        ]
        _log(client, child.info.run_id, launch.config, metrics)
        client.set_terminated(child.info.run_id, end_time=int(1000 * launch.steps[-1].wall))
    client.set_terminated(parent.info.run_id)
    return f"experiment {name} at {client.tracking_uri}"


def _log(client: MlflowClient, run_id: str, config: Mapping[str, object], metrics: list[Metric]) -> None:
    params = [Param(_name(key), str(value)[:_LONGEST]) for key, value in config.items()]
    for first in range(0, len(params), _MOST_PARAMS):
        client.log_batch(run_id, params=params[first : first + _MOST_PARAMS])
    for first in range(0, len(metrics), _MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[first : first + _MOST_METRICS])
    client.log_batch(run_id, tags=[RunTag("placebench", "true")])


def _name(key: str) -> str:
    return _NOT_IN_NAMES.sub("_", key)
