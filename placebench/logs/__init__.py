"""Readers of training logs: one module a format, one registry, text to the same tidy frame.

A tidy frame has the columns launch (str), step (int), metric (str) and value (float64). To add a format, write a
module with a `LogFormat` and list it in `registry.FORMATS`.
"""

from placebench.logs.formats import LogFormat
from placebench.logs.read import Log, is_timing, launch_names, read_log, read_timings, scan_log
from placebench.logs.registry import FORMATS, format_named
from placebench.logs.timing import PLACEBENCH_TIMING, VERL_TIMING, Kind, TimingRules, phase_order, timing_frame

__all__ = [
    "FORMATS",
    "PLACEBENCH_TIMING",
    "VERL_TIMING",
    "Kind",
    "Log",
    "LogFormat",
    "TimingRules",
    "format_named",
    "is_timing",
    "launch_names",
    "phase_order",
    "read_log",
    "read_timings",
    "scan_log",
    "timing_frame",
]
