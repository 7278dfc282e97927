"""What the processes that a benchmark has started took."""

import resource


def children_cpu_s() -> float:
    """CPU seconds of all that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
