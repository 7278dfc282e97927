"""placebench's own `steps.jsonl`: `{"step": 1, "wall": …, "metrics": {"timing_s/gen": 1.2, …}}` a line."""

from functools import partial

from placebench.logs.formats import LogFormat
from placebench.logs.jsonl import read_steps, step_begins
from placebench.logs.timing import PLACEBENCH_TIMING

PLACEBENCH_JSONL = LogFormat(
    name="placebench",
    title="placebench's steps.jsonl",
    begins=step_begins("metrics"),
    read=partial(read_steps, field="metrics"),
    timing=PLACEBENCH_TIMING,
)
