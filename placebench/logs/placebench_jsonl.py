"""placebench's own `steps.jsonl`: `{"step": 1, "wall": …, "metrics": {"timing_s/gen": 1.2, …}}` a line."""

from placebench.logs.formats import Count, Dialect, Tokens
from placebench.logs.jsonl import jsonl_log
from placebench.logs.timing import PLACEBENCH_TIMING

PLACEBENCH_DIALECT = Dialect(
    framework="placebench",
    marks=("perf/decode_context_tokens", "perf/attention_length"),
    timing=PLACEBENCH_TIMING,
    tokens=Tokens(("perf/total_num_tokens",), Count.STEP, reported="perf/throughput"),
)
PLACEBENCH_JSONL = jsonl_log("placebench", "placebench's steps.jsonl", "metrics", PLACEBENCH_DIALECT)
