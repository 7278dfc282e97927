"""verl's file logger (`trainer.logger=[file]`): `{"step": 1, "data": {"timing_s/gen": 1.2, …}}` a line."""

from functools import partial

from placebench.logs.formats import LogFormat
from placebench.logs.jsonl import read_steps, step_begins
from placebench.logs.timing import VERL_TIMING

VERL_JSONL = LogFormat(
    name="verl-jsonl",
    title="JSONL of verl's file logger",
    begins=step_begins("data"),
    read=partial(read_steps, field="data"),
    timing=VERL_TIMING,
)
