"""What a launch of a job of the user's starts: its command on each node, with what stands in braces filled in."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from placebench.host.network import free_ports
from placebench.jobs.attach.environment import PASSED_ON, attached
from placebench.jobs.command_lines import with_args, with_launcher_args
from placebench.jobs.job import Job
from placebench.jobs.job_ray import ray_node
from placebench.jobs.log_files import log_patterns
from placebench.jobs.places import RENDEZVOUS, places_of
from placebench.jobs.spec import PlacementOfJob, fill
from placebench.record.folder import Trial
from placebench.record.job_record import Companion, JobLaunch, NodeCommand
from placebench.sessions.base import LOOPBACK
from placebench.spec.bound import RunPlacement
from placebench.spec.devices import Device
from placebench.spec.placement import Role

# Variables that are lists, which the user's may already be: how the adapter's part and the user's are put together.
_LISTS: Mapping[str, str] = {"PYTHONPATH": "{mine}:{users}", "VERL_USE_EXTERNAL_MODULES": "{users},{mine}"}


def names_in_braces(folder: Path, round_number: int, ray_temp_dir: Path) -> dict[str, str]:
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


def job_launch(
    job: Job, bound: RunPlacement, names: Mapping[str, str], addresses: Mapping[str, str] = MappingProxyType({})
) -> JobLaunch:
    """What a launch of a job starts.

    Args:
        job: the user's.
        bound: its placement.
        names: what stands in braces; those that follow from job and placement are added.
        addresses: by which the nodes of its devices reach each other, by their names, the first node first; none
            for devices of this host.
    """
    return _Start(job, bound, names, addresses).launch()


class _Start:
    """The start of a job under a placement; arguments as for `job_launch`."""

    def __init__(self, job: Job, bound: RunPlacement, names: Mapping[str, str], addresses: Mapping[str, str]) -> None:
        placement = bound.placement
        self._job, self._spec, self._bound, self._addresses = job, job.spec, bound, addresses
        devices = [device for members in bound.members.values() for device in members]
        self._settings = job.settings(placement, devices[0].kind)
        self._own = job.spec.placements.get(placement.name, PlacementOfJob())
        self._ranks = placement.pool_of(Role.ACTOR).size if placement.roles else len(devices)
        self._places = places_of(devices, addresses)
        self._is_on_all = job.starts_on_all(len(self._places))
        ray, master = job.spec.ray_use, addresses.get(next(iter(self._places)), names["master"])
        self._names = {
            **names,
            "steps": str(job.spec.steps),
            "placement": placement.name,
            "seed": str(job.spec.seed),
            "n_devices": str(len(devices)),
            "n_ranks": str(self._ranks),
            "nodes": str(len(self._places)),
            "master": master,
            "ray_address": f"{master}:{names['ray_address'].rpartition(':')[2]}" if ray == "own" else ray,
        }

    def launch(self) -> JobLaunch:
        """What is started."""
        spec, adapter = self._spec, self._job.adapter
        meets = self._is_on_all and spec.ray_use == "none"
        command, env = self._command(), (RENDEZVOUS if meets else {}) | self._environment()
        starts_ray = self._job.starts_ray((*command, *spec.before, *env.values()), len(self._places))
        ray_head = self._names["ray_address"] if starts_ray else None
        first, *others = self._node_commands(command, env, ray_head)
        names = self._names_on(0, next(iter(self._places.values())))
        return JobLaunch(
            framework=spec.job,
            command=first.command,
            env=first.env,
            elsewhere=tuple(others),
            cwd=str(spec.cwd.absolute()),
            steps=spec.steps,
            until_end=spec.until_end,
            companions=tuple(
                Companion(
                    name=one.name,
                    command=tuple(fill(word, names) for word in one.command),
                    env=_visible(self._bound.members[one.pool]),
                )
                for one in self._settings.beside
            ),
            before=tuple(fill(word, names) for word in spec.before),
            after=tuple(fill(word, names) for word in spec.after),
            ray=spec.ray_use,
            ray_head=ray_head,
            log_files=log_patterns(adapter.log_files if spec.log.files is None else spec.log.files, names, spec.cwd),
            log_format=spec.log.format or adapter.log_format,
            settled_flags=adapter.settled,
            phases=spec.phases,
            attach=spec.attach,
            timers={**adapter.timers, **spec.phases},
            learner_ranks=self._ranks,
            sequences=self._job.sequences(self._ranks),
        )

    def _command(self) -> tuple[str, ...]:
        """The user's command with all arguments that it is given; what is in braces is still to be filled."""
        spec, adapter, settings = self._spec, self._job.adapter, self._settings
        quiet = self._job.quiet if spec.quiet else ()
        limits = () if spec.until_end else adapter.limits(spec.steps)
        joins = spec.ray_address or (spec.ray_use == "own" and self._is_on_all)
        args = (*settings.args, *limits, *quiet, *(adapter.joining if joins else ()), *self._own.args)
        return with_args(with_launcher_args(spec.command, settings.launcher_args), args)

    def _node_commands(self, command: Sequence[str], env: Mapping[str, str], ray_head: str | None) -> list[NodeCommand]:
        """What is started on each node, the first one first: the command, or a node of a Ray whose head is there."""
        apart = [device for one in self._settings.beside for device in self._bound.members[one.pool]]
        # Of a cluster's nodes it is not known on which the command starts, and Ray says what its workers see.
        is_told_by_ray = len(self._places) > 1 and self._spec.ray_address
        started = list(self._places.items())[: None if self._is_on_all else 1]
        commands = []
        for rank, (node, here) in enumerate(started):
            names = self._names_on(rank, here)
            own = () if is_told_by_ray else [device for device in here if device not in apart]
            words = ray_node(ray_head, self._addresses[node], node) if rank and ray_head else command
            filled = {name: fill(text, names) for name, text in env.items()}
            commands.append(
                NodeCommand(node=node, command=tuple(fill(word, names) for word in words), env=_visible(own) | filled)
            )
        return commands

    def _names_on(self, rank: int, devices: Sequence[Device]) -> dict[str, str]:
        """What stands in braces on a node of that rank, with these devices."""
        on_node = {"node_rank": str(rank), "n_local": str(len(devices)), "devices": _indices(devices)}
        return {**self._names, **on_node}

    def _environment(self) -> dict[str, str]:
        """Variables of the job, the user's own over those of the adapter; what is in braces is still to be filled."""
        spec, adapter, settings, own = self._spec, self._job.adapter, self._settings, self._own
        ray = spec.ray_use
        of_user = {**spec.env, **own.env}
        if spec.python:
            path = of_user.get("PATH", os.environ.get("PATH", os.defpath))
            of_user |= {"PATH": f"{spec.python / 'bin'}{os.pathsep}{path}", "VIRTUAL_ENV": str(spec.python)}
        env = {**adapter.env, **settings.env}
        for name, form in _LISTS.items():
            if name in env and (users := of_user.pop(name, os.environ.get(name))):
                env[name] = form.format(mine=env[name], users=users)
        if ray == "own":
            env |= {"RAY_TMPDIR": self._names["ray_temp_dir"], "RAY_USAGE_STATS_ENABLED": "0"}
        elif ray != "none":
            env["RAY_ADDRESS"] = ray
        env = {**env, **of_user}
        if not spec.attach:
            return env
        if own_path := env.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")):
            env["PYTHONPATH"] = own_path
        if spec.ray_address:  # whose workers do not inherit what the adapter tells its modules
            told = {**adapter.env, **settings.env, **spec.env, **own.env}.keys() - {"PATH", "PYTHONPATH"}
            env[PASSED_ON] = ",".join(sorted(told))
        # Of a Ray of its own the workers inherit the environment.
        joins = ray == "none" and (of_user.get("RAY_ADDRESS") or os.environ.get("RAY_ADDRESS"))
        return attached(env, Trial(Path("{folder}")).attached, is_on_cluster=bool(spec.ray_address or joins))


def _indices(devices: Sequence[Device]) -> str:
    return ",".join(str(device.index) for device in devices)


def _visible(devices: Sequence[Device]) -> dict[str, str]:
    """What lets a process see these GPUs alone, by the driver's numbers of them."""
    if not devices or devices[0].kind == "cpu":
        return {}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": _indices(devices)}
