"""What the logs of a launch say about its run besides the steps: what stands before them, and their mean work."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from placebench.logs.head import DEVICES, ROLLOUT_DEVICES, Facts
from placebench.logs.run import LoggedRun

# Names under which frameworks log the mean lengths of a step's prompts and responses.
LENGTHS: Mapping[str, tuple[str, ...]] = {
    "mean prompt length": ("prompt_length/mean", "prompts/mean_length"),
    "mean response length": (
        "response_length/mean",
        "completions/mean_length",
        "train/completions/mean_length",
        "response_length",
        "rollout/response_len/mean",
        "rollout/response_length_mean",
        "train/rollout/response_length_mean",
        "val/sequence_lengths",
    ),
}


def logged_facts(run: LoggedRun, devices: int | None = None) -> Facts:
    """What the logs of one launch say of their run; text, or a number where a little more or less is no difference.

    Args:
        run: the launch.
        devices: how many there are, where the user has said so.
    """
    facts: Facts = {"framework": run.dialect.framework, **run.head}
    if devices is not None:
        facts[DEVICES] = str(devices)
    elif DEVICES not in facts and (inferred := _inferred_devices(run)) is not None:
        facts[DEVICES] = str(inferred)
    elif run.rollout_apart and ROLLOUT_DEVICES not in facts:
        # The configuration names the trainer's alone.
        facts.pop(DEVICES, None)
    counted = run.throughput.dropna(subset="tokens")
    if len(counted):
        facts["tokens a step"] = float(counted["tokens"].sum() / counted["steps"].sum())
    return facts | _lengths(run.frame)


def _inferred_devices(run: LoggedRun) -> int | None:
    """The devices that the log's own throughput was divided by; None where that is not known."""
    rows = run.throughput
    ratio = (rows["tokens_per_s"] / rows["tokens_per_s_per_device"]).median()
    return None if np.isnan(ratio) else round(float(ratio))


def _lengths(frame: pd.DataFrame) -> Facts:
    facts: Facts = {}
    for fact, names in LENGTHS.items():
        for name in names:
            values = frame.loc[frame["metric"] == name, "value"]
            values = values[np.isfinite(values)]
            if len(values):
                facts[fact] = float(values.mean())
                break
    return facts
