import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "sampler_overhead.py"
BENCHMARK = runpy.run_path(str(SCRIPT))


def pairs(ratios: list[float]) -> list[dict[str, Any]]:
    """Pairs of launches of two steps each, with these ratios of their times in all; who is first alternates."""
    return [
        {
            "first": "without" if number % 2 else "with",
            "with": {"step": [3.0 * ratio, 1.0 * ratio]},
            "without": {"step": [2.5, 1.5]},
        }
        for number, ratio in enumerate(ratios)
    ]


def test_what_a_place_is_worth_is_no_effect_of_the_sampler() -> None:
    effect, place = 1.002, 1.05
    measured = pairs([effect * place, effect / place, effect * place, effect / place])
    assert BENCHMARK["effect"]([measured], "step") == pytest.approx((effect, effect, effect))


def test_each_series_has_places_of_its_own() -> None:
    effect, place, other = 1.002, 1.05, 0.97
    series = [pairs([effect * place, effect / place] * 2), pairs([effect * other, effect / other, effect * other])]
    assert BENCHMARK["effect"](series, "step") == pytest.approx((effect, effect, effect))


def test_the_interval_covers_the_effect_with_an_odd_number_of_pairs_too() -> None:
    random = np.random.default_rng(0)
    for count in (3, 8, 11):
        covered = 0
        for _ in range(2000):
            noise = random.normal(0.001, 0.003, count) + 0.01 * (-1.0) ** np.arange(count)
            _, low, high = BENCHMARK["effect"]([pairs([float(np.exp(value)) for value in noise])], "step")
            covered += low <= np.exp(0.001) <= high
        assert 0.93 <= covered / 2000 <= 0.97


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )


def test_devices_without_halves_are_refused() -> None:
    refused = run("steps", "--side-by-side", "--devices", "cpu:3")
    assert refused.returncode == 1
    assert refused.stderr == "Error: --side-by-side: 3 devices have no two halves; give an even number by --devices\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "0 pairs of launches do not tell the sampler from the places: measure more, in both orders"),
        (
            json.dumps(pairs([1.0])[0]) + "\n",
            "1 pair of launches do not tell the sampler from the places: measure more, in both orders",
        ),
        (
            3 * (json.dumps(pairs([1.0])[0]) + "\n"),
            "3 pairs of launches do not tell the sampler from the places: measure more, in both orders",
        ),
        ("step 1\n", "{file}: not pairs of launches as steps --file keeps them"),
        ('{"first": "with"}\n', "{file}: not pairs of launches as steps --file keeps them"),
        ('{"first": "with", "with": [], "without": {}}\n', "{file}: not pairs of launches as steps --file keeps them"),
    ],
)
def test_files_that_give_no_ratio_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(content)
    refused = run("pairs", str(file))
    assert (refused.returncode, refused.stderr) == (1, f"Error: {reason.format(file=file)}\n")


def test_a_file_of_something_else_is_refused_before_a_launch_starts(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("step 1\n")
    refused = run("steps", "--devices", "cpu:1", "--file", str(file))
    assert (refused.returncode, file.read_text()) == (1, "step 1\n")
    assert refused.stderr == f"Error: {file}: not pairs of launches as steps --file keeps them\n"


def test_the_published_pairs_give_the_published_interval() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`python benchmarks/sampler_overhead.py (pairs \S+)`", page)
    files = sorted(map(str, ROOT.glob(command.split()[1])))
    ratio = run("pairs", *files).stdout.splitlines()[1].removeprefix("step").strip()
    assert len(files) == 2
    assert ratio in page
    low, high = map(float, re.findall(r"interval (\S+) to (\S+)", ratio)[0])
    assert 0.997 < low < high < 1.003


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pairs_run_side_by_side_and_exchange_their_places(tmp_path: Path) -> None:
    kept = tmp_path / "pairs.jsonl"
    command = [sys.executable, str(SCRIPT), "steps", "--pairs", "3", "--side-by-side", "--devices", "cpu:2"]
    measured = subprocess.run(
        [*command, "--set", "steps=3", "--file", str(kept)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert measured.returncode == 0, measured.stderr
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [line["first"] for line in lines] == ["with", "without", "with"]
    assert all(len(line[side]["step"]) == 1 for line in lines for side in ("with", "without"))
    assert (
        "standard on 1 cpu devices, 5 Hz:\ntime with the sampler / without, 3 pairs of launches:\nstep "
        in measured.stdout
    )
    assert [path for path in tmp_path.iterdir() if path != kept] == []
