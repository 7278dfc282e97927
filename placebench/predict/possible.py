"""Which placement words can be on given devices, each with its devices: laid out, and fitting into their memory."""

from collections.abc import Iterator, Sequence

from placebench.errors import Reasons, UsageError
from placebench.predict.memory.fitting import fits
from placebench.spec.bound import RunPlacement, bind
from placebench.spec.devices import Device, devices_per_node
from placebench.spec.placement_checks import impossible_placements
from placebench.spec.shapes import job_shapes
from placebench.spec.words import read_placement
from placebench.spec.workload import Workload


def lay_out(word: str, devices: Sequence[Device], workload: Workload) -> tuple[RunPlacement | None, tuple[str, ...]]:
    """A placement word on devices, whatever memory they have.

    Returns:
        The placement with its devices, None where there are too few or the word is wrong; and why it cannot be, one
        line for every reason.
    """
    reasons = Reasons()
    placement = read_placement(word, devices_per_node(devices), reasons, has_critic=workload.algorithm.has_critic)
    bound = bind(placement, devices) if placement and not reasons.lines else None
    reasons.add(impossible_placements([placement] if placement else [], workload))
    return bound, reasons.lines


def possible_placements(
    words: Sequence[str], devices: Sequence[Device], workload: Workload
) -> Iterator[tuple[str, RunPlacement]]:
    """The words that can be, each with its placement; none where a model is not known."""
    try:
        shapes = job_shapes(workload)
    except UsageError:
        return
    for word in words:
        bound, reasons = lay_out(word, devices, workload)
        if bound and not reasons and fits(workload, shapes, bound, devices):
            yield word, bound
