"""`placebench placements`: each word with its reading, its devices, or all that is in its way."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from placebench.catalogue import look_up, usual_words
from placebench.cli import main
from placebench.devices import discover, parse_devices
from placebench.placement_presets import PRESETS
from placebench.placement_words import SETTINGS, preset_of
from placebench.plan import devices_per_node
from placebench.workload import Workload


def placements(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["placements", *arguments])


def entry(output: str, word: str) -> list[str]:
    """The lines below a word."""
    lines = output.splitlines()
    first = next(
        number for number, line in enumerate(lines) if re.fullmatch(rf"  {re.escape(word)}(  cannot be)?", line)
    )
    following = (number for number in range(first + 1, len(lines)) if not lines[number].startswith("    "))
    return [line.strip() for line in lines[first + 1 : next(following, len(lines))]]


def test_every_preset_and_setting_is_listed_with_its_reading() -> None:
    result = placements("--devices", "gpu:8x2@141GiB")
    assert (result.exit_code, result.stderr) == (0, "")
    for one in PRESETS:
        assert f"{one.form}  {one.reading}" in result.output
    for name, setting in SETTINGS.items():
        assert f"/{name}={setting.form}  {setting.reading}" in result.output
    assert "8 × gpu GPU, 141.0 GiB each, on node1" in result.output


def test_a_word_shows_its_devices_or_why_it_cannot_be() -> None:
    output = placements("split@nodes", "split:9+7", "split:3+1", "spilt", "--devices", "gpu:8x2").output
    assert entry(output, "split@nodes") == [
        "actor_pool: actor, rollout, ref on node0 gpu:0–7",
        "critic_pool: critic, reward on node1 gpu:0–7",
    ]
    (reason,) = entry(output, "split:3+1")
    assert "cannot be shared equally by the 3 devices of actor_pool" in reason
    assert len(entry(output, "split:9+7")) == 2
    assert entry(output, "spilt")[0].startswith("unknown placement 'spilt'")
    assert "Settings" not in output


def test_devices_of_one_node_are_told_in_runs(tmp_path: Path) -> None:
    path = tmp_path / "halves.yaml"
    path.write_text(
        "pools: {actor_pool: [4, 4], critic_pool: [4, 4]}\n"
        "roles: {actor: actor_pool, rollout: actor_pool, ref: actor_pool, critic: critic_pool}\n"
    )
    output = placements(f"{path}/overlap=none", "--devices", "gpu:8x2").output
    assert entry(output, f"{path}/overlap=none") == [
        "actor_pool: actor, rollout, ref on node0 gpu:0–3; node1 gpu:0–3",
        "critic_pool: critic, reward on node0 gpu:4–7; node1 gpu:4–7",
    ]


def test_without_a_critic_none_is_shown() -> None:
    output = placements("split", "standard", "--set", "algorithm.name=grpo", "--devices", "cpu:2").output
    assert [line.split(" on ")[0] for line in entry(output, "split") + entry(output, "standard")] == [
        "actor_pool: actor, rollout",
        "ref_pool: ref, reward",
        "global_pool: actor, rollout, ref, reward",
    ]


def test_memory_counts() -> None:
    arguments = ("standard", "--model", "qwen2.5-7b", "--set", "rollout.backend=torch", "--devices")
    assert (
        "each device of global_pool needs about" in entry(placements(*arguments, "gpu:2@40GiB").output, "standard")[0]
    )
    assert entry(placements(*arguments, "gpu:8@141GiB").output, "standard") == [
        "global_pool: actor, rollout, ref, critic, reward on node0 gpu:0–7"
    ]


def test_a_file_of_a_run_names_its_placements(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(
        "placements: ['learners:1,1+engines:2', 'split:9+1']\ndevices: gpu:2x2\nrollout: {backend: torch}\n"
    )
    output = placements("--config", str(path)).output
    assert entry(output, "learners:1,1+engines:2") == [
        "learners: actor, ref, critic, reward on node0 gpu:0; node1 gpu:0",
        "engines: rollout on node0 gpu:1; node1 gpu:1",
    ]
    assert "needs 10 devices" in entry(output, "split:9+1")[0]
    assert "standard" not in output


@given(st.integers(1, 16), st.integers(1, 4))
def test_the_usual_words_show_every_preset_on_any_nodes(each: int, nodes: int) -> None:
    devices = discover(parse_devices(f"gpu:{each}x{nodes}"))
    words = usual_words(devices_per_node(devices))
    assert {preset_of(word) for word in words} == set(PRESETS)
    for found in look_up(words, devices, Workload()):
        assert not [reason for reason in found.reasons if "is not of the form" in reason]
        assert found.bound or found.reasons


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--devices", "gpu:8x"], "for a plan of nodes elsewhere gpu:NxM"),
        (["--set", "batch.size=0"], "batch.size: input should be greater than 0"),
        (["--config", "nowhere.yaml"], "cannot read it"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: list[str], reason: str) -> None:
    result = placements(*arguments)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_described_devices_are_for_plans_alone(tmp_path: Path) -> None:
    run = ["run", "--devices", "gpu:4x2", "--out", str(tmp_path / "runs"), "--placements", "standard,split@nodes"]
    planned = CliRunner().invoke(main, [*run, "--dry-run"])
    assert (planned.exit_code, planned.stderr) == (0, "")
    assert "critic_pool: critic, reward on node1/gpu:0, node1/gpu:1, node1/gpu:2, node1/gpu:3" in planned.output
    started = CliRunner().invoke(main, run)
    assert started.exit_code == 2
    assert "--devices gpu:4x2 describes devices that nobody looks for: add --dry-run" in started.stderr
    assert not (tmp_path / "runs").exists()
