"""The benchmark of starts and stops runs, on made-up checkouts."""

import json
import re
import runpy
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner

from placebench.host.machine import usable_cores

ROOT = Path(__file__).parents[2]
BENCHMARK = runpy.run_path(str(ROOT / "benchmarks" / "starting.py"))


def checkout(folder: Path, before_steps: float, end: str = "") -> Path:
    """A checkout whose command writes a run of two launches, and what it was given into a list beside the checkout."""
    (folder / "placebench").mkdir(parents=True)
    (folder / "placebench" / "__init__.py").touch()
    (folder / "placebench" / "__main__.py").write_text(
        dedent(f"""
        import json, os, pathlib, sys
        {end}
        run = pathlib.Path(sys.argv[sys.argv.index("--out") + 1]) / "run"
        (run / "trials" / "01").mkdir(parents=True)
        given = {{
            "name": "{folder.name}",
            "devices": sys.argv[sys.argv.index("--devices") + 1],
            "cores": sorted(os.sched_getaffinity(0)),
            "cache": os.environ.get("VLLM_CACHE_ROOT"),
        }}
        with open({str(folder.parent / "turns")!r}, "a") as stream:
            stream.write(json.dumps(given) + "\\n")
        with open(run / "trials" / "01" / "steps.jsonl", "w") as stream:
            for step in (1, 2, 3):
                times = {{"gen": 1, "update_actor": 0.5, "update_critic": 0.25}}
                times["step"] = 9 if step == 1 else {before_steps}
                metrics = {{f"timing_s/{{phase}}": seconds for phase, seconds in times.items()}}
                stream.write(json.dumps({{"step": step, "metrics": metrics}}) + "\\n")
        wall = {{"after_steps_s": 0.5, "cleanup_s": 0.1}}
        starts = [{{**wall, "before_steps_s": start * {before_steps}}} for start in (3, 1)]
        (run / "run.json").write_text(json.dumps({{"launches": [{{"wall": wall}} for wall in starts]}}))
        """)
    )
    return folder


def turns(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "turns").read_text().splitlines()]


def test_launches_are_timed_beside_those_of_another_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, here = checkout(tmp_path / "other", 4.0), checkout(tmp_path / "here", 2.0)
    monkeypatch.setitem(BENCHMARK["main"].callback.__globals__, "HERE", here)
    done = CliRunner().invoke(BENCHMARK["main"], ["--other", str(other), "--pairs", "2"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [turn["name"] for turn in turns(tmp_path)] == ["other", "here", "here", "other"]
    *launches, share, command = done.stdout.splitlines()
    assert launches == [
        "first start      12.00 →    6.00 s, ratio 0.50 (0.50 to 0.50)",
        "later starts      4.00 →    2.00 s, ratio 0.50 (0.50 to 0.50)",
        "after steps       0.50 →    0.50 s, ratio 1.00 (1.00 to 1.00)",
        "cleaning up       0.10 →    0.10 s, ratio 1.00 (1.00 to 1.00)",
        "step              4.00 →    2.00 s, ratio 0.50 (0.50 to 0.50)",
        "gen               1.00 →    1.00 s, ratio 1.00 (1.00 to 1.00)",
        "updates           0.75 →    0.75 s, ratio 1.00 (1.00 to 1.00)",
    ]
    assert re.fullmatch(r"share in steps +[\d.]+ → +[\d.]+ +, ratio [\d.]+ \([\d.]+ to [\d.]+\)", share)
    assert re.fullmatch(r"command +[\d.]+ → +[\d.]+ s, ratio [\d.]+ \([\d.]+ to [\d.]+\)", command)


@pytest.mark.skipif(len(usable_cores()) < 2, reason="one core has no halves")
def test_runs_at_the_same_time_have_half_of_the_devices_each_and_caches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, here = checkout(tmp_path / "other", 4.0), checkout(tmp_path / "here", 2.0)
    monkeypatch.setitem(BENCHMARK["main"].callback.__globals__, "HERE", here)
    words = ["--other", str(other), "--pairs", "2", "--side-by-side", "--cold", "--into", str(tmp_path / "kept")]
    done = CliRunner().invoke(BENCHMARK["main"], words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = turns(tmp_path)
    assert {turn["devices"] for turn in found} == {"cpu:1"}
    assert len({turn["cache"] for turn in found}) == 4
    cores = {name: [turn["cores"] for turn in found if turn["name"] == name] for name in ("other", "here")}
    # They exchange the halves, which have no core in common.
    assert cores["other"] == cores["here"][::-1]
    assert not set(cores["other"][0]) & set(cores["here"][0])
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"1-other", "1-this", "2-other", "2-this"}


def test_devices_without_halves_are_refused(tmp_path: Path) -> None:
    words = ["--other", str(checkout(tmp_path / "other", 4.0)), "--side-by-side", "--devices", "cpu:1"]
    done = CliRunner().invoke(BENCHMARK["main"], words)
    assert done.exit_code == 1
    assert "cpu:1 on" in done.output
    assert "has no two halves" in done.output


def test_a_run_that_fails_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, here = checkout(tmp_path / "other", 4.0, end='sys.exit("no devices")'), checkout(tmp_path / "here", 2.0)
    monkeypatch.setitem(BENCHMARK["main"].callback.__globals__, "HERE", here)
    done = CliRunner().invoke(BENCHMARK["main"], ["--other", str(other), "--pairs", "2"])
    assert done.exit_code == 1
    assert "placebench run ended with 1: no devices" in done.output
    assert not (tmp_path / "turns").exists()
