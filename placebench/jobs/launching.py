"""A job of the user's under a placement: the placements it can have, and what a launch of one starts."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType

from placebench.errors import Reasons, UsageError
from placebench.host.network import free_ports
from placebench.jobs.adapter import Adapter, AskedPlacement, Settings, Training
from placebench.jobs.adapters.command import COMMAND
from placebench.jobs.attach.environment import PASSED_ON, attached
from placebench.jobs.command_lines import with_args, with_launcher_args
from placebench.jobs.log_files import log_patterns
from placebench.jobs.places import RENDEZVOUS, places_of, ray_node
from placebench.jobs.programs import in_home
from placebench.jobs.python_path import replaced_path
from placebench.jobs.registry import ADAPTERS
from placebench.jobs.scripts import WORKED_OUT, Given, read_command
from placebench.jobs.spec import JobSpec, PlacementOfJob, fill
from placebench.record.folder import Trial
from placebench.record.job_record import Companion, JobLaunch, JobRecord, JobWork, NodeCommand
from placebench.sessions.base import LOOPBACK
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device, Kind
from placebench.spec.legible import shown
from placebench.spec.nearest import did_you_mean
from placebench.spec.placement import Placement, Pool, Role
from placebench.spec.presets import Nodes
from placebench.spec.shapes import JobShapes, ModelShape, model_shape
from placebench.spec.text import few
from placebench.spec.words import given_twice, names_file, parse_placement, preset_of, split_words

# Variables that are lists, which the user's may already be: how the adapter's part and the user's are put together.
_LISTS: Mapping[str, str] = {"PYTHONPATH": "{mine}:{users}", "VERL_USE_EXTERNAL_MODULES": "{users},{mine}"}


def launch_names(folder: Path, round_number: int, ray_temp_dir: Path) -> dict[str, str]:
    """What stands in braces of a launch, but for what follows from its job and placement.

    Args:
        folder: the launch's own.
        round_number: its round, counted from 1.
        ray_temp_dir: folder of the launch's own Ray.
    """
    head, master, *ports = free_ports(6)
    return {
        "folder": str(folder.absolute()),
        "round": str(round_number),
        "ray_temp_dir": str(ray_temp_dir),
        "ray_address": f"{LOOPBACK}:{head}",
        "master": LOOPBACK,
        "master_port": str(master),
        **{f"port{number}": str(port) for number, port in enumerate(ports, start=1)},
    }


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
            f"{where} leaves out what stands in PYTHONPATH, so that placebench's hooks write no spans: append"
            " :$PYTHONPATH to it."
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
        self._settings(placement, kind)  # it says why the framework cannot be told so
        return placement

    def read_word(self, word: str, nodes: Nodes | None) -> Placement:
        """The placement that a word of placebench, or a file, stands for.

        Raises:
            UsageError: there is none, nor is it a name of the job's; a line for every reason.
        """
        if (own := self.spec.placements) and preset_of(word) is None and not names_file(word):
            raise UsageError(
                f"unknown placement {shown(word)}: use {few(own, ', ')} of the job file, or what placebench placements"
                f" lists{did_you_mean(word, own)}"
            )
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
            f"placement {shown(name)}: pools.{pool.name}: {shown(list(given[pool.name]))} must be a count for each of"
            f" the nodes ({len(nodes)}), and some device"
            for pool in pools
            if len(pool.counts) != len(nodes) or not pool.size
        ]
        for node, have in enumerate(nodes):
            need = sum(pool.counts[node] for pool in pools if len(pool.counts) == len(nodes))
            if need > have:
                wrong.append(f"placement {shown(name)}: its pools need {need} devices on node {node}, there are {have}")
        if wrong:
            raise UsageError(*wrong)
        return Placement(name, pools, {})

    def _settings(self, placement: Placement, kind: Kind) -> Settings:
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
        settings = self._settings(self.placement(word, nodes, kind), kind)
        own = self.spec.placements.get(word, PlacementOfJob())
        return replace(settings, args=(*settings.args, *own.args), env={**settings.env, **own.env})

    def launch(
        self, bound: RunPlacement, names: Mapping[str, str], addresses: Mapping[str, str] = MappingProxyType({})
    ) -> JobLaunch:
        """What a launch starts.

        Args:
            bound: its placement.
            names: what stands in braces; those that follow from job and placement are added.
            addresses: by which the nodes of its devices reach each other, by their names, the first node first; none
                for devices of this host.
        """
        spec, placement = self.spec, bound.placement
        devices = [device for members in bound.members.values() for device in members]
        settings = self._settings(placement, devices[0].kind)
        own = spec.placements.get(placement.name, PlacementOfJob())
        ranks = placement.pool_of(Role.ACTOR).size if placement.roles else len(devices)
        ray = spec.ray_use
        places = places_of(devices, addresses)
        first, *others = places
        master, head = addresses.get(first, names["master"]), names["ray_address"].rpartition(":")[2]
        names = {
            **names,
            "steps": str(spec.steps),
            "placement": placement.name,
            "seed": str(spec.seed),
            "n_devices": str(len(devices)),
            "n_ranks": str(ranks),
            "nodes": str(len(places)),
            "master": master,
            "ray_address": f"{master}:{head}" if ray == "own" else ray,
        }
        quiet = self._quiet if spec.quiet else ()
        limits = () if spec.until_end else self.adapter.limits(spec.steps)
        starts_on_all = self.starts_on_all(len(places))
        joins = spec.ray_address or (ray == "own" and starts_on_all)
        args = (*settings.args, *limits, *quiet, *(self.adapter.joining if joins else ()), *own.args)
        command = with_args(with_launcher_args(spec.command, settings.launcher_args), args)
        env = (RENDEZVOUS if starts_on_all and ray == "none" else {}) | self._environment(settings, own, ray, names)
        texts = (*command, *spec.before, *env.values())
        ray_head = names["ray_address"] if self.starts_ray(texts, len(places)) else None
        apart = [device for one in settings.beside for device in bound.members[one.pool]]
        parts = []
        for rank, (node, here) in enumerate(places.items() if starts_on_all else [(first, places[first])]):
            known = {**names, "node_rank": str(rank), "n_local": str(len(here)), "devices": _indices(here)}
            # Of a cluster's nodes it is not known on which the command starts, and Ray says what its workers see.
            own_devices = () if others and spec.ray_address else [device for device in here if device not in apart]
            words = ray_node(ray_head, addresses[node], node) if rank and ray_head else command
            part_env = _visible(own_devices) | {name: fill(text, known) for name, text in env.items()}
            parts.append(NodeCommand(node=node, command=tuple(fill(word, known) for word in words), env=part_env))
        names |= {"node_rank": "0", "n_local": str(len(places[first])), "devices": _indices(places[first])}
        log_files = self.adapter.log_files if spec.log.files is None else spec.log.files
        patterns = log_patterns(log_files, names, spec.cwd)
        return JobLaunch(
            framework=spec.job,
            command=parts[0].command,
            env=parts[0].env,
            elsewhere=tuple(parts[1:]),
            cwd=str(spec.cwd.absolute()),
            steps=spec.steps,
            until_end=spec.until_end,
            companions=tuple(
                Companion(
                    name=one.name,
                    command=tuple(fill(word, names) for word in one.command),
                    env=_visible(bound.members[one.pool]),
                )
                for one in settings.beside
            ),
            before=tuple(fill(word, names) for word in spec.before),
            after=tuple(fill(word, names) for word in spec.after),
            ray=ray,
            ray_head=ray_head,
            log_files=patterns,
            log_format=spec.log.format or self.adapter.log_format,
            settled_flags=self.adapter.settled,
            phases=spec.phases,
            attach=spec.attach,
            timers={**self.adapter.timers, **spec.phases},
            learner_ranks=ranks,
            sequences=self._sequences(ranks),
        )

    def _sequences(self, ranks: int) -> int | None:
        training = self._training
        if training is None or training.sequences is None:
            return None
        return training.sequences * (ranks if training.per_rank else 1)

    @property
    def _quiet(self) -> tuple[str, ...]:
        """Arguments that switch off what is no training."""
        where = self.adapter.quiet_where
        return (*self.adapter.quiet, *(word for flag in where if flag in self.given.flags for word in where[flag]))

    def _environment(
        self, settings: Settings, own: PlacementOfJob, ray: str, names: Mapping[str, str]
    ) -> dict[str, str]:
        """Variables of the job, the user's own over those of the adapter."""
        of_user = {**self.spec.env, **own.env}
        if self.spec.python:
            path = of_user.get("PATH", os.environ.get("PATH", os.defpath))
            of_user |= {"PATH": f"{self.spec.python / 'bin'}{os.pathsep}{path}", "VIRTUAL_ENV": str(self.spec.python)}
        env = {**self.adapter.env, **settings.env}
        for name, form in _LISTS.items():
            if name in env and (users := of_user.pop(name, os.environ.get(name))):
                env[name] = form.format(mine=env[name], users=users)
        if ray == "own":
            env |= {"RAY_TMPDIR": names["ray_temp_dir"], "RAY_USAGE_STATS_ENABLED": "0"}
        elif ray != "none":
            env["RAY_ADDRESS"] = ray
        env = {**env, **of_user}
        if not self.spec.attach:
            return env
        if own_path := env.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")):
            env["PYTHONPATH"] = own_path
        if self.spec.ray_address:  # whose workers do not inherit what the adapter tells its modules
            told = {**self.adapter.env, **settings.env, **self.spec.env, **own.env}.keys() - {"PATH", "PYTHONPATH"}
            env[PASSED_ON] = ",".join(sorted(told))
        # Of a Ray of its own the workers inherit the environment.
        joins = ray == "none" and (of_user.get("RAY_ADDRESS") or os.environ.get("RAY_ADDRESS"))
        return attached(env, Trial(Path("{folder}")).attached, is_on_cluster=bool(self.spec.ray_address or joins))


def _on_nodes(counts: Sequence[int], nodes: Nodes) -> tuple[int, ...]:
    """Devices of a pool on each node; one number alone is of the first."""
    return tuple(counts) + (0,) * (len(nodes) - 1) if len(counts) == 1 else tuple(counts)


def _indices(devices: Sequence[Device]) -> str:
    return ",".join(str(device.index) for device in devices)


def _visible(devices: Sequence[Device]) -> dict[str, str]:
    """What lets a process see these GPUs alone, by the driver's numbers of them."""
    if not devices or devices[0].kind == "cpu":
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": _indices(devices)}
