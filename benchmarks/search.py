"""How long the search for the fastest placement takes on one core, with made-up times of phases.

    python benchmarks/search.py [--repeats 3]

Six roles, a judge beside the five, engines of one to eight devices and a staleness of 0 or 1, on 64 and 1,024 GPUs, for
batches that many numbers of devices divide. Times are those of phases whose work is divided among their devices, beside
a part that is not and collectives that grow with them, so that more devices may be slower.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import click

from placebench.predict.layouts import SearchSpace
from placebench.predict.search import search
from placebench.predict.walk import walk, walked_graph
from placebench.spec.phases import GEN, HAND_OVER, PHASES, UPDATE_WEIGHTS, Phase
from placebench.spec.placement import Overlap, Placement, Role

JUDGE = cast(Role, "judge")
# Device-seconds of each phase, the part that does not shrink, and what each doubling of the devices adds.
WORK: Mapping[str, tuple[float, float, float]] = {
    "gen": (1500.0, 1.2, 0.02),
    "reward": (300.0, 0.1, 0.01),
    "judge": (420.0, 0.1, 0.01),
    "old_log_prob": (260.0, 0.1, 0.01),
    "ref": (260.0, 0.1, 0.01),
    "values": (230.0, 0.1, 0.01),
    "adv": (0.0, 0.05, 0.0),
    "update_critic": (700.0, 0.3, 0.05),
    "update_actor": (800.0, 0.3, 0.05),
    "update_weights": (2.0, 0.1, 0.02),
}
LEAST = {Role.ACTOR: 16, Role.ROLLOUT: 2, Role.REF: 4, Role.CRITIC: 16, Role.REWARD: 4, JUDGE: 4}
CASES = ((8, 1024, 256), (128, 1024, 1024), (128, 6144, 6144), (128, 7680, 1920))


class Step(NamedTuple):
    """A step of the made-up job."""

    seconds: float


@dataclass
class MadeUpSteps:
    """A made-up job in batches of `size` sequences and mini-batches of `mini_batch`."""

    size: int
    mini_batch: int
    devices: int

    def sizes(self, roles: tuple[Role, ...], *, tensor_parallel: int = 1) -> tuple[int, ...]:
        """Those that divide the batches, from the least that all roles need."""
        shared = self.size if roles == (Role.ROLLOUT,) else self.mini_batch
        step = tensor_parallel if Role.ROLLOUT in roles else 1
        least = sum(LEAST[role] for role in roles)
        return tuple(one for one in range(step, self.devices + 1, step) if shared % one == 0 and one >= least)

    def graph(self, placement: Placement) -> tuple[Phase, ...]:
        """As it is, with the judge beside the reward."""
        names = [phase.name for phase in PHASES if phase.name not in HAND_OVER]
        phases = walked_graph(names, staleness=placement.staleness, has_engines=placement.has_engines)
        reward, adv = (next(phase for phase in phases if phase.name == name) for name in ("reward", "adv"))
        judge = replace(reward, name="judge", role=JUDGE)
        judged = replace(adv, after=(*adv.after, "judge"))
        others = tuple(judged if phase is adv else phase for phase in phases)
        at = phases.index(reward)
        return (*others[:at], judge, *others[at:])

    def phase_seconds(self, phase: str, devices: int, tensor_parallel: int) -> float:
        """What a phase takes on a pool of so many devices."""
        divided, fixed, doubling = WORK[phase]
        shared = tensor_parallel if phase == GEN else 1
        work = divided * (1 + 0.1 * (shared.bit_length() - 1)) / max(1, devices)
        return work + fixed / float(shared**0.5) + doubling * max(1, devices).bit_length()

    def gap_seconds(self, placement: Placement) -> float:
        """What collecting and submitting takes, for each pool and sequence."""
        return 0.02 * len(placement.pools) + 2e-4 * self.size

    def step(self, placement: Placement) -> Step:
        """The walk of the graph; with engines that run ahead, generation beside the walk of the rest."""
        graph = self.graph(placement)
        pools = {one.name: placement.pool_of(one.role) if one.role else None for one in graph}
        shared_by = placement.tensor_parallel or 1
        seconds = {name: self.phase_seconds(name, pool.size if pool else 0, shared_by) for name, pool in pools.items()}
        where = {name: pool.name if pool else "" for name, pool in pools.items()}
        if not (placement.staleness and placement.has_engines):
            times = walk(graph, seconds, where, placement.overlap)
            return Step(self.gap_seconds(placement) + max(end for _, end in times.values()))
        rest = [replace(one, after=tuple(name for name in one.after if name != GEN)) for one in graph]
        rest = [one for one in rest if one.name not in (GEN, UPDATE_WEIGHTS)]
        training = max(end for _, end in walk(rest, seconds, where, Overlap.ALL).values())
        around = seconds[GEN] + training + seconds[UPDATE_WEIGHTS]
        steady = max(seconds[GEN], training, around / (1 + placement.staleness))
        return Step(self.gap_seconds(placement) + steady)


@click.command()
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Searches of each case.")
@click.option("--tie", default=0.15, show_default=True, help="How much longer than the fastest is still a tie.")
def main(repeats: int, tie: float) -> None:
    """Print CPU seconds and what was looked at, the fastest of the repeats."""
    roles = tuple((role,) for role in (*Role, JUDGE))
    for nodes, size, mini_batch in CASES:
        space = SearchSpace((8,) * nodes, roles, (1, 2, 4, 8), (0, 1))
        seconds = []
        for _ in range(repeats):
            steps, start = MadeUpSteps(size, mini_batch, space.devices), time.process_time()
            found = search(steps, space, tie=tie, per_layout=1)
            seconds.append(time.process_time() - start)
        assert found.best
        print(
            f"{space.devices:5} GPUs  batch {size:,} / {mini_batch:,}  {min(seconds):.2f} s of CPU  "
            f"{found.bounded:9,} bounded  {found.walked:5,} walked  {len(found.ties):3} layouts within {tie:.0%} of"
            f" {found.best.placement.name}: {found.best.seconds:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
