"""How fast each core of this host is now: of a virtual machine, some may be half as fast while other guests use them.

    python benchmarks/cores.py --seconds 10

Runs the sampler's loop on one core after the other, again and again, and prints for each how long it takes at best, on
average, and in the slowest tenth; and how the average of all cores went, second by second. Run it while nothing else
does: a host on which the cores differ is one on which launches will.
"""

import time

import click

from placebench.host.machine import usable_cores
from placebench.telemetry.core_pace import loop_on

# Between two loops, so that the benchmark itself keeps no core busy.
_PAUSE_S = 0.002


@click.command()
@click.option("--seconds", default=10.0, show_default=True, type=click.FloatRange(1.0), help="How long to look.")
def main(seconds: float) -> None:
    """Print how fast each core is."""
    begin = time.monotonic()
    loops: dict[int, list[float]] = {core: [] for core in usable_cores()}
    by_second: dict[int, list[float]] = {}
    while (now := time.monotonic() - begin) < seconds:
        for core, found in loops.items():
            if (took := loop_on(core)) is not None:
                found.append(1e6 * took)
                by_second.setdefault(int(now), []).append(1e6 * took)
            time.sleep(_PAUSE_S)
    measured = {core: sorted(found) for core, found in loops.items() if found}
    if not measured:
        raise click.ClickException("no core of this host lets the loop run on it")
    best = min(found[0] for found in measured.values())
    print(f"the loop takes {best:.1f} microseconds at best; times as long:")
    for core, found in measured.items():
        mean, slow = sum(found) / len(found), found[int(0.9 * len(found))]
        print(f"core {core:3}  best {found[0] / best:.2f}  mean {mean / best:.2f}  slowest tenth {slow / best:.2f}")
    means = [sum(found) / len(found) / best for found in by_second.values()]
    print(f"all cores, second by second: {' '.join(f'{mean:.2f}' for mean in means)}")


if __name__ == "__main__":
    main()
