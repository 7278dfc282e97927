"""Real logs, by path: read in full, checked against an independent reading of the same lines."""

import os
import re
from pathlib import Path

import pandas as pd
import pytest
from log_reading import frame_of

from placebench.logs.read import is_timing, scan_log
from placebench.logs.timing import Kind

FOLDER = Path(os.environ.get("PLACEBENCH_REFERENCE_LOGS", Path(__file__).parents[3] / "shared" / "reference" / "logs"))
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="no reference logs: name their folder in PLACEBENCH_REFERENCE_LOGS"
)

# Name, step lines, metrics, values, phases of the step.
SERIAL_091 = "gen old_log_prob ref values adv update_critic update_actor update_weights"
EXPECTED = {
    "line_docs_pre0.2.txt": (1, 40, 40, "gen ref values adv update_critic update_actor"),
    "line_v0.1-0.2_main_task.txt": (1, 58, 58, "gen ref values adv update_critic update_actor"),
    "line_v0.5-0.6_np.txt": (1, 77, 77, "gen reward old_log_prob values adv update_critic update_actor"),
    "line_v0.9.1_legacy.txt": (1, 128, 128, f"{SERIAL_091} reward"),
    "line_v0.9.1_v1.txt": (1, 112, 112, SERIAL_091),
    "line_v0.9.1_v1_split_plugin.txt": (1, 113, 113, f"{SERIAL_091} update_critic_wait"),
    "verl091_legacy_ppo_2proc_cpu.raw.log": (3, 128, 378, f"{SERIAL_091} reward"),
    "verl091_v1_sync_ppo_2proc_cpu.jsonl": (3, 112, 336, SERIAL_091),
    "verl091_v1_sync_ppo_2proc_cpu.raw.log": (3, 112, 336, SERIAL_091),
    "verl_gpg_qwen2-7b_megatron_8gpu_2025.log": (
        106,
        53,
        5299,
        "gen reward old_log_prob adv update_actor save_checkpoint testing",
    ),
    "verl_ppo_qwen2.5-0.5b_1gpu_2024.log": (435, 42, 17486, "gen ref values adv update_critic update_actor testing"),
}


def test_every_reference_log_is_expected() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.suffix in {".log", ".txt", ".jsonl"}} >= set(EXPECTED)


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items(), ids=EXPECTED)
def test_reference_log(name: str, expected: tuple[int, int, int, str]) -> None:
    lines, metrics, values, phases = expected
    log = scan_log(FOLDER / name)
    frame = log.table.frame("log")
    assert (log.table.lines, frame["metric"].nunique(), len(frame)) == (lines, metrics, values)
    assert log.format.name == ("verl-jsonl" if name.endswith(".jsonl") else "verl")
    timing = log.timings().tidy("log")
    assert set(timing.loc[timing["kind"] == Kind.PHASE, "phase"]) == set(phases.split())


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith((".log", ".txt"))])
def test_values_equal_those_of_a_plain_reading(name: str) -> None:
    plain: dict[tuple[int, str], float] = {}
    for line in (FOLDER / name).read_text(errors="replace").split("\n"):
        found = re.search(r"(?:^|[ m])step:(\d+) - (.*)", line)
        for piece in found[2].split(" - ") if found else ():
            key, _, printed = piece.rpartition(":")
            number = re.fullmatch(r"(?:np\.\w+\()?([^()\s]+)\)?.*", printed)
            assert found is not None
            assert number is not None
            plain[int(found[1]), key] = float(number[1])
    frame = frame_of(FOLDER / name)
    read = dict(zip(zip(frame["step"], frame["metric"], strict=True), frame["value"], strict=True))
    pd.testing.assert_series_equal(pd.Series(read).sort_index(), pd.Series(plain).sort_index())


def test_console_and_jsonl_of_one_run_are_equal() -> None:
    console, jsonl = (
        frame_of(FOLDER / f"verl091_v1_sync_ppo_2proc_cpu.{suffix}").sort_values(["step", "metric"])
        for suffix in ("raw.log", "jsonl")
    )
    pd.testing.assert_frame_equal(console.reset_index(drop=True), jsonl.reset_index(drop=True))


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("verl_gpg_qwen2-7b_megatron_8gpu_2025.log", set()),
        ("verl091_legacy_ppo_2proc_cpu.raw.log", {"testing"}),
    ],
)
def test_validation_is_where_the_version_has_it(name: str, outside: set[str]) -> None:
    timing = scan_log(FOLDER / name, keep=is_timing).timings().tidy("log")
    assert set(timing.loc[timing["kind"] == Kind.OUTSIDE, "phase"]) == outside
    seconds = timing.pivot(index="step", columns="phase", values="seconds")
    assert (seconds["unattributed"] / seconds["step"]).median() < 0.01
