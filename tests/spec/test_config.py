import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.errors import UsageError
from placebench.plan.given import GivenRun
from placebench.plan.request import build_request
from placebench.spec.check import Facts
from placebench.spec.config import find_line, load_yaml, parse_settings
from placebench.spec.nested import merge
from placebench.spec.workload import Workload, workload_keys
from placebench.spec.workload_reading import REAL_MODEL, build_workload, read_workload

keys = st.sampled_from(["a", "b", "c"])
trees: st.SearchStrategy[Any] = st.recursive(
    st.integers(), lambda below: st.dictionaries(keys, below, max_size=3), max_leaves=8
)
mappings = st.dictionaries(keys, trees, max_size=3)


def leaves(tree: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {key: value for name, below in tree.items() for key, value in leaves(below, (*path, name)).items()}


@given(mappings, mappings)
def test_merging_keeps_every_value_of_the_upper_layer(base: dict[str, Any], over: dict[str, Any]) -> None:
    merged = leaves(merge(base, over))
    upper = leaves(over)
    assert upper.items() <= merged.items()
    for path, value in merged.items():
        assert upper.get(path) == value or leaves(base)[path] == value


@given(mappings, mappings, mappings)
def test_merging_is_associative_where_sections_agree(
    first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]
) -> None:
    def sections(tree: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        if not isinstance(tree, dict):
            return set()
        return {path}.union(*(sections(below, (*path, name)) for name, below in tree.items()))

    trees = (first, second, third)
    ends = {path for tree in trees for path in leaves(tree)}
    if ends.isdisjoint(sections(first) | sections(second) | sections(third)):
        assert merge(merge(first, second), third) == merge(first, merge(second, third))


def test_settings_are_read_as_yaml() -> None:
    assert parse_settings(["batch.size=64", "optimizer.actor_lr=1e-6", "model=tiny", "rollout.ignore_eos=true"]) == {
        "batch": {"size": 64},
        "optimizer": {"actor_lr": 1e-6},
        "model": "tiny",
        "rollout": {"ignore_eos": True},
    }


def test_a_section_has_keys_or_a_value() -> None:
    settings = ["batch=5", "batch.size=4", "data={source: code}", "data.reward=last_number", "=3"]
    with pytest.raises(UsageError) as caught:
        parse_settings(settings)
    assert str(caught.value).splitlines() == [
        "--set '=3': write key=value, for example --set batch.size=32",
        "--set batch sets a whole section to one value, and --set batch.size a key in that section: leave one of"
        " them out",
    ]


@pytest.mark.parametrize("setting", ["batch.size", "=3", "a=[", " =1"])
def test_a_setting_needs_key_and_value(setting: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        parse_settings([setting])


def request_for(tmp_path: Path, yaml: str, options: Mapping[str, tuple[str, Any]], settings: list[str]) -> Workload:
    path = tmp_path / "bench.yaml"
    path.write_text(yaml)
    request = build_request(GivenRun(short=options, settings=settings, config=path))
    return build_workload(request.workload, request.origin)


def test_options_go_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    yaml = "steps: 20\nbatch: {size: 64, max_prompt_length: 12}\n"
    workload = request_for(tmp_path, yaml, {"batch.size": ("--batch-size", 96)}, ["algorithm.epochs=3"])
    assert workload.batch.size == 96
    assert workload.batch.max_prompt_length == 12
    assert workload.steps == 20
    assert workload.algorithm.epochs == 3
    assert workload.batch.max_response_length == Workload().batch.max_response_length


def test_a_real_model_starts_from_its_own_preset() -> None:
    workload = build_workload({"model": "qwen2.5-7b", "batch": {"size": 512}})
    assert workload.batch.size == 512
    assert workload.batch.max_response_length == REAL_MODEL["batch"]["max_response_length"]
    assert workload.precision == "bfloat16"


@pytest.mark.parametrize("model", ["tiny", "qwen2.5-7b"])
def test_grpo_starts_from_its_own_preset(model: str) -> None:
    grpo = build_workload({"model": model, "algorithm": {"name": "grpo", "kl_estimator": "k1"}})
    ppo = build_workload({"model": model})
    assert (grpo.algorithm.kl_loss, grpo.algorithm.kl_in_reward, grpo.algorithm.kl_estimator) == (True, False, "k1")
    assert (grpo.batch.group_size, ppo.batch.group_size) == (8, 1)
    assert grpo.algorithm.epochs == ppo.algorithm.epochs
    assert not grpo.algorithm.has_critic


def test_run_keys_of_the_file_give_way_to_options(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(
        "placements: [standard, split/overlap=none]\nrounds: 5\ndevices: cpu:4\nname: mine\nout: elsewhere\n"
    )
    request = build_request(GivenRun({"rounds": 2}, config=path))
    assert request.placements == "standard,split/overlap=none"
    assert (request.rounds, request.devices, request.name, request.out) == (2, "cpu:4", "mine", Path("elsewhere"))


def test_the_same_setting_twice_is_refused() -> None:
    request = build_request(GivenRun(short={"batch.size": ("--batch-size", 8)}, settings=["batch.size=16"]))
    assert request.wrong == ("--batch-size and --set batch.size are the same setting: give it once",)
    assert request.unknown == {"batch.size"}
    below = build_request(GivenRun(short={"batch.size": ("--batch-size", 8)}, settings=["batch={size: 16}"]))
    assert below.wrong == request.wrong
    section = build_request(GivenRun(short={"batch.size": ("--batch-size", 8)}, settings=["batch=3"]))
    assert section.wrong == (
        "--set batch sets a whole section to one value, and --batch-size a key in that section: leave one of them out",
    )


def test_all_that_is_wrong_with_settings_file_and_options_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text("rounds: 0\ndevices: 4\nname: mine\nsteps: 7\n")
    options = {"seed": ("--seed", 1), "batch.size": ("--batch-size", 8)}
    settings = ["=3", "seed=2", "batch.size=4", "batch.group_size=[", "data"]
    request = build_request(GivenRun({"rounds": 2}, options, settings, path, {"steps": "--steps: no number"}))
    assert [line.removeprefix(f"{path}, ") for line in request.wrong] == [
        "--steps: no number",
        "line 1: rounds: 0 is neither a number from 1 to 10000 nor auto",
        "line 2: devices: 4 is not text",
        "--set '=3': write key=value, for example --set batch.size=32",
        "--set 'batch.group_size=[': cannot read the value '['",
        "--set 'data': write key=value, for example --set batch.size=32",
        "--seed and --set seed are the same setting: give it once",
        "--batch-size and --set batch.size are the same setting: give it once",
    ]
    of_data = {key for key in workload_keys() if key.startswith("data.")}
    assert request.unknown == {"steps", "devices", "seed", "batch.size", "batch.group_size", *of_data}
    assert (request.rounds, request.devices, request.name) == (2, None, "mine")


def test_of_a_file_that_cannot_be_read_only_what_options_say_is_known(tmp_path: Path) -> None:
    request = build_request(GivenRun({"rounds": 2}, settings=["seed=4"], config=tmp_path / "nowhere.yaml"))
    assert {"placements", "devices", "out", "name", "model", "batch.size"} <= request.unknown
    assert request.unknown.isdisjoint({"rounds", "seed"})


def test_all_wrong_values_of_a_workload_are_told_at_once() -> None:
    content = {
        "batch": {"size": 100, "group_size": 3, "micro_batch_tokens": 4, "sise": 1},
        "rollout": {"tensor_parallel_size": 2},
        "optimizer": {"betas": [2, 3], "actor_lr": -1},
        "warmup_steps": 10,
        5: 6,
    }
    with pytest.raises(UsageError) as caught:
        build_workload(content)  # type: ignore[arg-type]
    assert [line.removeprefix("workload: ") for line in str(caught.value).splitlines()] == [
        "unknown key 'batch.sise'; did you mean 'batch.size'?",
        "optimizer.actor_lr: must be greater than 0 (got -1)",
        "optimizer.betas.0: must be less than 1 (got 2)",
        "optimizer.betas.1: must be less than 1 (got 3)",
        "5: keys should be strings (got 5)",
        "batch: size 100 is not a multiple of mini_batch_size 32",
        "batch: size 100 is not a multiple of group_size 3",
        "batch: micro_batch_tokens 4 cannot hold one sequence of 24 tokens",
        "rollout: tensor_parallel_size 2 needs backend vllm: torch generates on single devices",
        "workload: warmup_steps 10 leaves none of 6 steps to measure: raise steps or lower warmup_steps",
    ]


@pytest.mark.parametrize(
    "content",
    [
        {"batch": {"size": "many", "group_size": 7}},
        {"batch": {"mini_batchsize": 100, "size": 100}},
        {"batch": 5, "algorithm": {"name": "grpo", "epochs": 0}},
        {"steps": 0, "warmup_steps": 20},
        {"model": 5, "batch": {"size": 100}},
    ],
)
def test_values_are_not_held_against_one_that_is_not_known(content: dict[str, Any]) -> None:
    facts = Facts()
    reasons = read_workload(content, "workload", facts)
    assert facts.unknown
    assert not [line for line in reasons if "multiple" in line or "group_size" in line or "leaves none" in line]


@pytest.mark.parametrize(
    ("yaml", "options", "settings", "reason"),
    [
        (
            "steps: 5\nbatch:\n  size: 0\n",
            {},
            [],
            "bench.yaml, line 3: batch.size: must be greater than 0 (got 0)",
        ),
        ("batch:\n  sise: 4\n", {}, [], "bench.yaml, line 2: unknown key 'batch.sise'; did you mean 'batch.size'?"),
        (
            "steps: 5\nbatch.size: 16\n",
            {},
            [],
            "line 2: unknown key 'batch.size'; write it as a section, batch: {size: ...}",
        ),
        (
            "batch:\n  batch.sise: 4\n",
            {},
            [],
            "line 2: unknown key 'batch.batch.sise'; write it as a section, batch: {size",
        ),
        ("\nmodle: tiny\n", {}, [], "bench.yaml, line 2: unknown key 'modle'; did you mean 'model'?"),
        ("batch: 5\n", {}, [], "bench.yaml, line 1: batch: "),
        ("steps: 5\n", {"steps": ("--steps", -1)}, [], "--steps: must be greater than 0"),
        ("steps: 5\n", {}, ["steps=none"], "--set steps: must be a whole number"),
        ("steps: yes\n", {}, [], "bench.yaml, line 1: steps: must be a whole number (got True)"),
        ("", {}, ["rollout.temperature=no"], "--set rollout.temperature: must be a number (got False)"),
        ("", {}, ["rollout.memory_share=true"], "--set rollout.memory_share: must be a number (got True)"),
        ("", {}, ["rollout.tensor_parallel_size=on"], "must be 1, 2, 4 or 8 (got True)"),
        ("", {}, ["optimizer.betas=[0.9]"], "--set: optimizer.betas.1: must be given (got [0.9])"),
        ("", {}, ["optimizer.betas=[0.9, 0.9, 0.9]"], "--set optimizer.betas: must have at most 2 values"),
        ("batch: {size: 40}\n", {}, [], "bench.yaml, line 1: batch: size 40 is not a multiple of mini_batch_size 32"),
        (
            "",
            {"batch.mini_batch_size": ("--mini-batch-size", 48)},
            [],
            "--mini-batch-size: batch: size 128",
        ),
    ],
)
def test_a_wrong_value_is_traced_to_where_it_was_set(
    tmp_path: Path, yaml: str, options: Mapping[str, tuple[str, Any]], settings: list[str], reason: str
) -> None:
    with pytest.raises(UsageError) as caught:
        request_for(tmp_path, yaml, options, settings)
    assert reason in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("yaml", "reason"),
    [
        ("rounds: 0\n", "line 1: rounds: 0 is neither a number from 1 to 10000 nor auto"),
        ("launcher: mpi\n", "line 1: launcher: 'mpi' is neither ray nor torchrun"),
        ("a: 1\nrounds: true\n", "line 2: rounds: True is neither a number"),
        ("placements: 5\n", "line 1: placements: 5 is not a list of words"),
        ("devices: 4\n", "line 1: devices: 4 is not text"),
        ("- a\n", "must hold keys and values, found list"),
        ("a: [1\nb: 2\n", "line 2, column 2: "),
        ("a: \tb: c\n", "line 1, column "),
        ("a: !!bool maybe\n", "bench.yaml: cannot read its values: 'maybe'"),
        (f"a: 1\nb: 0x{'f' * 4000}\n", "bench.yaml, line 2, column 4: a number of 16,000 bits"),
        ("a: !!timestamp x\n", "bench.yaml: cannot read its values: "),
    ],
)
def test_a_wrong_file_is_one_line_with_its_place(tmp_path: Path, yaml: str, reason: str) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text(yaml)
    (found,) = build_request(GivenRun(config=path)).wrong
    assert reason in found


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.mkdir, "Is a directory"),
        (lambda path: path.write_bytes(b"\xff"), "UTF-8"),
        (os.mkfifo, "it is a pipe or a device; name a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a pipe or a device"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, make: Any, reason: str) -> None:
    path = tmp_path / "bench.yaml"
    make(path)
    with pytest.raises(UsageError, match=reason):
        load_yaml(path)


def test_what_the_shell_has_opened_is_read_once() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        stream.write("steps: 3\nrounds: 0\n")
    (found,) = build_request(GivenRun(config=Path(f"/dev/fd/{read}"))).wrong
    assert found.startswith(f"/dev/fd/{read}: rounds: 0 is neither a number")
    os.close(read)


def test_the_line_of_a_key_is_found(tmp_path: Path) -> None:
    path = tmp_path / "bench.yaml"
    path.write_text("# note\nbatch:\n  # note\n  size: 4\nsteps: 3\n")
    found = {key: find_line(path, key) for key in ("batch", "batch.size", "steps", "batch.sise", "steps.size", "x")}
    assert found == {"batch": 2, "batch.size": 4, "steps": 5, "batch.sise": None, "steps.size": None, "x": None}


def test_every_workload_key_can_be_set_to_its_default() -> None:
    dumped = Workload().model_dump(mode="json")
    for key in workload_keys():
        value: Any = dumped
        for part in key.split("."):
            value = value[part]
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        assert build_workload(parse_settings([f"{key}={text}"])) == Workload()
