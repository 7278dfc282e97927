from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placebench.errors import UsageError
from placebench.placement import Overlap, Placement, Role, parse_placement, parse_placements

counts = st.integers(1, 16)
nodes = st.lists(counts, min_size=1, max_size=4)


def split_placement(nodes: list[int], actor: int, critic: int) -> Placement:
    return parse_placement(f"split:{actor}+{critic}", nodes)


@given(nodes)
def test_standard_is_one_pool_of_all_devices(nodes: list[int]) -> None:
    placement = parse_placement("standard", nodes)
    assert [(pool.name, pool.counts) for pool in placement.pools] == [("global_pool", tuple(nodes))]
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
        with pytest.raises(UsageError, match=f"needs {actor + critic} devices, there are {sum(nodes)}"):
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


@given(st.sampled_from(["standard", "split", "split:1+1"]), st.sampled_from(Overlap))
def test_overlap_follows_the_word(word: str, overlap: Overlap) -> None:
    placement = parse_placement(f"{word}/overlap={overlap}", [2])
    assert placement.overlap is overlap
    assert placement.name == f"{word}/overlap={overlap}"
    assert parse_placement(word, [2]).overlap is Overlap.ALL


fragments = [
    "standard",
    "split",
    ":",
    "+",
    "/",
    "overlap=",
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
def test_any_text_is_a_list_of_placements_or_one_line_about_it(text: str, nodes: list[int]) -> None:
    message = ""
    placements: tuple[Placement, ...] = ()
    try:
        placements = parse_placements(text, nodes)
    except UsageError as error:
        message = str(error)
    assert len(message.splitlines()) == (0 if placements else 1)
    assert [placement.name for placement in placements] in ([], [word.strip() for word in text.split(",")])
    assert all(placement.size <= sum(nodes) for placement in placements)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty entry"),
        ("standard,,split", "empty entry"),
        ("standard,standard", "given twice"),
        ("spilt", "unknown placement 'spilt': use standard, split"),
        ("Standard", "unknown placement"),
        ("standard:2", "takes no counts"),
        ("split:3", "split takes two counts"),
        ("split:1+1+1", "split takes two counts"),
        ("split:0+2", "not a list of device counts above 0"),
        ("split:", "not a list of device counts"),
        ("split:1+", "not a list of device counts"),
        ("split:²+1", "not a list of device counts"),
        (f"split:{'9' * 5000}+1", "not a list of device counts"),
        ("split:3+2", "needs 5 devices, there are 4"),
        ("split/overlap=some", "unknown setting 'overlap=some'"),
        ("split/staleness=1", "unknown setting 'staleness=1'"),
        ("split/overlap=all/overlap=none", "give it once"),
        ("nowhere.yaml", "nowhere.yaml: cannot read it: No such file"),
    ],
)
def test_a_wrong_word_says_what_would_be_right(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_placements(text, [4])
    assert reason in str(caught.value)


def test_split_needs_two_devices() -> None:
    with pytest.raises(UsageError, match="at least 2 devices, there is 1: try --devices cpu:2"):
        parse_placement("split", [1])


APART = """
name: ref apart
pools: {actor_pool: [2, 2], ref_pool: [1, 0], critic_pool: [0, 1]}
roles: {actor: actor_pool, rollout: actor_pool, ref: ref_pool, critic: critic_pool, reward: critic_pool}
overlap: updates
"""


def test_a_file_gives_any_pools(tmp_path: Path) -> None:
    path = tmp_path / "apart.yaml"
    path.write_text(APART)
    placement = parse_placement(str(path), [4, 4])
    assert placement.name == "ref apart"
    assert [(pool.name, pool.counts) for pool in placement.pools] == [
        ("actor_pool", (2, 2)),
        ("ref_pool", (1, 0)),
        ("critic_pool", (0, 1)),
    ]
    assert placement.pool_of(Role.REF).name == "ref_pool"
    assert placement.overlap is Overlap.UPDATES
    path.write_text(APART.replace("name: ref apart\n", ""))
    assert parse_placement(str(path), [4, 4]).name == "apart"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("overlap: updates", "overlap: some", "overlap: 'some' is not one of none, updates, all"),
        ("overlap: updates", "overlaps: all", "unknown key 'overlaps'"),
        ("name: ref apart", "name: [1]", "name: [1] must be a short text"),
        ("name: ref apart", "name: ''", "name: '' must be a short text"),
        ("ref: ref_pool", "ref: pool", "roles.ref: there is no pool 'pool'"),
        ("ref: ref_pool", "referee: ref_pool", "roles: unknown role 'referee'"),
        ("ref: ref_pool, ", "", "roles: ref has no pool"),
        ("ref: ref_pool", "ref: actor_pool", "pools.ref_pool: no role lives there"),
        ("[2, 2]", "[4, 4]", "the pools need 5 devices on node 0, there are 4"),
        ("[2, 2]", "[2]", "pools.actor_pool: [2] must be a list with one device count per node (2 here)"),
        ("[2, 2]", "[0, 0]", "pools.actor_pool: [0, 0] must be"),
        ("[2, 2]", "[true, 1]", "pools.actor_pool: [True, 1] must be"),
        ("[2, 2]", "[-1, 3]", "pools.actor_pool: [-1, 3] must be"),
        ("pools: {actor_pool: [2, 2], ref_pool: [1, 0], critic_pool: [0, 1]}", "pools: []", "pools: must be a mapping"),
        ("overlap: updates", "overlap: [", "line 6, column 1: "),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "apart.yaml"
    assert old in APART
    path.write_text(APART.replace(old, new))
    with pytest.raises(UsageError) as caught:
        parse_placement(str(path), [4, 4])
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
