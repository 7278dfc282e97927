"""A job of the user's for people: what each placement would start, to read before the start and to copy."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from placebench.errors import Reasons
from placebench.jobs.adapters.command import COMMAND
from placebench.jobs.command_lines import lines_of, shell_lines
from placebench.jobs.job import Job
from placebench.jobs.registry import ADAPTERS
from placebench.jobs.start import job_launch, names_in_braces
from placebench.plan.catalogue import usual_words
from placebench.plan.devices import DEVICES
from placebench.plan.job_checks import JOB
from placebench.plan.plan import Plan
from placebench.plan.request import OPTIONS, RunRequest, request_facts
from placebench.spec.bound import RunPlacement
from placebench.spec.check import collect
from placebench.spec.devices import Device, device_ranges, devices_per_node
from placebench.spec.words import split_words


def job_lines(plan: Plan, job: Job) -> Iterator[tuple[str, str]]:
    """What a plan's first launches would start, as pairs of a heading and a text."""
    for note in (*job.adapter.notes, *plan.notes):
        yield "note", note
    for bound in plan.placements:
        yield "", ""
        yield "placement", f"{bound.name}, {'; '.join(_pools(bound, plan.devices))}"
        names = names_in_braces(plan.folder.trial(1, bound.name).path, 1, Path("/tmp/ray"))
        launch = job_launch(job, bound, names, plan.addresses)
        for what, words in (("before", launch.before), ("after", launch.after)):
            if words:
                yield what, shlex.join(words)
        cores = {core for members in bound.members.values() for one in members for core in one.cores}
        for line in shell_lines(launch, cores):
            yield "command", f"\n{line}"


def _pools(bound: RunPlacement, devices: Sequence[Device]) -> Iterator[str]:
    names_nodes = len(devices_per_node(devices)) > 1
    for pool, members in bound.members.items():
        roles = ", ".join(bound.placement.roles_in(pool))
        yield f"{pool}: {f'{roles} on ' if roles else ''}{device_ranges(members, names_nodes=names_nodes)}"


def show_settings(request: RunRequest, words: Sequence[str], console: Console) -> None:
    """Print the settings with which a framework does as placement words say, to copy, or why it cannot.

    Args:
        request: the job, whose command may be missing, and devices; without these, as many GPUs as a word says.
        words: placement words, or lists of them; none for the job's own, or the usual ones.
        console: where to print.

    Raises:
        UsageError: job or devices cannot be, or, when all is printed, a word is no placement; one line for every
            reason.
    """
    given = request.job or {}
    adapter = ADAPTERS.get(str(given.get("job", COMMAND.name)), COMMAND)
    facts = request_facts(replace(request, job={"command": list(adapter.example), **given}))
    collect((OPTIONS, JOB, DEVICES), facts).raise_any()
    job, nodes = facts["job"], facts["nodes"]
    kind = facts["devices"][0].kind if request.devices else "gpu"
    named = [word for text in words for word in split_words(text)]
    no_words = Reasons()
    for word in named:
        if word not in job.spec.placements:
            no_words.attempt(partial(job.read_word, word, None))
    for word in named or [*job.spec.placements] or usual_words(nodes):
        reasons = Reasons()
        has_counts = not request.devices and bool(re.search("[0-9]", word))
        settings = reasons.attempt(partial(job.settings_of, word, None if has_counts else nodes, kind))
        console.print(Text(word, "green" if settings else "red"), soft_wrap=True)
        for line in (*reasons.lines, *(lines_of(settings) if settings else ())):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    no_words.raise_any()
