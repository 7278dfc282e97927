import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from placed import devices_of

from placebench.errors import Reasons, UsageError
from placebench.record.parts import PlacementRecord
from placebench.spec.bound import bind
from placebench.spec.legible import shown
from placebench.spec.placement import Overlap, Placement, Role, Scaling
from placebench.spec.placement_files import load_placement, placement_text
from placebench.spec.presets import LEARNERS, SPLIT, SPLIT_NODES, STANDARD
from placebench.spec.words import parse_placement, parse_placements, split_words, word_of

counts = st.integers(1, 16)
nodes = st.lists(counts, min_size=1, max_size=4)


def split_placement(nodes: list[int], actor: int, critic: int) -> Placement:
    return parse_placement(f"split:{actor}+{critic}", nodes)


def pools(placement: Placement) -> dict[str, tuple[int, ...]]:
    return {pool.name: pool.counts for pool in placement.pools}


@given(nodes)
def test_standard_is_one_pool_of_all_devices(nodes: list[int]) -> None:
    placement = parse_placement("standard", nodes)
    assert pools(placement) == {"global_pool": tuple(nodes)}
    assert placement.roles_in("global_pool") == tuple(Role)
    assert placement.size == sum(nodes)


@given(nodes.filter(lambda nodes: sum(nodes) > 1))
def test_split_halves_and_gives_the_actor_the_odd_one(nodes: list[int]) -> None:
    actor, critic = parse_placement("split", nodes).pools
    assert actor.size + critic.size == sum(nodes)
    assert actor.size - critic.size == sum(nodes) % 2


@given(nodes, counts, counts)
def test_split_takes_its_counts_from_the_first_nodes_on(nodes: list[int], actor: int, critic: int) -> None:
    if actor + critic > sum(nodes):
        needed = re.escape(f"needs {actor + critic} devices (actor_pool {actor}, critic_pool {critic})")
        with pytest.raises(UsageError, match=needed):
            split_placement(nodes, actor, critic)
        return
    placement = split_placement(nodes, actor, critic)
    assert [pool.size for pool in placement.pools] == [actor, critic]
    used = [sum(pool.counts[node] for pool in placement.pools) for node in range(len(nodes))]
    assert all(use <= have for use, have in zip(used, nodes, strict=True))
    first_free = next((node for node, use in enumerate(used) if use < nodes[node]), len(nodes))
    assert not any(used[first_free + 1 :])


def test_split_puts_the_critic_and_the_reward_apart() -> None:
    placement = parse_placement("split", [2])
    assert placement.roles_in("actor_pool") == (Role.ACTOR, Role.ROLLOUT, Role.REF)
    assert placement.roles_in("critic_pool") == (Role.CRITIC, Role.REWARD)
    assert placement.pool_of(Role.REF).name == "actor_pool"
    assert not placement.has_engines


@pytest.mark.parametrize(
    ("word", "nodes", "expected"),
    [
        ("split", [3], {"actor_pool": (2,), "critic_pool": (1,)}),
        ("split@nodes", [4, 4], {"actor_pool": (4, 0), "critic_pool": (0, 4)}),
        ("split@nodes", [4, 2, 8], {"actor_pool": (4, 2, 0), "critic_pool": (0, 0, 8)}),
        ("learners:2+engines:2", [4], {"learners": (2,), "engines": (2,)}),
        ("learners:2,1+engines:5", [4, 4], {"learners": (2, 1), "engines": (2, 3)}),
        ("learners:1+engines:2", [4, 4], {"learners": (1, 0), "engines": (2, 0)}),
        ("learners:3+engines:2xtp2", [4, 4], {"learners": (3, 0), "engines": (0, 4)}),
        ("learners:1,1+engines:2xtp3", [4, 4], {"learners": (1, 1), "engines": (3, 3)}),
        ("learners:4,4,4+engines:3xtp4", [8, 8, 8], {"learners": (4, 4, 4), "engines": (4, 4, 4)}),
        ("ddp:3", [2, 2], {"replicas": (2, 1)}),
    ],
)
def test_pools_by_node(word: str, nodes: list[int], expected: dict[str, tuple[int, ...]]) -> None:
    assert pools(parse_placement(word, nodes)) == expected


def test_engines_generate_and_learners_do_the_rest() -> None:
    placement = parse_placement("learners:2+engines:1xtp2/staleness=2/inflight_updates=true", [4])
    assert placement.roles_in("engines") == (Role.ROLLOUT,)
    assert placement.roles_in("learners") == (Role.ACTOR, Role.REF, Role.CRITIC, Role.REWARD)
    assert placement.has_engines
    assert (placement.tensor_parallel, placement.staleness, placement.inflight_updates) == (2, 2, True)
    assert placement.scaling is None


def test_replicas_say_how_their_batch_scales() -> None:
    assert parse_placement("ddp:2", [2]).scaling is Scaling.STRONG
    weak = parse_placement("ddp:2/scaling=weak", [2])
    assert (weak.name, weak.scaling, weak.tensor_parallel) == ("ddp:2/scaling=weak", Scaling.WEAK, 1)


@given(st.sampled_from(["standard", "split", "split:1+1"]), st.sampled_from(Overlap))
def test_overlap_follows_the_word(word: str, overlap: Overlap) -> None:
    placement = parse_placement(f"{word}/overlap={overlap}", [2])
    assert placement.overlap is overlap
    assert placement.name == f"{word}/overlap={overlap}"
    assert parse_placement(word, [2]).overlap is Overlap.ALL


def test_a_bare_count_goes_on_with_the_word_before() -> None:
    assert split_words("standard, learners:2, 1+engines:5/staleness=1,split:3+1,2pools.yaml,learners:1,2") == (
        "standard",
        "learners:2, 1+engines:5/staleness=1",
        "split:3+1",
        "2pools.yaml",
        "learners:1,2",
    )
    assert [placement.name for placement in parse_placements("learners:2,1+engines:5,standard", [4, 4])] == [
        "learners:2,1+engines:5",
        "standard",
    ]


words = st.one_of(
    st.sampled_from(["standard", "split", "split@nodes"]),
    st.builds("split:{}+{}".format, counts, counts),
    st.builds("ddp:{}".format, counts),
    st.builds(
        lambda learners, engines, size: f"learners:{','.join(map(str, learners))}+engines:{engines}xtp{size}",
        st.lists(counts, min_size=1, max_size=3),
        counts,
        st.sampled_from([1, 2, 4]),
    ),
)


@given(words, nodes, st.sampled_from(Overlap), st.integers(0, 9), st.booleans(), st.booleans())
def test_a_word_a_file_and_a_record_say_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    word: str,
    nodes: list[int],
    overlap: Overlap,
    staleness: int,
    inflight: bool,
    has_critic: bool,
) -> None:
    settings = f"/overlap={overlap}/staleness={staleness}/inflight_updates={str(inflight).lower()}"
    reasons = Reasons()
    placement = reasons.attempt(lambda: parse_placement(word + settings, nodes, has_critic=has_critic))
    if placement is None:
        with pytest.raises(UsageError, match=re.escape(shown(word + settings))):
            reasons.raise_any()
        return
    devices = devices_of(nodes)
    record = PlacementRecord.of(bind(placement, devices))
    assert PlacementRecord.model_validate_json(record.model_dump_json()).bound_to(devices).placement == placement
    set_values = record.model_dump(mode="json", exclude_none=True)
    content: dict[str, Any] = {**set_values, "pools": {name: list(each) for name, each in pools(placement).items()}}
    if not has_critic:
        content["roles"] = {role: pool for role, pool in content["roles"].items() if role != Role.CRITIC}
    path = tmp_path_factory.getbasetemp() / "same.yaml"
    path.write_text(yaml.safe_dump({**content, "name": "same"}, sort_keys=False))
    read = parse_placement(str(path), nodes, has_critic=has_critic)
    assert read == replace(placement, name="same")


fragments = [
    "standard",
    "split",
    "learners:",
    "engines:",
    "ddp:",
    "xtp",
    "@nodes",
    ":",
    "+",
    "/",
    "overlap=",
    "staleness=",
    "none",
    "all",
    ",",
    "1",
    "2",
    "0",
    "x",
    " ",
    ".yaml",
    "\0",
    "²",
]


@given(st.lists(st.sampled_from(fragments), max_size=10).map("".join), nodes)
def test_any_text_is_a_list_of_placements_or_a_line_about_each_word(text: str, nodes: list[int]) -> None:
    message = ""
    placements: tuple[Placement, ...] = ()
    try:
        placements = parse_placements(text, nodes)
    except UsageError as error:
        message = str(error)
    assert bool(message) != bool(placements)
    assert tuple(placement.name for placement in placements) in ((), split_words(text))
    assert all(placement.size <= sum(nodes) for placement in placements)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty entry"),
        ("standard,,split", "empty entry"),
        ("standard,standard", "given twice"),
        ("spilt", "unknown placement 'spilt': use standard, split[:A+B], split@nodes, learners:"),
        ("Standard", "unknown placement"),
        ("3+1", "unknown placement"),
        ("standard:2", "is not of the form standard, without counts"),
        ("split:3", "is not of the form split[:A+B], such as split or split:3+1"),
        ("split:1+1+1", "is not of the form split[:A+B]"),
        ("split:0+2", "counts are whole numbers above 0"),
        ("split:", "is not of the form split[:A+B]"),
        ("split:1+", "is not of the form split[:A+B]"),
        ("split:²+1", "is not of the form split[:A+B]"),
        (f"split:{'9' * 5000}+1", "is not of the form split[:A+B]"),
        ("split@node", "is not of the form split"),
        ("split@nodes", "needs at least 2 nodes, there is 1: write split"),
        ("split:3+2", "needs 5 devices (actor_pool 3, critic_pool 2), there are 4: lower the counts"),
        ("ddp:5", "needs 5 devices (replicas 5), there are 4"),
        ("ddp", "is not of the form ddp:N, such as ddp:2"),
        ("learners:2", "is not of the form learners:L[,L…]+engines:E[xtpT]"),
        ("learners:2+engines:0", "is not of the form learners:"),
        ("engines:2", "unknown placement 'engines:2'"),
        ("learners:5+engines:1", "needs 6 devices (learners 5, engines 1), there are 4"),
        ("learners:1,1+engines:2", "has learners on 2 nodes, there is 1 node: give one count a node"),
        ("learners:2+engines:3", "needs 5 devices (learners 2, engines 3), there are 4"),
        ("learners:1+engines:1xtp8", "an engine of 8 devices must lie on one node, and the largest has 4 devices"),
        ("split/overlap=some", "unknown setting 'overlap=some'"),
        ("split/stale=1", "unknown setting 'stale=1'; use overlap=none|updates|all, staleness=K"),
        ("split/staleness=-1", "unknown setting 'staleness=-1'"),
        ("split/inflight_updates=yes", "unknown setting 'inflight_updates=yes'"),
        ("split/scaling=weak", "scaling is a setting of ddp:N"),
        ("split/overlap=all/overlap=none", "overlap is set twice; give it once"),
        ("nowhere.yaml", "nowhere.yaml: cannot read it: No such file"),
        ("mine.yaml.old", "ddp:N, or a file whose name ends in .yaml"),
    ],
)
def test_a_wrong_word_says_what_would_be_right(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_placements(text, [4])
    assert reason in str(caught.value)


def test_one_node_is_not_asked_for_counts_by_node() -> None:
    with pytest.raises(UsageError) as caught:
        parse_placement("learners:5+engines:1", [4])
    assert "node" not in str(caught.value)


def test_engines_need_room_on_single_nodes() -> None:
    with pytest.raises(UsageError) as caught:
        parse_placement("learners:3,3+engines:1xtp2", [4, 4])
    assert str(caught.value) == (
        "placement 'learners:3,3+engines:1xtp2': there is no room for 1 engine of 2 devices on what the learners leave,"
        " 1 on node 0, 1 on node 1: 0 would fit; an engine lies whole on one node"
    )


def test_what_is_wrong_with_every_word_is_said_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse_placements("split:3+3,spilt,learners:1,1,9+engines:3,standard", [4, 4])
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "unknown placement 'spilt'",
        "placement 'learners",
        "placement 'learners",
    ]


def test_what_is_wrong_in_one_word_is_said_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse_placement("split:3+3/overlap=much/stale=1", [4])
    assert [re.findall("'overlap=much'|'stale=1'|needs 6", line) for line in str(caught.value).splitlines()] == [
        ["'overlap=much'"],
        ["'stale=1'"],
        ["needs 6"],
    ]


@pytest.mark.parametrize("word", ["/etc/x", "runs/mine.json", "./spilt/overlap=much"])
def test_the_folders_of_a_path_are_not_taken_for_settings(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_placement(word, [4])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"unknown placement {word!r}: ")


def test_scaling_is_for_replicas_alone(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("pools: {a: [2], b: [2]}\nroles: {actor: a, rollout: a, ref: a, critic: b}\n")
    with pytest.raises(UsageError, match="scaling is a setting of ddp:N"):
        parse_placement(f"{path}/scaling=weak", [4])
    path.write_text("pools: {a: [2]}\nroles: {actor: a, rollout: a, ref: a, critic: a}\nscaling: strong\n")
    assert parse_placement(f"{path}/scaling=weak", [4]).scaling is Scaling.WEAK


def test_split_needs_two_devices() -> None:
    with pytest.raises(UsageError, match="at least 2 devices, there is 1: raise --devices"):
        parse_placement("split", [1])


@given(st.sampled_from(["split", "split@nodes", "split:3+1/overlap=none"]), st.integers(2, 8))
def test_without_a_critic_split_puts_the_judges_apart(word: str, each: int) -> None:
    placement = parse_placement(word, [each, each], has_critic=False)
    assert placement.roles_in("actor_pool") == (Role.ACTOR, Role.ROLLOUT)
    assert {Role.REF, Role.REWARD} < set(placement.roles_in("ref_pool"))
    with_critic = parse_placement(word, [each, each])
    assert [pool.counts for pool in placement.pools] == [pool.counts for pool in with_critic.pools]
    assert parse_placement("standard", [each], has_critic=False) == parse_placement("standard", [each])


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
    st.integers(0, 40),
    st.sampled_from(["", "/overlap=none", "/overlap=updates", "/staleness=2"]),
    st.booleans(),
)
def test_a_placement_is_said_by_a_word_that_means_it(
    nodes: list[int], choice: int, settings: str, has_critic: bool
) -> None:
    heads = [word.split("/")[0] for preset in (STANDARD, SPLIT, SPLIT_NODES, LEARNERS) for word in preset.usual(nodes)]
    word = heads[choice % len(heads)] + settings
    read = Reasons().attempt(lambda: parse_placement(word, nodes, has_critic=has_critic))
    if read is None:
        return
    said = word_of(read, nodes, has_critic=has_critic)
    assert said is not None
    again = parse_placement(said, nodes, has_critic=has_critic)
    assert (again.roles, again.overlap, again.staleness) == (read.roles, read.overlap, read.staleness)
    assert [pool.counts for pool in again.pools] == [pool.counts for pool in read.pools]
    # With a device less of one pool, no word that takes all of them says it.
    fewer = replace(read, pools=(replace(read.pools[0], counts=(*read.pools[0].counts[:-1], 0)), *read.pools[1:]))
    other = word_of(fewer, nodes, has_critic=has_critic)
    assert other != said or fewer == read


def test_no_word_says_an_engine_of_another_size_or_a_pool_for_each_node_of_a_large_cluster() -> None:
    standard = parse_placement("standard", [8])
    assert word_of(standard, [8]) == "standard"
    assert word_of(replace(standard, tensor_parallel=2), [8]) is None
    assert word_of(replace(standard, tensor_parallel=2), [8], usual_engine=2) == "standard"
    many = parse_placement("learners:8,8+engines:8xtp2", [8, 8, 16])
    assert word_of(many, [8, 8, 16]) == "learners:8,8+engines:8xtp2"
    nodes = [8] * 64
    assert word_of(parse_placement(f"learners:{','.join(['8'] * 48)}+engines:128", nodes), nodes) is None


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=3),
    st.sampled_from(["standard", "split", "learners:1+engines:1", "standard/staleness=2", "split/overlap=none"]),
    st.booleans(),
)
def test_a_placement_is_written_as_a_file_that_means_it(nodes: list[int], word: str, has_critic: bool) -> None:
    read = Reasons().attempt(lambda: parse_placement(word, nodes, has_critic=has_critic))
    if read is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mine.yaml")
        path.write_text(placement_text(read, has_critic=has_critic))
        again = load_placement(path, nodes, has_critic=has_critic)
    assert replace(again, roles={}, name=read.name) == replace(read, roles={})
    judges = [role for role in Role if has_critic or role is not Role.CRITIC]
    assert all(again.roles[role] == read.roles[role] for role in judges)
