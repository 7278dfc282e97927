"""Phases of a job of the user's that no spans tell of: their seconds, as the job's own log has them.

When in the step they ran is not known, so nothing that needs it is computed of them: what was hidden, who waited, the
critical path.
"""

from dataclasses import replace

import pandas as pd

from placebench.logs.timing import Kind, timings_of
from placebench.record.job_record import LogRecord
from placebench.spec.phases import STEP

_SHOWN = (Kind.PHASE, Kind.OVERLAP, Kind.UNATTRIBUTED)


def logged_phases(steps: pd.DataFrame, record: LogRecord) -> pd.DataFrame:
    """Seconds of each phase in each step.

    Args:
        steps: metrics by step, as `Launch.steps` has them.
        record: whose log they are from.

    Returns:
        Indexed by step, one column a phase, `unattributed` among them where phases do not overlap.
    """
    from placebench.logs.registry import DIALECTS, UNKNOWN_DIALECT  # of no use to runs of the own job

    dialect = next((known for known in DIALECTS if known.framework == record.framework), UNKNOWN_DIALECT)
    rules = replace(dialect.timing, phases={**dialect.timing.phases, **record.phases})
    timings = timings_of(steps.apply(pd.to_numeric, errors="coerce"), rules)
    if timings is None:
        return pd.DataFrame(index=steps.index)
    return timings.seconds[[phase for phase, kind in timings.kinds.items() if kind in _SHOWN and phase != STEP]]
