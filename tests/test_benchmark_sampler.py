import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "sampler_overhead.py"
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
    assert BENCHMARK["effect"](measured, "step") == pytest.approx((effect, effect, effect))


def test_the_interval_covers_the_effect_with_an_odd_number_of_pairs_too() -> None:
    random = np.random.default_rng(0)
    for count in (3, 8, 11):
        covered = 0
        for _ in range(2000):
            noise = random.normal(0.001, 0.003, count) + 0.01 * (-1.0) ** np.arange(count)
            _, low, high = BENCHMARK["effect"](pairs([float(np.exp(value)) for value in noise]), "step")
            covered += low <= np.exp(0.001) <= high
        assert 0.93 <= covered / 2000 <= 0.97


def test_devices_without_halves_are_refused() -> None:
    refused = subprocess.run(
        [sys.executable, str(SCRIPT), "steps", "--side-by-side", "--devices", "cpu:3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr == "Error: --side-by-side: 3 devices have no two halves; give an even number by --devices\n"


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
    assert "standard on 1 cpu devices, 3 pairs of launches" in measured.stdout
    assert [path for path in tmp_path.iterdir() if path != kept] == []
