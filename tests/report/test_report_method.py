"""What the report says of how its numbers came about: ratios, means, the host, the commands."""

import json
from pathlib import Path

import pandas as pd
import pytest
from layouts import STANDARD
from showing import read_summary, write_report
from synthetic_run import SyntheticRun, gpu_run

from placebench.compare.comparison import compare_run
from placebench.compare.measure.sides import run_sides
from placebench.record.folder import Status
from placebench.report.notes import notes
from placebench.report.summary import summarize


def note_on_ratios(path: Path) -> str:
    """The note on ratios, which the pages and summary.json hold as well."""
    summary = summarize(compare_run(path))
    (note,) = (line for line in notes(summary, None) if line.startswith("Ratio: "))
    assert note == f"Ratio: over standard. Its 95% interval: {summary.method.interval}."
    return note


def test_the_note_on_ratios_says_which_are_of_steps_of_launches_and_of_no_pairs(tmp_path: Path) -> None:
    plain = note_on_ratios(SyntheticRun().write(tmp_path / "plain"))
    by_step = plain.removeprefix("Ratio: over standard. Its 95% interval: ").removesuffix(".")
    assert by_step.startswith("the t interval over the log ratios of launches of the same round, each the median over")
    by_step_shown = (
        "median of the measured steps of a launch, of device load the mean over them, of peak memory the highest"
        " sample; ratio: of its steps paired one by one, not of the medians, but"
        " launch by launch for hidden, idle and waiting time, load, memory, energy, MFU at its clock, rates and queues"
        " of engines and learners, and what is 0 in a step; "
    )
    assert summarize(compare_run(tmp_path / "plain")).method.steps.startswith(by_step_shown)
    layouts = {"standard": STANDARD, "copy": STANDARD, "more": STANDARD, "late": STANDARD}
    lost = {(round_, name): Status.FAILED for name in layouts for round_ in ((1, 2) if name == "late" else (3, 4))}
    kept = SyntheticRun(layouts, rounds=4, tokens={"more": 1500}, statuses=lost).write(tmp_path / "lost")
    unlike = note_on_ratios(kept)
    assert f": of copy {by_step}; of more " in unlike
    assert "; of more the t interval over the log ratios of launches of the same round, each of medians, " in unlike
    assert "; of late Welch's t interval over launches, as those of different runs or rounds are no pairs." in unlike
    alone = SyntheticRun({"standard": STANDARD}).write(tmp_path / "alone")
    assert summarize(compare_run(alone)).method.steps.endswith(
        " the highest sample; hidden, idle and waiting time: their share of the step"
    )


def test_means_among_the_medians_are_named_where_they_are_measured(tmp_path: Path) -> None:
    path = gpu_run(rounds=2, steps=5, warmup_steps=0, step_pace=lambda _, __, step: 4.0 if step == 5 else 1.0)
    comparison = compare_run(path.write(tmp_path / "run"))
    summary = summarize(comparison)
    named = "median of the measured steps of a launch, of device load, energy per step and tokens/J the mean over them"
    assert summary.method.steps.startswith(f"{named}, of peak memory the highest sample; ratio")
    # One step in five is four times as long: the median is a short one, the energy that of all five.
    value = {found.key: found.value or 0.0 for found in summary.placements[0].quantities}
    assert value["energy"] / value["step_time"] == pytest.approx(2 * 400 * 8 / 5, rel=0.02)
    assert value["tokens_per_j"] == pytest.approx(1300 / value["energy"])
    assert {"queue", "lag"}.isdisjoint(summary.method.steps.replace("queues", "").split())


def test_the_numbers_that_are_said_to_be_compared_launch_by_launch_are(tmp_path: Path) -> None:
    comparison = compare_run(gpu_run(rounds=2).write(tmp_path / "run"))
    values = {metric.label: comparison.first.by_step(metric.key).values() for metric in comparison.metrics}
    by_launch = {label for label, found in values.items() if not all(isinstance(one, pd.Series) for one in found)}
    named = {"hidden by overlap", "device load", "peak memory", "idle", "energy per step", "tokens/J"}
    assert by_launch == named | {"MFU update_critic at its clock", "MFU update_actor at its clock"}


def test_the_commands_that_went_on_with_a_run_are_told(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    content = json.loads((path / "run.json").read_text())
    words = ["placebench", "run", "--resume", "runs/demo", "--time-limit", "900"]
    resumptions = [{"started": f"2026-03-0{day}T10:00:00Z", "command": words[: 4 if day == 2 else 6]} for day in (2, 3)]
    (path / "run.json").write_text(json.dumps(content | {"resumptions": resumptions}))
    write_report(path)
    assert [one.model_dump(mode="json") for one in read_summary(path).resumptions] == resumptions
    markdown = (path / "report.md").read_text()
    assert "| resumption 1, 2026-03-02T10:00:00Z | placebench run --resume runs/demo |" in markdown
    assert "| resumption 2, 2026-03-03T10:00:00Z | placebench run --resume runs/demo --time-limit 900 |" in markdown


def test_the_host_is_told_for_people(tmp_path: Path) -> None:
    path = SyntheticRun(rounds=1).write(tmp_path / "run")
    content = json.loads((path / "run.json").read_text())
    # GPU 1 does not answer, so that it has no place among the links.
    content["host"] |= {
        "usable_cores": [0, 1, 2, 3, 6, 8, 9],
        "memory_bytes": 48 << 30,
        "gpus": [
            {"index": 0, "uuid": "GPU-0a", "name": "NVIDIA H200", "memory_bytes": 140 << 30, "pci": "0000:06:00.0"},
            *({"index": index, "name": "NVIDIA H200"} for index in (2, 3)),
        ],
        "gpu_links": [[None, "NV18", "SYS"], ["NV18", None, "NV12"], ["SYS", "NV12", None]],
        "gpu_fault": None,
        "unreadable_gpus": {"1": "GPU is lost"},
    }
    content["command"] = ["placebench", "run", "--out", "my runs"]
    (path / "run.json").write_text(json.dumps(content))
    write_report(path)
    markdown = (path / "report.md").read_text()
    for row in (
        "| command | placebench run --out 'my runs' |",
        "| usable cores | 0–3,6,8–9 |",
        "| memory | 48.0 GiB |",
        "| gpu:0 | NVIDIA H200, 140 GiB, GPU-0a, PCI 0000:06:00.0 |",
        "| gpu:1 | does not answer (GPU is lost) |",
        "| gpu:2 | NVIDIA H200 |",
        "| links of gpu:0 | gpu:2 NV18, gpu:3 SYS |",
        "| links of gpu:2 | gpu:0 NV18, gpu:3 NV12 |",
        "| links of gpu:3 | gpu:0 SYS, gpu:2 NV12 |",
    ):
        assert row in markdown
    assert "gpu_" not in markdown.partition("## Host, software and workload")[2].partition("workload ")[0]
    arms = run_sides(path)
    assert arms[0].background.facts["host gpu:1"] == "does not answer (GPU is lost)"
    assert "host gpu_links" not in arms[0].background.facts
