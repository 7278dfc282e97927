"""`placebench slurm submit`: a run as a job of SLURM."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from placebench.commands.options import WholeRange, option, split_at_dashes
from placebench.commands.outputs import OutputPath
from placebench.commands.run import run
from placebench.commands.run_options import read_request
from placebench.errors import PlacebenchError, Reasons, UsageError
from placebench.host.terminal import say
from placebench.slurm.script import DEFAULT_GRACE_S, MOST_GPUS, MOST_GRACE_S, MOST_NODES

if TYPE_CHECKING:
    from placebench.plan.request import RunRequest

_EXAMPLES = """\b
Examples:
  placebench slurm submit --nodes 2 --gpus-per-node 4 --time 4:00:00 -- run
  placebench slurm submit --nodes 1 --print -- run --devices cpu:2
"""


class _WithCommand(click.Command):
    """Takes everything after -- as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the words after -- aside, and parse the others."""
        before, after = split_at_dashes(args)
        ctx.meta["placebench.after"] = tuple(after)
        return super().parse_args(ctx, ["--help" if word == "-h" else word for word in before])


@click.group(epilog=_EXAMPLES)
def slurm() -> None:
    """Submit a run as a job of SLURM."""


@slurm.command(
    cls=_WithCommand,
    epilog=f"Options that are not listed are sbatch's own and go into the script.\n\n{_EXAMPLES}",
    short_help="Submit a run as a SLURM job, on one or several nodes.",
    # No -h here: it would be found within short options of sbatch, such as -phopper. A word -h is read above.
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
    options_metavar="[OPTIONS] [SBATCH OPTIONS] -- run [RUN OPTIONS]",
)
@option("--nodes", type=WholeRange(1, MOST_NODES), default=1, show_default=True, metavar="N", help="Nodes of the job.")
@option(
    "--gpus-per-node",
    type=WholeRange(0, MOST_GPUS),
    default=0,
    show_default=True,
    metavar="N",
    help="GPUs of each; 0: CPU devices.",
)
@option(
    "--logs",
    type=OutputPath(is_folder=True),
    default="logs",
    show_default=True,
    metavar="FOLDER",
    help="Folder of the jobs' folders.",
)
@option(
    "--grace",
    "grace_s",
    type=WholeRange(30, MOST_GRACE_S),
    default=DEFAULT_GRACE_S,
    show_default=True,
    metavar="SECONDS",
    help="Stop the run cleanly this long before the time limit.",
)
@option("--requeue", "requeues", is_flag=True, help="Queue the job again at its time limit; it then goes on.")
@option("--debug", is_flag=True, help="Let NCCL and torch.distributed print what they do.")
@option("--print", "only_print", is_flag=True, help="Print the batch script and submit nothing.")
@click.argument("sbatch", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.pass_context
def submit(ctx: click.Context, /, only_print: bool, **given: Any) -> None:
    """Submit a run as a SLURM job, with Ray or torchrun on every node, or a command of yours."""
    from placebench.slurm.checks import refuse_impossible
    from placebench.slurm.script import Submission, batch_script
    from placebench.spec.launchers import COMMAND, RAY

    words = ctx.meta["placebench.after"]
    request = _read_run(words[1:]) if words[:1] == ("run",) else None
    launcher = request.launcher if request and request.launcher else RAY
    if request and request.job is not None:
        launcher = COMMAND
    job = Submission(run=words, folder=Path.cwd(), launcher=launcher, **given)
    reasons = Reasons()
    script = reasons.attempt(lambda: batch_script(job))
    if request:
        reasons.attempt(lambda: refuse_impossible(request, job.nodes, job.gpus_per_node))
    reasons.raise_any()
    assert script is not None
    if only_print:
        click.echo(script, nl=False)  # noqa: TID251 - a file; what it could not show is refused
    else:
        say(_sbatch(script, job.logs))


# What says how a run starts and what follows it, not what it is.
_OF_ITS_START = ("resume", "serve_port", "trackers", "write_config")


def _read_run(words: tuple[str, ...]) -> "RunRequest":
    """The run: it is to be wrong now, and not when the job has waited for its nodes."""
    given = run.make_context("placebench run", list(words)).params
    return read_request({name: value for name, value in given.items() if name not in _OF_ITS_START})


def _sbatch(script: str, logs: Path) -> str:
    """Hand the script to sbatch; returns what it says.

    Raises:
        UsageError: sbatch refuses it.
        PlacebenchError: there is no SLURM here.
    """
    import subprocess

    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--logs {logs}: cannot be made: {error.strerror}; name another folder") from None
    if not os.access(logs, os.W_OK | os.X_OK):
        raise UsageError(f"--logs {logs}: no permission to write there; name another folder")
    try:
        done = subprocess.run(["sbatch"], input=script, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PlacebenchError(
            "sbatch is not installed here: submit from a login node of the cluster, or see the script with --print"
        ) from None
    if done.returncode:
        raise UsageError(f"sbatch refuses the job: {_reason(done.stderr) or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def _reason(said: str) -> str:
    """What sbatch says of a job that it refuses: its errors, else its last line; empty where it says nothing."""
    lines = [line.strip().removeprefix("sbatch: ") for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return "; ".join(errors or lines[-1:])
