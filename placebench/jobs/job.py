"""A job of the user's: what is known of its command, and which placements it can have."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from placebench.errors import Reasons, UsageError
from placebench.jobs.adapter import Adapter, AskedPlacement, Settings, Training
from placebench.jobs.adapters.command import COMMAND, NOT_KNOWN
from placebench.jobs.programs import in_home
from placebench.jobs.python_path import replaced_path
from placebench.jobs.registry import ADAPTERS
from placebench.jobs.scripts import WORKED_OUT, Given, read_command
from placebench.jobs.spec import JobSpec, PlacementOfJob
from placebench.record.job_record import JobRecord, JobWork
from placebench.spec.devices import Kind
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean
from placebench.spec.placement import Placement, Pool
from placebench.spec.presets import Nodes
from placebench.spec.shapes import JobShapes, ModelShape, model_shape
from placebench.spec.text import few
from placebench.spec.words import given_twice, names_file, parse_placement, preset_of, split_words


class Job:
    """A job that can be started under placements.

    Args:
        spec: what the user says of it.
    """

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec

    def of_steps(self, steps: int) -> "Job":
        """The job with launches of so many steps."""
        return Job(self.spec.model_copy(update={"steps": steps}))

    def starts_on_all(self, nodes: int) -> bool:
        """Whether it starts something on each of so many nodes: its command, or a Ray over them."""
        return nodes > 1 and self.spec.ray_address is None and self.spec.each_node

    def starts_ray(self, texts: Iterable[str], nodes: int = 1) -> bool:
        """Whether the Ray that it has for itself is started for it: over several nodes, or where texts name it."""
        names_it = any("{ray_address}" in text for text in texts)
        return self.spec.ray_use == "own" and (self.starts_on_all(nodes) or names_it)

    @property
    def adapter(self) -> Adapter:
        """What is known of its framework."""
        return ADAPTERS[self.spec.job]

    @cached_property
    def given(self) -> Given:
        """What its command says."""
        own = {name: WORKED_OUT if "{" in value else value for name, value in self.spec.env.items()}
        of_placements = {name for placement in self.spec.placements.values() for name in placement.env}
        environment = {**os.environ, **own, **dict.fromkeys(of_placements, WORKED_OUT)}
        return read_command(self.spec.command, self.spec.cwd, environment)

    @property
    def record(self) -> JobRecord:
        """The job in `run.json`."""
        return JobRecord(
            framework=self.spec.job,
            spec=self.spec.model_dump(mode="json", exclude_defaults=True),
            notes=(*self.adapter.notes, *self.remarks),
            work=JobWork(phases=tuple(sorted(self._training.phases)), epochs=self._training.epochs)
            if self._training
            else None,
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know of its command, a sentence each; the adapter's notes are of all its jobs."""
        where = replaced_path(self.given) if self.spec.attach else None
        lost = (
            f"{where} drops what PYTHONPATH had before, so placebench's hooks write no spans: append :$PYTHONPATH to"
            " it."
        )
        return (*self.adapter.remarks(self.given), *([lost] if where else []))

    @cached_property
    def _training(self) -> Training | None:
        """What its command says of what it computes; placements with arguments of their own may say otherwise."""
        if any(placement.args for placement in self.spec.placements.values()):
            return None
        return self.adapter.training(self.given)

    @property
    def shapes(self) -> JobShapes | None:
        """Shapes of its models; None where they are not known."""
        if self._training is None:
            return None
        actor = self._shape(self._training.actor)
        critic = self._shape(self._training.critic) if self._training.critic else actor
        return JobShapes(actor, critic) if actor and critic else None

    def _shape(self, model: str) -> ModelShape | None:
        folder = (self.spec.cwd / in_home(model)).absolute()
        if not folder.is_dir() and "/" not in model:  # no preset of placebench's
            return None
        try:
            return model_shape(str(folder) if folder.is_dir() else model)
        except UsageError:
            return None

    def placements(self, words: str, nodes: Nodes, kind: Kind, reasons: Reasons) -> tuple[Placement, ...]:
        """The placements that words name and the job can have on nodes of so many devices.

        Args:
            words: set apart by commas: words of placebench, and names that the job gives to placements.
            nodes: devices of each node.
            kind: of the devices.
            reasons: takes why others cannot be.
        """
        named = split_words(words)
        if "" in named:
            reasons.add([f"--placements {shown(words)} has an empty entry: write for example standard,split"])
        reasons.add(given_twice(filter(None, named), words))
        found = (
            reasons.attempt(partial(self.placement, name, nodes, kind)) for name in filter(None, dict.fromkeys(named))
        )
        return tuple(placement for placement in found if placement)

    def placement(self, name: str, nodes: Nodes | None, kind: Kind) -> Placement:
        """The placement that a word, or a name of the job's, stands for.

        Raises:
            UsageError: it cannot be; a line for every reason.
        """
        if self.is_own(name):
            return self._own_placement(name, nodes or (1,))
        placement = self.read_word(name, nodes)
        self.settings(placement, kind)  # it says why the framework cannot be told so
        return placement

    def read_word(self, word: str, nodes: Nodes | None) -> Placement:
        """The placement that a word of placebench, or a file, stands for.

        Raises:
            UsageError: there is none, nor is it a name of the job's; a line for every reason.
        """
        is_name = preset_of(word) is None and not names_file(word)
        if (own := self.spec.placements) and is_name:
            raise UsageError(
                f"unknown placement {shown(word)}: use {few(own, ', ')} of the job file, or one that placebench"
                f" placements lists{did_you_mean(word, own)}"
            )
        if self.adapter is COMMAND and is_name:
            raise UsageError(f"placement {shown(word)}: {NOT_KNOWN}")
        return parse_placement(word, nodes)

    def is_own(self, name: str) -> bool:
        """Whether a placement is the user's own, of which no more is known than what it gives to the command."""
        if name not in self.spec.placements:
            return False
        is_word = preset_of(name) is not None or names_file(name)
        return self.adapter is COMMAND or not is_word or bool(self.spec.placements[name].pools)

    def _own_placement(self, name: str, nodes: Nodes) -> Placement:
        given = self.spec.placements[name].pools or {"all": tuple(nodes)}
        pools = tuple(Pool(pool, _on_nodes(counts, nodes)) for pool, counts in given.items())
        wrong = [
            f"placement {shown(name)}: pools.{pool.name}: {shown(list(given[pool.name]))} must have a count for each"
            f" of the nodes ({len(nodes)}), and at least one device"
            for pool in pools
            if len(pool.counts) != len(nodes) or not pool.size
        ]
        for node, have in enumerate(nodes):
            need = sum(pool.counts[node] for pool in pools if len(pool.counts) == len(nodes))
            if need > have:
                wrong.append(f"placement {shown(name)}: its pools need {need} devices on node {node}, which has {have}")
        if wrong:
            raise UsageError(*wrong)
        return Placement(name, pools, {})

    def settings(self, placement: Placement, kind: Kind) -> Settings:
        """The adapter's settings of a placement.

        Raises:
            UsageError: it cannot be said to the framework; a line for every reason.
        """
        if not placement.roles:
            return Settings()
        try:
            return self.adapter.settings(AskedPlacement(placement, kind, self.given))
        except UsageError as error:
            raise UsageError(*(f"placement {shown(placement.name)}: {line}" for line in error.args)) from None

    def settings_of(self, word: str, nodes: Nodes | None, kind: Kind) -> Settings:
        """What a placement gives to the command; its arguments and variables from a job file come last.

        Args:
            word: a word of placebench, or a name that the job gives.
            nodes: devices of each node; None for as many as the word says.
            kind: of the devices.

        Raises:
            UsageError: it cannot be; a line for every reason.
        """
        settings = self.settings(self.placement(word, nodes, kind), kind)
        own = self.spec.placements.get(word, PlacementOfJob())
        return replace(settings, args=(*settings.args, *own.args), env={**settings.env, **own.env})

    def sequences(self, ranks: int) -> int | None:
        """Sequences of a step, with so many ranks that learn; None where its command does not say it."""
        training = self._training
        if training is None or training.sequences is None:
            return None
        return training.sequences * (ranks if training.per_rank else 1)

    @property
    def quiet(self) -> tuple[str, ...]:
        """Arguments that switch off what is no training."""
        where = self.adapter.quiet_where
        return (*self.adapter.quiet, *(word for flag in where if flag in self.given.flags for word in where[flag]))


def _on_nodes(counts: Sequence[int], nodes: Nodes) -> tuple[int, ...]:
    """Devices of a pool on each node; one number alone is of the first."""
    return tuple(counts) + (0,) * (len(nodes) - 1) if len(counts) == 1 else tuple(counts)
