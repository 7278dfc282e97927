"""The job of the user's that was calibrated, as the command line of its run says it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from placebench.errors import UsageError

if TYPE_CHECKING:
    from placebench.jobs.job import Job
    from placebench.record.calibration_file import CalibrationFile

# Options of `run` that say nothing of what is run.
_OF_THE_COMMAND = ("resume", "serve_port", "trackers", "write_config")


def job_words(files: "Sequence[CalibrationFile]") -> tuple[str, ...]:
    """The words behind `placebench run` that started the job; none where nobody knows them."""
    command = next((file.command for file in files if file.command), ())
    # That of a shared run names no job, nor does one that has gone on.
    if tuple(command[1:2]) != ("run",) or not any(word.partition("=")[0] == "--job" for word in command):
        return ()
    return tuple(command[2:])


def calibrated_job(files: "Sequence[CalibrationFile]") -> "Job | None":
    """The job, which knows what its framework can be told; None where its command or its file is not here."""
    from placebench.commands.run import run
    from placebench.commands.run_options import read_request
    from placebench.jobs.job import Job
    from placebench.jobs.spec import read_job
    from placebench.spec.check import Facts

    if not (words := job_words(files)):
        return None
    try:
        given = run.make_context("run", list(words)).params
    except (click.ClickException, click.exceptions.Exit, UsageError):  # of another version, or changed
        return None
    request = read_request({name: value for name, value in given.items() if name not in _OF_THE_COMMAND})
    found = Facts()
    if request.job is None or "job" in request.unknown or read_job(request.job, request.origin, found):
        return None
    return Job(found["job"])
