"""verl's file logger (`trainer.logger=[file]`): `{"step": 1, "data": {"timing_s/gen": 1.2, …}}` a line."""

from placebench.logs.formats import LogFormat
from placebench.logs.jsonl import step_begins, steps_reader
from placebench.logs.verl import VERL_DIALECT

VERL_JSONL = LogFormat(
    name="verl-jsonl",
    title="JSONL of verl's file logger",
    begins=step_begins("data"),
    read=steps_reader("data"),
    dialect=VERL_DIALECT,
)
