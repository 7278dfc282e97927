"""How long the search for the fastest placements takes on one core, with the calibrations that are shipped.

    python benchmarks/search.py [--repeats 3]

On 1,024 GPUs, in batches that few and that many numbers of devices divide, without staleness and with it, with five
roles, and with six where a model judges. All that `placebench search` asks of the search: the fastest placement, and of
each layout the first that cannot be told from it. What phases take is worked out anew in every repeat.
"""

import time
from itertools import product
from typing import Any

import click

from placebench.predict import finding
from placebench.predict.asking import asked_devices, asked_workload, step_model
from placebench.predict.known import shipped_calibrations
from placebench.predict.layouts import space_of
from placebench.predict.search import search

DEVICES = "gpu:8x128"
JUDGE = {"reward_model": "qwen2.5-1.5b"}
JOBS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("h100", 1024, {}),
    ("h200", 5040, {}),
    ("h100", 10080, {}),
    ("h100", 6144, JUDGE),
    ("h200", 5040, JUDGE),
)
STALENESSES = (0, 1, 4)


@click.command()
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Searches of each case.")
@click.option("--tie", default=0.25, show_default=True, help="How much longer than the fastest is still a tie.")
def main(repeats: int, tie: float) -> None:
    """Print CPU seconds and what was looked at, the fastest of the repeats."""
    for (calibration, size, rest), staleness in product(JOBS, STALENESSES):
        file = shipped_calibrations()[calibration]
        devices = asked_devices(DEVICES, (file,), file.device, by_name=False)
        batch = {"batch": {"size": size, "mini_batch_size": size}}
        workload = asked_workload((file,), batch | rest, lambda key: key)
        seconds = []
        for _ in range(repeats):
            model = step_model((file,), workload, devices)
            start = time.process_time()
            spaces = [space_of(model, ages) for ages in finding.stalenesses(staleness)]
            results = [search(model, space, tie=tie, per_layout=1) for space in spaces]
            seconds.append(time.process_time() - start)
        best = min((one.best for one in results if one.best), key=lambda one: one.seconds)
        print(
            f"{len(devices):5} × {calibration}  batch {size:6,}  {6 if rest else 5} roles  staleness {staleness}  "
            f"{min(seconds):5.2f} s of CPU  {sum(one.bounded for one in results):9,} bounded  "
            f"{sum(one.walked for one in results):5,} walked  {sum(len(one.ties) for one in results):3} layouts within"
            f" {tie:.0%} of {best.placement.name}: {best.seconds:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
