"""How fast the cores were that a job ran on."""

from collections.abc import Sequence

import pandas as pd

from placebench.compare.read.run import Launch, Run


def core_loops(run: Run, launches: Sequence[Launch]) -> list[pd.Series]:
    """CPU time of the sampler's loop during the measured steps of each launch, seconds.

    Nothing of a run on several hosts, whose cores may differ, and of launches that have none.
    """
    if len({device.node for device in run.devices.values()}) > 1:
        return []
    samples = [launch.measured_samples for launch in launches]
    loops = [one["core_loop_s"].dropna() for one in samples if "core_loop_s" in one]
    return [one for one in loops if len(one)]
