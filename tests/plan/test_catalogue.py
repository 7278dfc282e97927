"""`placebench placements`: each word with its reading, its devices, or all that is in its way."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from placebench.cli import main
from placebench.host.devices import discover
from placebench.plan.catalogue import look_up, usual_words
from placebench.spec.devices import devices_per_node, parse_devices
from placebench.spec.presets import PRESETS
from placebench.spec.words import SETTINGS, preset_of
from placebench.spec.workload import Workload


def placements(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["placements", "--verbose", *arguments])


def entry(output: str, word: str) -> list[str]:
    """The lines below a word."""
    lines = output.splitlines()
    first = next(
        number for number, line in enumerate(lines) if re.fullmatch(rf"  {re.escape(word)}(  not possible)?", line)
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
    assert "2 × 8 GPU, 141 GiB each, on node0–1" in result.output


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
        "actor_pool: actor, rollout, ref on node0–1 gpu:0–3 (8 devices)",
        "critic_pool: critic, reward on node0–1 gpu:4–7 (8 devices)",
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
        "global_pool: actor, rollout, ref, critic, reward on gpu:0–7"
    ]


def test_a_file_of_a_run_names_its_placements(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(
        "placements: ['learners:1,1+engines:2', 'split:9+1']\ndevices: gpu:2x2\nrollout: {backend: torch}\n"
    )
    output = placements("--config", str(path)).output
    assert entry(output, "learners:1,1+engines:2") == [
        "learners: actor, ref, critic, reward on node0–1 gpu:0 (2 devices)",
        "engines: rollout on node0–1 gpu:1 (2 devices)",
    ]
    assert "needs 10 devices" in entry(output, "split:9+1")[0]
    assert "standard" not in output


@given(st.integers(1, 16), st.integers(1, 4))
def test_the_usual_words_show_every_preset_on_any_nodes(each: int, nodes: int) -> None:
    devices = discover(parse_devices(f"gpu:{each}x{nodes}"))
    words = usual_words(devices_per_node(devices))
    assert {preset_of(word) for word in words} == set(PRESETS)
    for found in (look_up(word, devices, Workload()) for word in words):
        assert not [reason for reason in found.reasons if "is not of the form" in reason]
        assert found.bound or found.reasons


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--devices", "gpu:8x"], "for a plan of nodes elsewhere gpu:NxM"),
        (["--set", "batch.size=0"], "batch.size: must be greater than 0"),
        (["--config", "nowhere.yaml"], "cannot read it"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: list[str], reason: str) -> None:
    result = placements(*arguments)
    assert result.exit_code == 2
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--model", "nope"], "unknown model 'nope': use tiny"),
        (["--set", "reward_model=nope"], "unknown model 'nope': use tiny"),
        (["--set", "data.source=nope.jsonl"], "nope.jsonl"),
        (["--set", "data.reward=luck"], "data.reward 'luck': use "),
    ],
)
@pytest.mark.parametrize("words", [[], ["standard"], ["standard", "split"]])
def test_what_is_wrong_with_the_workload_is_told_once(words: list[str], arguments: list[str], reason: str) -> None:
    result = placements(*words, *arguments, "--devices", "gpu:2@80GiB")
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1)
    assert reason in result.stderr


def test_what_only_other_hosts_have_is_no_fault_of_the_workload() -> None:
    for setting in ("rollout.backend=vllm", "data.reward=module_of_the_nodes:score"):
        result = placements("standard", "--set", setting, "--devices", "gpu:2@80GiB")
        assert (result.exit_code, result.stderr) == (0, "")


def test_a_list_is_read_as_run_reads_it() -> None:
    output = placements("standard,split", "learners:2,2+engines:2xtp2, ddp:4", "--devices", "gpu:4x2").output
    for word in ("standard", "split", "learners:2,2+engines:2xtp2", "ddp:4"):
        assert entry(output, word)
    assert "unknown" not in output


READABLE = "pools: {a: [3], b: [1]}\nroles: {actor: a, rollout: a, ref: a, critic: b}\n"


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (["foo", "standard"], ["unknown placement 'foo': use standard"]),
        (["standard,spilt"], ["unknown placement 'spilt'"]),
        (["split:x", "split"], ["placement 'split:x': 'split:x' is not of the form"]),
        (["standard/staleness=no", "foo"], ["unknown setting 'staleness=no'", "unknown placement 'foo'"]),
        (["split:1+1/scaling=weak"], ["scaling is a setting of ddp:N"]),
        (["file.yaml/scaling=weak"], ["scaling is a setting of ddp:N"]),
        (["nowhere.yaml"], ["nowhere.yaml: cannot read it: No such file or directory"]),
        (["no.yaml"], ["no.yaml, line "]),
        (["wrong.yaml/overlap=none"], ["wrong.yaml: roles.critic: there is no pool 'c' under pools"]),
        (["--config", "bench.yaml"], ["unknown placement 'foo'"]),
    ],
)
def test_what_is_no_placement_is_wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], reasons: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("no.yaml").write_text("pools: [")
    Path("file.yaml").write_text(READABLE.replace("[3]", "[3, 0]").replace("[1]", "[1, 0]"))
    Path("wrong.yaml").write_text(READABLE.replace("critic: b", "critic: c"))
    Path("bench.yaml").write_text("placements: [standard, foo]\n")
    result = placements(*words, "--devices", "gpu:8x2")
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert len(lines) == len(reasons)
    assert all(reason in line for reason, line in zip(reasons, lines, strict=True))
    assert "not possible" in result.stdout  # all are shown


@pytest.mark.parametrize(
    "word", ["split:9+9", "learners:4,4,4+engines:2", "split@nodes", "file.yaml", "ddp:3/scaling=weak"]
)
def test_what_just_cannot_be_here_is_no_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.yaml").write_text(READABLE)
    result = placements(word, "--devices", "gpu:2@80GiB")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"{word}  not possible" in result.output


def test_described_devices_are_for_plans_alone(tmp_path: Path) -> None:
    run = ["run", "--devices", "gpu:4x2", "--out", str(tmp_path / "runs"), "--placements", "standard,split@nodes"]
    planned = CliRunner().invoke(main, [*run, "--dry-run"])
    assert (planned.exit_code, planned.stderr) == (0, "")
    assert "critic_pool: critic, reward on node1 gpu:0–3" in planned.output
    started = CliRunner().invoke(main, run)
    assert started.exit_code == 2
    assert "--devices gpu:4x2 describes devices for a plan only: add --dry-run" in started.stderr
    assert not (tmp_path / "runs").exists()
