"""Why the commands of a job of the user's cannot be run as they are, whatever the placement."""

import os
from collections.abc import Iterator

from placebench.jobs.adapters.command import COMMAND
from placebench.jobs.arguments import lost_arguments
from placebench.jobs.job import Job
from placebench.jobs.programs import is_program, missing_program
from placebench.jobs.python_path import replaced_path
from placebench.jobs.scripts import read_command
from placebench.jobs.spec import JobSpec


def unusable(job: Job) -> Iterator[str]:
    """A line for every reason."""
    spec, path = job.spec, _path(job.spec)
    for name, words in (("command", spec.command), ("before", spec.before), ("after", spec.after)):
        yield from missing_program(name, words, spec.cwd, path)
    if _gives_arguments(job) and (reason := lost_arguments(job.given, spec.job)):
        yield f"command: {reason}"
    yield from _lost_modules(job)
    if spec.ray_use == "none" and any("{ray_address}" in text for text in _texts(spec)):
        yield "ray: the job has no Ray, but uses {ray_address}: write ray: own, or HOST:PORT"
    yield from lacks_ray(job)
    if spec.ray_address and job.adapter.env and not spec.attach:
        yield (
            f"attach: false: workers of the Ray at {spec.ray_address} would not get the variables that tell {spec.job}"
            " its placement: leave it out"
        )


def _gives_arguments(job: Job) -> bool:
    """Whether the command is given more than it says: not where it is watched alone, and left as it is."""
    spec = job.spec
    is_left = spec.until_end and not spec.quiet and all(map(job.is_own, spec.placements))
    return (job.adapter is not COMMAND and not is_left) or any(one.args for one in spec.placements.values())


def _lost_modules(job: Job) -> Iterator[str]:
    """Modules of placebench's without which the job fails, and which its processes would not find."""
    needs = [f"placebench's module for {job.spec.job}"] if "PYTHONPATH" in job.adapter.env else []
    needs += ["the hooks that Ray loads for the cluster's workers"] if job.spec.ray_address and job.spec.attach else []
    if needs and (where := replaced_path(job.given)):
        yield (
            f"command: {where} drops what PYTHONPATH had before, and with it {' and '.join(needs)}: append"
            " :$PYTHONPATH to it"
        )


def _path(spec: JobSpec) -> str:
    """Where its programs are looked for."""
    path = f"{spec.python / 'bin'}{os.pathsep}" if spec.python else ""
    return path + spec.env.get("PATH", os.environ.get("PATH", os.defpath))


def _texts(spec: JobSpec) -> Iterator[str]:
    """What is given to its processes, by any of its placements: where the address of a Ray may stand."""
    yield from (*spec.command, *spec.before, *spec.env.values())
    for one in spec.placements.values():
        yield from (*one.args, *one.env.values())


def lacks_ray(job: Job, nodes: int = 1) -> Iterator[str]:
    """That nothing starts the Ray that it needs, on so many nodes."""
    spec = job.spec
    if job.starts_ray(_texts(spec), nodes) and not is_program("ray", spec.cwd, _path(spec)):
        yield (
            "ray: there is no program ray on PATH to start the job's own Ray: activate the environment of its"
            " framework, or name that environment as python in a job file"
        )


def dangers(job: Job) -> Iterator[str]:
    """Lines of its scripts that would end placebench, or what others run."""
    for line in (*job.given.dangers, *_dangers_beside(job.spec)):
        yield f"{line} would end processes that are not the job's: take it out, or run with --allow-kill"


def _dangers_beside(spec: JobSpec) -> Iterator[str]:
    for name, words in (("before", spec.before), ("after", spec.after)):
        if words:
            yield from (line.replace("the command", name, 1) for line in read_command(words, spec.cwd).dangers)
