"""Placements of the user's own, in files."""

from pathlib import Path

import pytest

from placebench.errors import UsageError
from placebench.spec.placement import Overlap, Placement, Role
from placebench.spec.words import parse_placement


def pools(placement: Placement) -> dict[str, tuple[int, ...]]:
    return {pool.name: pool.counts for pool in placement.pools}


APART = """
name: ref apart
pools: {actor_pool: [2, 2], ref_pool: [1, 0], critic_pool: [0, 1]}
roles: {actor: actor_pool, rollout: actor_pool, ref: ref_pool, critic: critic_pool}
overlap: updates
"""


def test_a_file_gives_any_pools(tmp_path: Path) -> None:
    path = tmp_path / "apart.yaml"
    path.write_text(APART)
    placement = parse_placement(str(path), [4, 4])
    assert placement.name == "ref apart"
    assert pools(placement) == {"actor_pool": (2, 2), "ref_pool": (1, 0), "critic_pool": (0, 1)}
    assert placement.pool_of(Role.REF).name == "ref_pool"
    assert placement.pool_of(Role.REWARD).name == "critic_pool"
    assert placement.overlap is Overlap.UPDATES
    path.write_text(APART.replace("name: ref apart\n", ""))
    assert parse_placement(str(path), [4, 4]).name == "apart"
    changed = parse_placement(f"{path}/overlap=none", [4, 4])
    assert (changed.name, changed.overlap) == ("apart/overlap=none", Overlap.NONE)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("overlap: updates", "overlap: some", "overlap: 'some' is not one of none, updates, all"),
        ("overlap: updates", "overlaps: all", "unknown key 'overlaps'"),
        ("overlap: updates", "staleness: true", "staleness: True is not a number of updates, 0 or more"),
        ("overlap: updates", "inflight_updates: 1", "inflight_updates: 1 is not true or false"),
        ("overlap: updates", "tensor_parallel: 0", "tensor_parallel: 0 is not a number of devices, 1 to 2147483647"),
        ("overlap: updates", "scaling: [weak]", "scaling: ['weak'] is not strong or weak"),
        ("overlap: updates", "scaling: weak", "scaling: is for a placement of one pool"),
        ("name: ref apart", "name: [1]", "name: [1] must be a short text"),
        ("name: ref apart", "name: ''", "name: '' must be a short text"),
        ("name: ref apart", "name: ' '", "name: ' ' must be a short text"),
        ("name: ref apart", "name: 'ref '", "not ending with a space"),
        ("name: ref apart", "name: ..", "name: '..' must be a short text"),
        ("name: ref apart", "name: /", "name: '/' must be a short text"),
        ("name: ref apart", "name: -x", "beginning with a letter or digit"),
        ("name: ref apart", f"name: {'x' * 61}", "must be a short text"),
        ("name: ref apart", 'name: "a\\tb"', r"name: 'a\tb' must be a short text"),
        ("ref: ref_pool", "ref: pool", "roles.ref: there is no pool 'pool'"),
        ("ref: ref_pool", "referee: ref_pool", "roles: unknown role 'referee'"),
        ("ref: ref_pool, ", "", "roles: ref has no pool"),
        (", critic: critic_pool", "", "roles: critic, reward have no pool"),
        ("ref: ref_pool", "ref: actor_pool", "pools.ref_pool: no role lives there"),
        ("[2, 2]", "[4, 4]", "the pools need 5 devices on node 0 (actor_pool 4, ref_pool 1), there are 4"),
        ("[2, 2]", "[2]", "pools.actor_pool: [2] must be a list with one device count per node, and here is 2 nodes"),
        ("[2, 2]", "[0, 0]", "pools.actor_pool: [0, 0] must be"),
        ("[2, 2]", "[true, 1]", "pools.actor_pool: [True, 1] must be"),
        ("[2, 2]", "[-1, 3]", "pools.actor_pool: [-1, 3] must be"),
        ("pools: {actor_pool: [2, 2], ref_pool: [1, 0], critic_pool: [0, 1]}", "pools: []", "pools: must be a mapping"),
        ("{actor_pool: [2, 2]", "{'': [2, 2]", "pools: '' must be a short text"),
        ("{actor_pool: [2, 2]", "{null: [2, 2]", "pools: None must be a short text"),
        ("{actor_pool: [2, 2]", "{0: [2, 2]", "pools: 0 must be a short text"),
        ("{actor_pool: [2, 2]", '{"a\\nb": [2, 2]', r"pools: 'a\nb' must be a short text"),
        ("{actor_pool: [2, 2]", '{"a\\nb": x, actor_pool: [2, 2]', r"pools: 'a\nb' must be a short text"),
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
    assert all(str(path) in line for line in str(caught.value).splitlines())


def test_without_a_critic_a_file_names_none(tmp_path: Path) -> None:
    path = tmp_path / "judges.yaml"
    path.write_text("pools: {a: [2], b: [1], c: [1]}\nroles: {actor: a, rollout: a, ref: b, reward: c}\n")
    assert parse_placement(str(path), [4], has_critic=False).roles_in("c") == (Role.REWARD,)
    path.write_text("pools: {a: [2], b: [2]}\nroles: {actor: a, rollout: a, ref: b}\n")
    assert parse_placement(str(path), [4], has_critic=False).roles_in("b") == (Role.REF, Role.CRITIC, Role.REWARD)
    with pytest.raises(UsageError, match="roles: critic, reward have no pool"):
        parse_placement(str(path), [4])
    path.write_text("pools: {a: [2], b: [2]}\nroles: {actor: a, rollout: a, ref: a, critic: b}\n")
    with pytest.raises(UsageError) as caught:
        parse_placement(str(path), [4], has_critic=False)
    assert str(caught.value) == f"{path}: roles.critic: the algorithm trains no critic; leave it out"


def test_a_file_tells_all_that_is_wrong_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("pools: {a: [9], b: [1]}\nroles: {actor: a, rollout: c}\noverlap: much\nname: []\n")
    with pytest.raises(UsageError) as caught:
        parse_placement(str(path), [4])
    assert [line.removeprefix(f"{path}: ").split(":")[0] for line in str(caught.value).splitlines()] == [
        "the pools need 10 devices on node 0 (a 9, b 1), there are 4",
        "name",
        "roles.rollout",
        "roles",
        "overlap",
    ]
