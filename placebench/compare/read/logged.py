"""Phases of a job of the user's that no spans tell of: their seconds, as the job's own log has them.

When in the step they ran is not known, so nothing that needs it is computed of them: what was hidden, who waited, the
critical path.
"""

from dataclasses import replace

import pandas as pd

from placebench.logs.registry import DIALECTS, UNKNOWN_DIALECT
from placebench.logs.timing import STEP, Kind, timing_frame, timing_rows
from placebench.record.job_record import LogRecord

_SHOWN = (Kind.PHASE, Kind.OVERLAP, Kind.UNATTRIBUTED)


def logged_phases(steps: pd.DataFrame, record: LogRecord) -> pd.DataFrame:
    """Seconds of each phase in each step.

    Args:
        steps: metrics by step, as `Launch.steps` has them.
        record: whose log they are from.

    Returns:
        Indexed by step, one column a phase, `unattributed` among them where phases do not overlap.
    """
    dialect = next((known for known in DIALECTS if known.framework == record.framework), UNKNOWN_DIALECT)
    rules = replace(dialect.timing, phases={**dialect.timing.phases, **record.phases})
    numbers = steps.apply(pd.to_numeric, errors="coerce").rename_axis("step").reset_index()
    tidy = numbers.melt("step", var_name="metric", value_name="value").dropna(subset="value").assign(launch="")
    if not timing_rows(tidy, rules).any():
        return pd.DataFrame(index=steps.index)
    timings = timing_frame(tidy, rules)
    shown = timings[timings["kind"].isin(_SHOWN) & (timings["phase"] != STEP)]
    return shown.pivot(index="step", columns="phase", values="seconds")
