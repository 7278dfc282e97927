import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from placebench.errors import UsageError
from placebench.plan import checks, workload_checks
from placebench.plan.plan import Plan, default_name, make_plan
from placebench.plan.request import RunRequest
from placebench.plan.views import show_plan
from placebench.record.folder import RunFolder
from placebench.record.parts import PlacementRecord
from placebench.spec.bound import bind
from placebench.spec.devices import Device, devices_per_node
from placebench.spec.words import parse_placement
from placebench.spec.workload import Workload
from placebench.tasks import reward_trial


def device(node: int, index: int, memory: int = 1 << 34) -> Device:
    return Device(f"cpu:{index}", "cpu", index, f"node{node}", "a processor", memory, (index,))


def hosts(*counts: int) -> tuple[Device, ...]:
    return tuple(device(node, index) for node, count in enumerate(counts) for index in range(count))


def request(folder: Path, **changes: Any) -> RunRequest:
    return RunRequest(**{"out": folder / "runs", "devices": "cpu:2", **changes})


def reasons(wanted: RunRequest) -> list[str]:
    with pytest.raises(UsageError) as caught:
        make_plan(wanted)
    return str(caught.value).splitlines()


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda counts: sum(counts) > 1),
    st.sampled_from(["standard", "split", "split:1+1"]),
)
def test_binding_uses_every_device_at_most_once_and_on_its_node(counts: list[int], word: str) -> None:
    devices = hosts(*counts)
    placement = parse_placement(word, devices_per_node(devices))
    bound = bind(placement, devices)
    used = [one for members in bound.members.values() for one in members]
    assert len(used) == len(set(used)) == placement.size
    for pool in placement.pools:
        nodes = [one.node for one in bound.members[pool.name]]
        assert [nodes.count(f"node{node}") for node in range(len(counts))] == list(pool.counts)


def test_a_plan_says_what_runs_where_and_when(tmp_path: Path) -> None:
    plan = make_plan(request(tmp_path, placements="split,standard", rounds=3))
    assert plan.name == "split-standard"
    assert plan.folder.path.parent == tmp_path / "runs"
    assert plan.order == (("split", "standard"), ("standard", "split"), ("split", "standard"))
    assert plan.total == len(plan.launches) == 6
    assert PlacementRecord.of(plan.placements[0]).model_dump(mode="json") == {
        "name": "split",
        "pools": {"actor_pool": ["cpu:0"], "critic_pool": ["cpu:1"]},
        "roles": {
            "actor": "actor_pool",
            "rollout": "actor_pool",
            "ref": "actor_pool",
            "critic": "critic_pool",
            "reward": "critic_pool",
        },
        "overlap": "all",
        "staleness": 0,
        "inflight_updates": False,
        "tensor_parallel": None,
        "scaling": None,
    }
    assert not (tmp_path / "runs").exists(), "a plan makes nothing"


@given(rounds=st.integers(1, 6), done=st.sets(st.tuples(st.integers(1, 6), st.sampled_from(["standard", "split"]))))
def test_launches_to_come_are_those_not_done(rounds: int, done: set[tuple[int, str]]) -> None:
    devices = hosts(2)
    placements = tuple(bind(parse_placement(word, [2]), devices) for word in ("standard", "split"))
    plan = Plan("x", RunFolder(Path("x")), placements, Workload(), devices, rounds, 1.0, done=frozenset(done))
    flat = [(number, name) for number, names in enumerate(plan.order, 1) for name in names]
    assert [(launch.round, launch.placement.name) for launch in plan.launches] == [
        one for one in flat if one not in done
    ]


def test_every_reason_is_given_at_once(tmp_path: Path) -> None:
    wrong = {
        "model": "gpt9",
        "rollout": {"backend": "torch"},
        "data": {"reward": "luck", "source": "prompts.txt"},
        "batch": {"size": 32, "mini_batch_size": 32},
    }
    found = reasons(request(tmp_path, placements="split:2+1", devices="cpu:2", workload=wrong, name="a/b"))
    assert [line.split(":")[0] for line in found] == [
        "--name 'a/b'",
        "unknown model 'gpt9'",
        "data.source 'prompts.txt'",
        "data.reward 'luck'",
        "placement 'split",
    ]


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ({"model": "owner/"}, "unknown model 'owner/'"),
        ({"critic_model": "nowhere"}, "unknown model 'nowhere'"),
        (
            {"model": "qwen2.5-0.5b", "critic_model": "tiny", "rollout": {"backend": "torch"}},
            "critic_model tiny: its vocabulary has 64 words, fewer than the 151936 of qwen2.5-0.5b; name one of the",
        ),
        ({"data": {"source": "no.jsonl"}}, "no.jsonl: cannot read it: No such file"),
        (
            {"data": {"reward": "nomodule_xyz:score"}},
            "cannot import it: ModuleNotFoundError: No module named",
        ),
        ({"data": {"reward": "os:nope"}}, "cannot import it: AttributeError: module 'os' has no attribute 'nope'"),
        ({"data": {"reward": "os:sep"}}, "sep is not a function"),
        ({"data": {"reward": "os:"}}, "use exact_match, prefix_match, last_number, code_tests, or module:function"),
        ({"data": {"operand_max": 10**9}}, "has 22 tokens and batch.max_prompt_length is 16; raise it"),
        ({"batch": {"max_prompt_length": 40_000, "micro_batch_tokens": 50_000}}, "more than the 32768 that tiny takes"),
        (
            {"batch": {"size": 33, "mini_batch_size": 33}},
            "'standard': batch.size 33 and batch.mini_batch_size 33 cannot be shared equally by the 2 devices of"
            " global_pool; try --batch-size 34 --mini-batch-size 34",
        ),
        (
            {"batch": {"size": 128, "mini_batch_size": 1}},
            "batch.mini_batch_size 1 cannot be shared equally by the 2 devices of global_pool; try --batch-size 128",
        ),
        ({"rollout": {"tensor_parallel_size": 2}}, "rollout: tensor_parallel_size 2 needs backend vllm"),
        ({"rollout": {"memory_share": 0.5}}, "rollout: memory_share 0.5 needs backend vllm: with torch all sequences"),
        (
            {"rollout": {"response_length_median": 100}},
            "response_length_median 100 needs response_lengths lognormal: with longest no length is drawn",
        ),
        ({"rollout": {"response_length_sigma": 0.5}}, "response_length_sigma 0.5 needs response_lengths lognormal"),
        ({"rollout": {"memory_share": 0}}, "rollout.memory_share: must be greater than 0"),
        ({"rollout": {"memory_share": 1.5}}, "rollout.memory_share: must be less than or equal to 1"),
        ({"batch": {"size": 0}}, "batch.size: must be greater than 0"),
        ({"batch": {"size": 30, "mini_batch_size": 30, "group_size": 4}}, "size 30 is not a multiple of group_size 4"),
        ({"algorithm": {"name": "dpo"}}, "algorithm.name: must be 'ppo' or 'grpo' (got 'dpo')"),
        ({"algorithm": {"name": "grpo"}, "batch": {"group_size": 1}}, "batch.group_size must be at least 2: grpo"),
        ({"algorithm": {"name": "grpo"}, "critic_model": "tiny"}, "critic_model: grpo trains no critic"),
        ({"steps": 2, "warmup_steps": 2}, "warmup_steps 2 leaves none of 2 steps to measure"),
    ],
)
def test_an_impossible_workload_is_refused(tmp_path: Path, workload: dict[str, Any], reason: str) -> None:
    assert any(reason in line for line in reasons(request(tmp_path, workload=workload)))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemError('no')", "'scores:score' (scores.py, line 1): cannot import it: SystemError: no"),
        ("def f(:", "cannot import it: SyntaxError: invalid syntax"),
        ("import os; os._exit(3)", "data.reward 'scores:score': importing scores ends the process (3); remove what"),
        ("import os; os._exit(0)", "data.reward 'scores:score': importing scores ends the process (0); remove what"),
        ("import sys; sys.exit('bye')", "(scores.py, line 1): cannot import it: SystemExit: bye"),
        ("raise ValueError('two\\nlines')", "(scores.py, line 1): cannot import it: ValueError: two lines"),
        ("import os; os.write(2, b'\\xff\\n'); os._exit(3)", "importing scores ends the process (3)"),
        ("import time; time.sleep(60)", "importing scores takes more than 1 s"),
    ],
)
def test_a_reward_of_the_user_that_cannot_be_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    (tmp_path / "scores.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    if "sleep" in source:
        monkeypatch.setattr(reward_trial, "IMPORT_S", 1)
    (found,) = reasons(request(tmp_path, workload={"data": {"reward": "scores:score"}}))
    assert reason in found


def test_words_that_nobody_can_read_are_told_without_devices_too(tmp_path: Path) -> None:
    wanted = request(
        tmp_path, devices="gpu:99", placements="spilt,,split/overlap=x,ddp:4", workload={"model": "nope"}, dry_run=True
    )
    found = reasons(wanted)
    for reason in (
        "unknown model 'nope'",
        "unknown placement 'spilt'",
        "has an empty entry",
        "placement 'split/overlap=x': unknown setting 'overlap=x'",
    ):
        assert any(reason in line for line in found)
    assert len(found) == 5  # the last one says that the GPUs are not there


def test_a_plan_for_other_hosts_needs_nothing_installed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks, workload_checks):
        monkeypatch.setattr(module, "find_spec", lambda _: None)
    there = {"devices": "gpu:4x2", "placements": "standard", "workload": {"model": "qwen2.5-1.5b"}, "dry_run": True}
    assert make_plan(request(tmp_path, **there)).workload.rollout.backend == "vllm"


def test_an_unknown_model_is_not_asked_for_vllm_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(workload_checks, "find_spec", lambda name: None if name == "vllm" else there(name))
    (found,) = reasons(request(tmp_path, workload={"model": "gpt9"}))
    assert found.startswith("unknown model 'gpt9'")


def test_what_is_not_installed_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    missing = {"torch", "transformers", "vllm"}
    for module in (checks, workload_checks):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in missing else there(name))
    found = reasons(request(tmp_path, workload={"rollout": {"backend": "vllm"}}))
    assert found == [
        "placebench run needs torch, transformers: pip install 'placebench[run]'",
        "rollout.backend vllm needs vllm: pip install 'placebench[vllm]'",
    ]


def test_the_folder_must_be_new_and_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file; name a folder" in reasons(request(tmp_path, out=tmp_path / "file"))[0]
    monkeypatch.setattr("time.strftime", lambda *_: "20260301T100000Z")
    (tmp_path / "runs/20260301T100000Z-standard-split").mkdir(parents=True)
    assert "is there already: choose another --name" in reasons(request(tmp_path))[0]
    assert make_plan(request(tmp_path, name="other")).name == "other"
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "no permission to write in" in reasons(request(tmp_path, name="other"))[0]


def test_a_full_disk_is_found_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LEAST_FREE_BYTES", 1 << 60)
    found = reasons(request(tmp_path))
    assert f"no space left in {tmp_path}: " in found[0]
    assert found[0].endswith("free some or choose another --out")


def test_engines_that_share_their_pool_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "apart.yaml"
    path.write_text(
        "pools: {a: [1], b: [1]}\nroles: {actor: a, ref: a, critic: a, reward: b, rollout: b}\n"
        "staleness: 1\noverlap: none\n",
        encoding="utf-8",
    )
    assert reasons(request(tmp_path, placements=str(path))) == [
        "placement 'apart': engines in b do nothing but generate; put reward into another pool",
        "placement 'apart': staleness 1 lets engines generate beside everything else, and overlap=none forbids that;"
        " use overlap=all, or staleness=0",
    ]


def test_a_file_without_a_critic_is_right_under_grpo_even_where_the_workload_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "judges.yaml"
    path.write_text("pools: {a: [2]}\nroles: {actor: a, rollout: a, ref: a}\n", encoding="utf-8")
    wrong = {"algorithm": {"name": "grpo"}, "steps": 0}
    (found,) = reasons(request(tmp_path, placements=str(path), workload=wrong))
    assert found.startswith("workload: steps: ")


def test_engines_split_no_group_of_responses(tmp_path: Path) -> None:
    workload = {
        "algorithm": {"name": "grpo"},
        "batch": {"size": 64, "mini_batch_size": 32, "group_size": 32, "micro_batch_tokens": 4096},
    }
    asked = request(tmp_path, placements="learners:2+engines:4", devices="cpu:6", workload=workload)
    assert reasons(asked) == [
        "placement 'learners:2+engines:4': 2 groups of batch.group_size 32 cannot be shared by 4 engines;"
        " try --batch-size 128 --mini-batch-size 32"
    ]


def test_names_that_share_a_folder_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "same.yaml"
    roles = "roles: {actor: a, ref: a, critic: a, reward: a, rollout: a}"
    path.write_text(f"name: split:1+1\npools: {{a: [2]}}\n{roles}\n".replace("split:1", "split-1"), encoding="utf-8")
    assert reasons(request(tmp_path, placements=f"split:1+1,{path}")) == [
        "placements 'split:1+1' and 'split-1+1' would share one folder: rename one of them"
    ]


def test_what_cannot_fit_on_the_host_is_refused_with_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placebench.host.devices.total_memory", lambda: 16 << 30)
    found = reasons(
        request(tmp_path, placements="standard", workload={"model": "llama-3.1-8b", "rollout": {"backend": "torch"}})
    )
    assert len(found) == 1
    assert "placement 'standard': each device of global_pool needs " in found[0]
    assert ", all together about " in found[0]
    assert "(activations" in found[0]
    assert "and there are 16.0 GiB" in found[0]
    assert "; no setting fits, " in found[0]
    assert found[0].endswith("are missing: use a smaller model or shorter sequences")
    monkeypatch.setattr("placebench.host.devices.total_memory", lambda: 1 << 30)
    (many,) = reasons(request(tmp_path, devices="cpu:8", placements="split"))
    assert many.endswith("are missing: use fewer devices, a smaller model or shorter sequences")


def test_an_engine_that_the_devices_cannot_share_is_refused(tmp_path: Path) -> None:
    rollout = {"rollout": {"backend": "vllm", "tensor_parallel_size": 2}}
    found = reasons(request(tmp_path, devices="cpu:3", placements="standard", workload=rollout))
    assert any("3 devices cannot be divided into engines of 2 devices" in line for line in found)
    eight = {"rollout": {"backend": "vllm", "tensor_parallel_size": 8}}
    assert any(
        "does not divide the 4 attention heads of tiny" in line for line in reasons(request(tmp_path, workload=eight))
    )


def test_more_gpus_than_there_are_is_one_line(tmp_path: Path) -> None:
    found = reasons(request(tmp_path, devices="gpu:4096"))
    assert len(found) == 1
    assert found[0].startswith("--devices gpu:4096: found ")


def test_placements_that_are_the_same_on_the_devices_are_told(tmp_path: Path) -> None:
    words = "standard,split,standard/overlap=none,split:1+1,split/overlap=updates,split/staleness=1,ddp:2"
    assert make_plan(request(tmp_path, devices="cpu:2", placements=words)).notes == (
        "standard and standard/overlap=none are the same on these devices: only chance makes them differ",
        "split and split:1+1 are the same on these devices: only chance makes them differ",
    )


def test_the_dry_run_shows_what_would_be_done(tmp_path: Path) -> None:
    batch = {"batch": {"size": 64, "mini_batch_size": 64}}
    plan = make_plan(request(tmp_path, devices="cpu:6", placements="split:2+2,split:4+2", rounds=2, workload=batch))
    console = Console(width=200, record=True, file=(tmp_path / "out").open("w"))
    show_plan(plan, console)
    text = console.export_text()
    console.file.close()
    for line in (
        "actor_pool: actor, rollout, ref on cpu:0–3",
        "critic_pool: critic, reward on cpu:4–5",
        "memory a device: at most about",
        "round 2   split:4+2, split:2+2",
        "for 4 launches (rough, from the number of operations)",
        *plan.notes,
        "  mini_batch_size: 64",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("devices", "source"),
    [
        ("gpu:4@141GiB", "(predicted from h200, taking them for NVIDIA H200)"),
        ("gpu:4@80GiB", "(predicted from h100, taking them for NVIDIA H100 80GB HBM3)"),
        ("gpu:4@100GiB", "(rough, from the number of operations)"),
    ],
)
def test_gpus_that_are_described_are_taken_for_those_with_as_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: str, source: str
) -> None:
    monkeypatch.setattr(workload_checks, "find_spec", lambda _: object())
    plan = make_plan(request(tmp_path, devices=devices, workload={"model": "qwen2.5-1.5b"}, dry_run=True))
    assert plan.expectation
    assert f"({plan.expectation.source})" == source
    assert {device.name for device in plan.devices} == {"GPU"}


def test_the_dry_run_shows_what_a_placement_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_checks, "find_spec", lambda _: object())
    words = "learners:2+engines:2/staleness=1/inflight_updates=true,ddp:4/scaling=weak"
    backend = {"rollout": {"backend": "vllm"}}
    plan = make_plan(request(tmp_path, devices="cpu:4", placements=words, workload=backend))
    console = Console(width=200, record=True, file=(tmp_path / "out").open("w"))
    show_plan(plan, console)
    text = console.export_text()
    console.file.close()
    learners, replicas = words.split(",")
    told = "log-probabilities from engines in every step"
    assert f"placement {learners}, overlap all, staleness 1, in-flight updates, {told}\n" in text
    assert f"placement {replicas}, overlap all, full replicas, weak scaling: 512 sequences per step\n" in text


@given(st.text(max_size=80))
@example("attach-jöb.py")
@example("latest")
def test_a_default_name_can_name_a_folder(words: str) -> None:
    name = default_name(words)
    assert 0 < len(name) <= 60
    assert name == Path(name).name
    assert not [*checks.wrong_name(name)]
