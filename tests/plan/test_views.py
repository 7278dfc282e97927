"""Plans and catalogues on the terminal: of many devices at most a screen a placement, and none hides the others."""

import re
from math import ceil, gcd
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from placebench.cli import main
from placebench.errors import UsageError
from placebench.spec.devices import Device, device_ranges, node_ranges
from placebench.spec.shapes import PRESETS
from placebench.spec.workload_reading import build_workload

LINES, COLUMNS = 24, 80


def dry_run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", "--dry-run", *arguments])


def screen_lines(text: str) -> int:
    return sum(max(1, ceil(len(line) / COLUMNS)) for line in text.splitlines())


@pytest.mark.parametrize(
    ("model", "each", "nodes", "memory"),
    [*((model, 8, 64, "@141GiB") for model in PRESETS), *(("tiny", *sizes) for sizes in ((512, 1, ""), (7, 300, "")))],
)
def test_of_many_devices_a_placement_takes_at_most_a_screen(model: str, each: int, nodes: int, memory: str) -> None:
    asked = ("--devices", f"gpu:{each}x{nodes}{memory}", "--model", model)
    listed = CliRunner().invoke(main, ["placements", *asked])
    assert listed.exit_code == 0
    entries = re.split(r"^(?=  \S)", listed.stdout.split("\nSettings")[0], flags=re.MULTILINE)
    assert len(entries) > 15
    half, more = (",".join([str(count)] * min(nodes, 64)) for count in (each // 2, each + 1))
    words = f"standard,split,learners:{half}+engines:1,ddp:64/scaling=weak,learners:{more}+engines:1"
    batch = str(each * nodes)
    planned = dry_run(
        *asked, "--placements", words, "--batch-size", batch, "--mini-batch-size", batch, "--rounds", "99"
    )
    blocks = re.split(r"^placement ", planned.stdout.split("\nworkload")[0], flags=re.MULTILINE)
    assert len(blocks) > 2, planned.stderr
    for block in (*entries, *blocks, *planned.stderr.splitlines()):
        assert screen_lines(block) <= LINES, block


def test_devices_are_told_in_ranges() -> None:
    batch = ("--batch-size", "1024", "--mini-batch-size", "512", "--placements", "standard,split")
    several = dry_run("--devices", "gpu:8x64@141GiB", *batch).stdout
    assert "devices   64 × 8 GPU, 141 GiB each, on node0–63\n" in several
    assert "global_pool: actor, rollout, ref, critic, reward on node0–63 gpu:0–7 (512 devices)\n" in several
    assert "critic_pool: critic, reward on node32–63 gpu:0–7 (256 devices)\n" in several
    one = dry_run("--devices", "gpu:512@141GiB", *batch).stdout
    assert "global_pool: actor, rollout, ref, critic, reward on gpu:0–511\n" in one


@given(st.lists(st.from_regex(r"[a-z]{1,3}-?[0-9]{0,3}", fullmatch=True), min_size=1, max_size=8, unique=True))
def test_ranges_of_nodes_hold_every_name_once(names: list[str]) -> None:
    text = node_ranges(names)
    found = []
    for part in text.split(", and ")[0].split(", "):
        first, _, last = part.partition("–")
        prefix, digits = re.fullmatch(r"(.*?)([0-9]*)", first).groups()  # type: ignore[union-attr]
        found += (
            [f"{prefix}{number:0{len(digits)}d}" for number in range(int(digits), int(last) + 1)] if last else [first]
        )
    assert found == names[: len(found)]
    assert (len(found) == len(names)) == (", and " not in text)


@given(st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=5))
def test_ranges_of_devices_hold_every_device_once(nodes: list[set[int]]) -> None:
    devices = [
        Device(f"node{node}/gpu:{index}", "gpu", index, f"node{node}", "GPU", 1)
        for node, indices in enumerate(nodes)
        for index in sorted(indices)
    ]
    found = set()
    for part in device_ranges(devices, names_nodes=True).split("; "):
        where, indices = part.split(" gpu:")
        for node, index in ((n, i) for n in numbers(where.replace("node", "")) for i in numbers(indices)):
            assert (node, index) not in found
            found.add((node, index))
    assert found == {(node, index) for node, indices in enumerate(nodes) for index in indices}


def numbers(text: str) -> list[int]:
    ends = [[int(end) for end in part.split("–")] for part in text.replace(", ", ",").split(",")]
    return [number for end in ends for number in range(end[0], end[-1] + 1)]


def test_what_is_wrong_on_many_nodes_is_told_once() -> None:
    refused = dry_run("--devices", "gpu:8x64", "--placements", f"learners:{','.join(['9'] * 64)}+engines:1")
    lines = refused.stderr.splitlines()
    assert "needs 9 learners on each of nodes 0–63, which has 8 devices" in lines[0]
    assert "there are 512 (8 on each of nodes 0–63)" in lines[1]


@pytest.mark.parametrize(
    ("words", "arguments", "reason"),
    [
        ("split:9+9", [], "'split:9+9' needs 18 devices"),
        ("ddp:3", [], "cannot be shared equally by the 3 devices"),
        ("standard/staleness=99", [], "staleness 99 needs a launch of more than 99 steps"),
        ("learners:1,1+engines:2", [], "has learners on 2 nodes"),
        ("ddp:1", ["--model", "qwen2.5-1.5b"], "each device of replicas needs about"),
    ],
)
def test_a_placement_that_cannot_be_does_not_hide_the_others(words: str, arguments: list[str], reason: str) -> None:
    asked = ["--devices", "gpu:4@80GiB", "--placements", f"standard,{words},split", *arguments]
    shown = dry_run(*asked)
    assert shown.exit_code == 2
    assert [line.split(" ")[1] for line in shown.stdout.splitlines() if line.startswith("placement ")] == [
        "standard,",
        "split,",
    ]
    assert f"left out  {words}: not possible, see below\n" in shown.stdout
    assert shown.stderr.startswith("placebench: placement ")
    assert reason in shown.stderr


def test_a_run_of_some_that_cannot_be_is_refused_with_the_same_reasons(tmp_path: Path) -> None:
    asked = ["--devices", "cpu:2", "--placements", "standard,split:9+9,ddp:3", "--out", str(tmp_path)]
    started = CliRunner().invoke(main, ["run", *asked])
    assert (started.exit_code, started.stdout) == (2, "")
    assert started.stderr == dry_run(*asked).stderr
    assert len(started.stderr.splitlines()) == 5
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--placements", "standard,ddp:3", "--seed", "-1"],
        ["--placements", "standard,ddp:3,spilt"],
        ["--placements", "ddp:3,ddp:5"],
        ["--placements", "standard,standard,ddp:3"],
    ],
)
def test_nothing_is_shown_where_more_is_wrong_or_nothing_is_left(arguments: list[str]) -> None:
    refused = dry_run("--devices", "gpu:4@80GiB", *arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")


@given(st.integers(1, 4000), st.sampled_from(["tiny", "qwen2.5-0.5b"]))
def test_the_mini_batch_follows_a_batch_that_is_given_alone(size: int, model: str) -> None:
    usual = build_workload({"model": model}).batch.mini_batch_size
    try:
        batch = build_workload({"model": model, "batch": {"size": size}}).batch
    except UsageError:
        assert size > usual
        assert 2 * gcd(size, usual) < usual
        return
    assert batch.size == size
    assert size % batch.mini_batch_size == 0
    # Devices that share the usual sizes share these.
    assert batch.mini_batch_size in (size, gcd(size, usual))
    assert min(size, usual) <= 2 * batch.mini_batch_size <= 2 * usual


def test_a_mini_batch_that_follows_is_told() -> None:
    small = dry_run("--devices", "gpu:8@141GiB", "--model", "qwen2.5-0.5b", "--batch-size", "64")
    note = "batch.mini_batch_size is 64: the usual 128 does not divide batch.size 64; --mini-batch-size sets another"
    assert f"note      {note}\n" in small.stdout
    assert "64 sequences of up to 512 + 512 tokens, 1 mini-batch × 1 epoch\n" in small.stdout
    for given_too in (["--mini-batch-size", "32"], ["--set", "batch.mini_batch_size=32"], ["--batch-size", "96"]):
        assert "the usual" not in dry_run("--devices", "cpu:2", "--batch-size", "96", *given_too).stdout
