"""Predict placements of several GPUs before they are run, run them, and compare.

    python benchmarks/predicted_placements.py predict --from CALIBRATION,… --into predictions.json       # commit it
    python benchmarks/predicted_placements.py run 7b --rounds 3 --out FOLDER
    python benchmarks/predicted_placements.py errors predictions.json FOLDER/*-7b --into errors.csv

`predict` asks `placebench predict` for every work, `run` is `placebench run` of one of them, and `errors` has a row for
every placement and phase that was predicted, whether or not it was measured, and for every ratio to `standard`.
"""

import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from statistics import fmean
from typing import Any

import click
from predicted_runs import commit

from placebench.spec.nested import flatten, merge, nest
from placebench.spec.workload_reading import build_workload

PPO = ("standard", "split", "split/overlap=none")


@dataclass(frozen=True)
class Work:
    """What is run on all GPUs of a host."""

    model: str
    """A preset."""
    placements: tuple[str, ...]
    """Placement words."""
    settings: Mapping[str, Any]
    """Workload keys that are not a run's defaults."""


_7B = {"batch.size": 64, "batch.mini_batch_size": 32, "batch.micro_batch_tokens": 8192}
_GRPO = {"algorithm.name": "grpo", "batch.size": 128, "batch.mini_batch_size": 64, "batch.group_size": 4}
WORKS: Mapping[str, Work] = {
    "1.5b": Work("qwen2.5-1.5b", PPO, {}),
    "7b": Work("qwen2.5-7b", PPO, _7B),
    # One mini-batch a step, in micro-batches as large as memory allows.
    "7b-80": Work(
        "qwen2.5-7b", PPO, {"batch.size": 80, "batch.mini_batch_size": 80, "batch.micro_batch_tokens": 10240}
    ),
    # A batch that three devices divide.
    "1.5b-more": Work(
        "qwen2.5-1.5b",
        ("standard", "split:3+1", "learners:2+engines:2/staleness=1", "standard/staleness=1"),
        {"batch.size": 264, "batch.mini_batch_size": 132},
    ),
    "1.5b-grpo": Work("qwen2.5-1.5b", ("ddp:1", "ddp:2", "ddp:4"), _GRPO),
    "8b": Work("llama-3.1-8b", PPO[:2], _7B),
    "7b-long": Work("qwen2.5-7b", PPO[:2], _7B | {"batch.max_response_length": 1024}),
    # For a host without GPUs, on which the figures mean nothing.
    "tiny": Work("tiny", PPO, {"batch.size": 16, "batch.mini_batch_size": 8, "batch.max_response_length": 8}),
}
_STEPS = ("--steps", "4", "--warmup-steps", "1", "--set", "trace_kernels=false")


@click.group()
def main() -> None:
    """Predict, run and compare."""


@main.command()
@click.option("--from", "sources", required=True, help="As `placebench predict` takes it.")
@click.option("--devices", default="gpu:4@141GiB", show_default=True)
@click.option("--work", "names", multiple=True, type=click.Choice(list(WORKS)), help="Default: all but tiny.")
@click.option("--into", required=True, type=click.Path(path_type=Path))
def predict(sources: str, devices: str, names: Sequence[str], into: Path) -> None:
    """Write what every placement of each work is expected to take."""
    works = {name: WORKS[name] for name in names or [name for name in WORKS if name != "tiny"]}
    found = {name: _predicted(work, sources, devices) for name, work in works.items()}
    for name, one in found.items():
        for placement in one["placements"]:
            times = "  ".join(f"{key} {placement[key]:.2f}" for key in ("step_s", "low_s", "high_s") if placement[key])
            print(f"{name:10} {placement['placement']:34} {times}  {placement['prediction_class']}")
    content = {
        "commit": commit(),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "sources": sources,
        "devices": devices,
        "works": found,
    }
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _predicted(work: Work, sources: str, devices: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="pb-") as folder:
        found = Path(folder, "found.json")
        words = ["--from", sources, "--devices", devices, "--placements", ",".join(work.placements)]
        # All keys: those that are not given are the calibrations', not a run's defaults.
        _placebench("predict", *words, *_words(flatten(_workload(work))), "--json", str(found))
        content: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
    return content


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("name", type=click.Choice(list(WORKS)))
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def run(name: str, options: tuple[str, ...]) -> None:
    """Run a work, with more options of `placebench run`."""
    work = WORKS[name]
    words = ["--name", name, "--placements", ",".join(work.placements), *_STEPS]
    _placebench("run", *words, *_words({"model": work.model, **work.settings}), *options)


def _workload(work: Work) -> dict[str, Any]:
    """Every key of a run's workload."""
    content = reduce(
        merge, (nest(key.split("."), value) for key, value in work.settings.items()), {"model": work.model}
    )
    return build_workload(content).model_dump(mode="json")


def _words(settings: Mapping[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def _placebench(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "placebench", *words], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


@main.command()
@click.argument("predictions", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("measured", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--into", required=True, type=click.Path(path_type=Path))
def errors(predictions: Path, measured: tuple[Path, ...], into: Path) -> None:
    """Compare what was predicted with what was measured, all of it: folders with a `summary.json`."""
    predicted: Mapping[str, Any] = json.loads(predictions.read_text(encoding="utf-8"))["works"]
    summaries = [json.loads((folder / "summary.json").read_text(encoding="utf-8")) for folder in measured]
    rows = [row for name, one in predicted.items() for row in _rows(name, one, summaries)]
    with into.open("w", newline="", encoding="utf-8") as table:
        writer = csv.DictWriter(table, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    steps = [abs(row["error_pct"]) for row in rows if row["what"] == "step" and row["error_pct"] != ""]
    for row in rows:
        if row["what"] in ("step", "ratio") and row["launches"]:
            print("  ".join(f"{key} {value}" for key, value in row.items() if value != ""))
    if steps:
        print(f"{len(steps)} placements: mean {fmean(steps):.1f} %, largest {max(steps):.1f} %")


def _rows(name: str, predicted: Mapping[str, Any], summaries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of the step, its ratio to the first placement's, and the phases of each placement."""
    measured = {
        one["name"]: {quantity["key"]: quantity for quantity in one["quantities"]}
        for summary in summaries
        if _is_of(WORKS[name], summary["workload"])
        for one in summary["placements"]
    }
    first = predicted["placements"][0]["step_s"]
    for one in predicted["placements"]:
        found = measured.get(one["placement"], {})
        step, ratio = found.get("step_time", {}), found.get("step_time", {}).get("ratio") or {}
        expected = {"step": (one["step_s"], step), "ratio": (one["step_s"] / first, ratio)}
        expected |= {
            phase["name"]: (phase["total_s"], found.get(f"phase/{phase['name']}", {})) for phase in one["phases"]
        }
        for what, (value, other) in expected.items():
            if what == "ratio" and one is predicted["placements"][0]:
                continue
            seconds = other.get("value")
            yield {
                "work": name,
                "placement": one["placement"],
                "what": what,
                "predicted": round(value, 4),
                "measured": "" if seconds is None else round(seconds, 4),
                "low": "" if other.get("low") is None else round(other["low"], 4),
                "high": "" if other.get("high") is None else round(other["high"], 4),
                "launches": step.get("n", 0),
                "error_pct": round(100 * (value / seconds - 1), 1) if seconds else "",
            }


def _is_of(work: Work, workload: Mapping[str, Any]) -> bool:
    """Whether a run's workload is this one, but for the number of steps and tracing."""
    mine = _workload(work)
    return all(workload[key] == mine[key] for key in ("model", "batch", "algorithm", "sharding"))


if __name__ == "__main__":
    main()
