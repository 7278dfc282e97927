"""Spans of a job of one's own: `with placebench_attach.span("gen"):`.

Costs a few microseconds, never raises, and does nothing where the job is not started by placebench.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from placebench_attach.spans import SpanOfBody


def span(name: str) -> SpanOfBody:
    """A context manager: its body becomes a span of that name in this process.

    Args:
        name: a phase of the step (`gen`, `update_actor`, …), `step` for a whole one, or any other name.
    """
    from placebench_attach.spans import SpanOfBody  # not at every start of a Python that may write none

    return SpanOfBody(name)
