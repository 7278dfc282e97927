"""Readers of training logs: one module a format, one registry, text to the same tidy frame.

A tidy frame has the columns launch (str), step (int), metric (str) and value (float64). To add a format, write a
module with a `LogFormat`, and a `Dialect` where its framework is new, and list them in `registry`.
"""

from placebench.logs.flags import Flag
from placebench.logs.formats import Dialect, LogFormat
from placebench.logs.read import Log, is_timing, launch_names, read_log, read_timings, scan_log
from placebench.logs.registry import DIALECTS, FORMATS, format_named
from placebench.logs.run import LoggedRun, read_run
from placebench.logs.throughput import throughput_frame
from placebench.logs.timing import PLACEBENCH_TIMING, VERL_TIMING, Kind, TimingRules, phase_order, timing_frame

__all__ = [
    "DIALECTS",
    "FORMATS",
    "PLACEBENCH_TIMING",
    "VERL_TIMING",
    "Dialect",
    "Flag",
    "Kind",
    "Log",
    "LogFormat",
    "LoggedRun",
    "TimingRules",
    "format_named",
    "is_timing",
    "launch_names",
    "phase_order",
    "read_log",
    "read_run",
    "read_timings",
    "scan_log",
    "throughput_frame",
    "timing_frame",
]
