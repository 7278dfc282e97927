"""The catalogue of placements for people: each word's reading, its devices, or why it cannot be."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from placebench.errors import Reasons
from placebench.plan.catalogue import Entry, look_up, usual_words
from placebench.plan.checks import unusable_workload
from placebench.plan.plan import find_devices
from placebench.plan.request import RunRequest
from placebench.plan.view import describe_devices, working_roles
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device, devices_per_node, index_ranges
from placebench.spec.presets import PRESETS
from placebench.spec.words import SETTINGS, names_file, read_placement, split_words
from placebench.spec.workload import Workload
from placebench.spec.workload_reading import asks_for_critic, read_workload


def show_catalogue(request: RunRequest, words: Sequence[str], console: Console) -> None:
    """Print what each word means and whether it can be.

    Args:
        request: devices, workload, and the placements of its file; all else is left aside.
        words: those to look up, or lists of them; none for the request's, and without these for the usual ones, with
            the settings.
        console: where to.

    Raises:
        UsageError: devices or workload cannot be, whatever the placement, or, once all are shown, words are no
            placements; one line for every reason.
    """
    if request.placements and not words:
        words = [request.placements]
    words = [word for text in words for word in split_words(text)]
    reasons, no_words = Reasons(), Reasons()
    reasons.add(request.wrong)
    found = reasons.attempt(lambda: find_devices(request)) if "devices" not in request.unread else None
    read = read_workload(request.workload, reasons, request.origin, request.unread)
    workload = read.workload
    # It may run on other hosts, which alone have its packages.
    reasons.add(unusable_workload(workload, elsewhere=True, tries_reward=False, unread=read.unread))
    for word in words:
        read_placement(word, None, no_words, has_critic=asks_for_critic(request.workload))
    if reasons.lines:
        reasons.add(no_words.lines)
        reasons.raise_any()
    assert found is not None
    _, devices = found
    console.print(Text.assemble(("devices  ", "bold"), describe_devices(devices)), soft_wrap=True)
    entries = look_up(words or usual_words(devices_per_node(devices)), devices, workload)
    for form, reading, members in _by_preset(entries):
        console.print()
        console.print(Text.assemble((form, "bold"), f"  {reading}"), soft_wrap=True)
        for entry in members:
            _show(entry, workload, console)
    if not words:
        console.print()
        console.print(Text("Settings, behind a word or a file's name", "bold"), soft_wrap=True)
        for name, setting in SETTINGS.items():
            console.print(f"  /{name}={setting.form}  {setting.reading}", markup=False, soft_wrap=True)
    no_words.raise_any()


def _by_preset(entries: Sequence[Entry]) -> Iterator[tuple[str, str, list[Entry]]]:
    for preset in PRESETS:
        if members := [entry for entry in entries if entry.preset is preset]:
            yield preset.form, preset.reading, members
    for is_file, form, reading in (
        (True, "FILE.yaml", "any pools, given by node, and the pool of each role"),
        (False, "unknown", "no placement"),
    ):
        if others := [entry for entry in entries if entry.preset is None and names_file(entry.word) is is_file]:
            yield form, reading, others


def _show(entry: Entry, workload: Workload, console: Console) -> None:
    can = not entry.reasons
    console.print(
        Text.assemble("  ", (entry.word, "green" if can else "red"), "" if can else "  cannot be"), soft_wrap=True
    )
    for line in _pools(entry.bound, workload) if can and entry.bound else entry.reasons:
        console.print(f"    {line}", markup=False, soft_wrap=True)


def _pools(bound: RunPlacement, workload: Workload) -> Iterator[str]:
    for pool, devices in bound.members.items():
        roles = ", ".join(working_roles(bound.placement, pool, workload))
        yield f"{pool}: {roles} on {'; '.join(_ranges(devices))}"


def _ranges(devices: Sequence[Device]) -> Iterator[str]:
    """Devices of each node, neighbours together: `node0 gpu:0–3, gpu:6`."""
    for node, members in groupby(devices, key=lambda device: device.node):
        yield f"{node} {devices[0].kind}:{index_ranges(device.index for device in members)}"
