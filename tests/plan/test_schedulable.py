"""What the plan accepts can be scheduled, and nothing else: against a search of every way to deal devices out.

The search knows no words: a layout is told to it as the counts that were put into the word.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from placebench.plan.catalogue import look_up
from placebench.ppo.batch import SequenceBatch
from placebench.ppo.generation import Generation
from placebench.ppo.step_data import StepData, StepState
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.stepgraph import step_graph
from placebench.spec.workload import Workload, placed_workload
from placebench.spec.workload_reading import build_workload
from placebench.tasks.data import open_prompts
from placebench.tasks.tokenizer import CharacterTokenizer

Counts = tuple[int, ...]
Layout = dict[str, Counts]

# Pools of up to 16 devices divide the batches, and the model's heads allow engines of 1, 2 and 4: the layout decides.
BATCH = {"size": 720_720, "mini_batch_size": 720_720}
WORKLOAD = build_workload({"batch": BATCH})
WORKLOAD_OF_ENGINES = build_workload({"batch": BATCH, "rollout": {"backend": "vllm"}})
nodes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
counts = st.integers(1, 7)


def hosts(nodes: Counts) -> tuple[Device, ...]:
    return tuple(
        Device(f"GPU-{node}-{index}", "gpu", index, f"host{node}", "GPU", 1 << 40)
        for node, count in enumerate(nodes)
        for index in range(count)
    )


def accepted(word: str, nodes: Counts, workload: Workload = WORKLOAD) -> RunPlacement | None:
    """The placement on its devices if a plan takes it."""
    entry = look_up(word, hosts(nodes), workload)
    return None if entry.reasons else entry.bound


def ways(count: int, nodes: Counts) -> Iterator[Counts]:
    """Every way to take so many from the nodes."""
    return (way for way in product(*(range(have + 1) for have in nodes)) if sum(way) == count)


def free(nodes: Counts, used: Sequence[int]) -> Counts:
    return tuple(have - use for have, use in zip(nodes, used, strict=True))


def layouts_of_pools(sizes: dict[str, int], nodes: Counts) -> Iterator[Layout]:
    """Every way to deal pools of such sizes out."""
    if not sizes:
        yield {}
        return
    (name, size), *rest = sizes.items()
    for way in ways(size, nodes):
        for others in layouts_of_pools(dict(rest), free(nodes, way)):
            yield {name: way, **others}


def layouts_of_engines(learners: Counts, engines: int, shared_by: int, nodes: Counts) -> Iterator[Layout]:
    """Every way to put whole engines beside learners that are told node by node."""
    if len(learners) > len(nodes) or any(want > have for want, have in zip(learners, nodes, strict=False)):
        return
    learners += (0,) * (len(nodes) - len(learners))
    for way in product(range(engines + 1), repeat=len(nodes)):
        taken = tuple(count * shared_by for count in way)
        if sum(way) == engines and min(free(free(nodes, learners), taken)) >= 0:
            yield {"learners": learners, "engines": taken}


def check(bound: RunPlacement | None, nodes: Counts, possible: Iterator[Layout]) -> None:
    """Accepted if and only if there is a way; then in one of the ways, each device used once and on its node."""
    if bound is None:
        assert next(possible, None) is None
        return
    found: Layout = {}
    for pool, devices in bound.members.items():
        on = Counter(device.node for device in devices)
        found[pool] = tuple(on[f"host{node}"] for node in range(len(nodes)))
        assert all(device in hosts(nodes) for device in devices)
    assert found in list(possible)
    assert found == {pool.name: pool.counts for pool in bound.placement.pools}
    used = [device.id for devices in bound.members.values() for device in devices]
    assert len(used) == len(set(used)) == bound.placement.size
    assert set(bound.placement.roles.values()) == set(found)


@given(nodes, counts, counts)
def test_split(nodes: Counts, actor: int, critic: int) -> None:
    sizes = {"actor_pool": actor, "critic_pool": critic}
    check(accepted(f"split:{actor}+{critic}", nodes), nodes, layouts_of_pools(sizes, nodes))


@given(nodes, counts, st.sampled_from(["", "/scaling=weak"]))
def test_ddp(nodes: Counts, replicas: int, setting: str) -> None:
    check(accepted(f"ddp:{replicas}{setting}", nodes), nodes, layouts_of_pools({"replicas": replicas}, nodes))


@given(nodes)
def test_halves_of_the_nodes(nodes: Counts) -> None:
    half = (len(nodes) + 1) // 2
    actor = nodes[:half] + (0,) * (len(nodes) - half)
    layouts = [{"actor_pool": actor, "critic_pool": free(nodes, actor)}] if len(nodes) > 1 else []
    check(accepted("split@nodes", nodes), nodes, iter(layouts))


@settings(max_examples=300)
@given(nodes, st.lists(st.integers(1, 5), min_size=1, max_size=3), counts, st.sampled_from([1, 2, 4]))
def test_learners_and_engines(nodes: Counts, learners: list[int], engines: int, shared_by: int) -> None:
    word = f"learners:{','.join(map(str, learners))}+engines:{engines}" + (f"xtp{shared_by}" if shared_by > 1 else "")
    check(
        accepted(word, nodes, WORKLOAD_OF_ENGINES),
        nodes,
        layouts_of_engines(tuple(learners), engines, shared_by, nodes),
    )


pools_of_files = st.integers(1, 3).flatmap(
    lambda size: st.tuples(
        st.tuples(*[st.integers(1, 8)] * size),
        st.lists(st.tuples(*[st.integers(0, 4)] * size), min_size=1, max_size=3),
    )
)


@given(pools_of_files, st.sampled_from([1, 2, 4]))
def test_files(tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Counts, list[Counts]], shared_by: int) -> None:
    nodes, pools = drawn
    names = [f"pool{number}" for number in range(len(pools))]
    as_given: Layout = dict(zip(names, pools, strict=True))
    living = {"actor": names[0], "rollout": names[0], "ref": names[len(pools) // 2], "critic": names[-1]}
    path = tmp_path_factory.getbasetemp() / "layout.yaml"
    content = {
        "pools": {name: list(pool) for name, pool in as_given.items()},
        "roles": living,
        "tensor_parallel": shared_by,
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    fits = (
        all(sum(pool) for pool in pools)
        and all(sum(pool[node] for pool in pools) <= have for node, have in enumerate(nodes))
        and not any(count % shared_by for count in pools[0])
    )
    check(accepted(str(path), nodes, WORKLOAD_OF_ENGINES), nodes, iter([as_given] if fits else []))


@given(
    st.sampled_from(["standard", "split:{}+{}", "learners:{}+engines:{}", "ddp:{}", "ddp:{}/scaling=weak"]),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from([4, 6, 8, 12]),
    st.integers(1, 3),
    st.data(),
)
def test_every_phase_of_an_accepted_layout_has_its_sequences(
    word: str, sizes: Counts, mini_batch: int, mini_batches: int, data: st.DataObject
) -> None:
    wanted = build_workload({"batch": {"size": mini_batch * mini_batches, "mini_batch_size": mini_batch}})
    bound = accepted(word.format(*sizes), (8,), wanted)
    assume(bound)
    assert bound is not None
    placement, workload = bound.placement, placed_workload(wanted, bound.placement)
    batch = workload.batch
    source = open_prompts(workload.data, workload.seed, batch.max_prompt_length)
    generation = Generation(workload, source, CharacterTokenizer())
    steps, state = StepData(workload, generation, is_stale=False), StepState(1, generation.step_prompts(1))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=batch.size, max_size=batch.size))
    sequences = SequenceBatch.build([[1]] * batch.size, [[2] * length for length in lengths])
    for phase in step_graph(hands_over=True, has_critic=True, has_engines=placement.has_engines):
        # The controller's own phase has no ranks, and engines have queues of their own.
        if phase.role and not (phase.name == "gen" and placement.has_engines):
            ranks = placement.pool_of(phase.role).size
            shares = steps.shares(state, phase.name, ranks)
            has_sequences = phase.name not in ("sleep", "wake_up", "update_weights")
            assert sorted(np.concatenate(shares)) == list(range(batch.size * has_sequences))
            assert [len(share) for share in shares] == [batch.size // ranks * has_sequences] * ranks
        state.batch = sequences
