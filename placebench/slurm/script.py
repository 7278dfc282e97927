"""The batch script that `placebench slurm submit` hands to sbatch."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from placebench.errors import UsageError
from placebench.spec.launchers import COMMAND, RAY, TORCHRUN
from placebench.spec.legible import shown, visible

DEFAULT_GRACE_S = 120
# sbatch's --signal takes no more; of nodes, GPUs of a node, and days no cluster has more.
MOST_GRACE_S, MOST_NODES, MOST_GPUS, _MOST_DAYS = 65_535, 100_000, 1000, 1000
# With DETAIL, DDP over gloo ends in a segmentation fault (torch 2.13).
_DEBUG = {"NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"}

# Options of sbatch that say what the script itself decides, and what to use instead.
_DECIDED = {
    "--array": "submit several jobs",
    "--chdir": "the job runs in the folder that it is submitted from",
    "--error": "all output is in the job's folder, see --logs",
    "--gpus": "give --gpus-per-node",
    "--gpus-per-socket": "give --gpus-per-node",
    "--gpus-per-task": "give --gpus-per-node",
    "--gres": "give --gpus-per-node",
    "--no-requeue": "leave --requeue out",
    "--nodes": "write --nodes in full",
    "--ntasks": "there is one task a node",
    "--ntasks-per-node": "there is one task a node",
    "--open-mode": "all output is in the job's folder, see --logs",
    "--output": "all output is in the job's folder, see --logs",
    "--signal": "give --grace",
    "--wrap": "write the command after --",
}
_WHOLE_NODES = ("--exclusive", "--oversubscribe", "--cpus-per-task", "--cpus-per-gpu")
_SHORT = {
    "-D": "--chdir",
    "-G": "--gpus",
    "-N": "--nodes",
    "-a": "--array",
    "-c": "--cpus-per-task",
    "-e": "--error",
    "-n": "--ntasks",
    "-o": "--output",
    "-s": "--oversubscribe",
    "-t": "--time",
}
_WHAT_IT_DOES = {
    RAY: "Starts Ray on every node of the allocation, runs placebench on it",
    TORCHRUN: "Runs placebench, which starts torchrun on the nodes of the allocation",
    COMMAND: "Runs placebench, with a command of yours on the nodes of the allocation as its launches",
}
# Minutes, minutes:seconds, hours:minutes:seconds; days-hours, days-hours:minutes, days-hours:minutes:seconds.
_TIME = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")
# Options of `placebench run` that the job decides.
_JOB_OPTIONS = ("--out", "--ray-address", "--resume")


@dataclass(frozen=True)
class Submission:
    """A job to submit."""

    nodes: int
    """Nodes of the job."""
    gpus_per_node: int
    """GPUs of each; 0 for CPU devices."""
    run: tuple[str, ...]
    """Arguments of `placebench`, from `run` on."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch, word for word."""
    logs: Path = Path("logs")
    """Folder of the jobs' folders, below the one it is submitted from."""
    folder: Path = Path()
    """Where it is submitted from."""
    grace_s: int = DEFAULT_GRACE_S
    """Seconds before the time limit at which the run is stopped in order."""
    requeues: bool = False
    """Whether a job that its time limit or a preemption has stopped is queued again and goes on."""
    debug: bool = False
    """Whether NCCL and torch.distributed say what they do."""
    launcher: str = RAY
    """Launcher of the run, one of `launchers.LAUNCHERS`; `launchers.COMMAND` of a job of the user's."""


def batch_script(job: Submission) -> str:
    """The script of a job.

    Raises:
        UsageError: an option belongs to the script itself, or the command is not a `run`; one line for every reason.
    """
    refuse_wrong(job)
    options = [
        "--job-name=placebench",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []),
        # Others on the same node would be measured too.
        *([] if any(_sbatch_name(word) in _WHOLE_NODES for word in job.sbatch) else ["--exclusive"]),
        _quoted(f"--output={job.logs}/placebench_%j.slurm"),
        "--open-mode=append",
        "--no-kill",  # the run says itself which node it has lost
        f"--signal=B:USR1@{job.grace_s}",
        "--requeue" if job.requeues else "--no-requeue",
        *_lines(job.sbatch),
    ]
    words = [
        sys.executable,
        "-m",
        "placebench.slurm.job",
        f"--logs={job.logs}",
        f"--gpus-per-node={job.gpus_per_node}",
        *(["--requeue"] if job.requeues else []),
        *([f"--launcher={job.launcher}"] if job.launcher != RAY else []),
        "--",
        *job.run,
    ]
    exports = [f"export {name}={value}" for name, value in _DEBUG.items()] if job.debug else []
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            *(f"#SBATCH {option}" for option in options),
            "",
            f"# {_WHAT_IT_DOES[job.launcher]}, and sums up what came of it.",
            "set -euo pipefail",
            f"cd {shlex.quote(str(job.folder))}",
            *exports,
            f"exec {shlex.join(words)}",
            "",
        ]
    )


def refuse_wrong(job: Submission) -> None:
    """Check what can be checked without SLURM.

    Raises:
        UsageError: one line for every reason.
    """
    reasons = []
    if not job.run or job.run[0] != "run":
        given = shlex.join(job.run) or "nothing"
        reasons.append(f"the command after -- is {given}: write -- run and its options, such as -- run --rounds 5")
    for word in job.run:
        if _name(word) in _JOB_OPTIONS:
            reasons.append(f"{_name(word)} after --: the job sets it itself; leave it out")
    for word in job.sbatch:
        if (name := _sbatch_name(word)) in _DECIDED:
            reasons.append(f"{name}: the script sets it itself; {_DECIDED[name]}")
    if job.sbatch and not job.sbatch[0].startswith("-"):
        reasons.append(f"{shown(job.sbatch[0])} is neither an option of sbatch nor after --")
    reasons += _too_short(job)
    for word in (*job.run, *job.sbatch, str(job.logs), str(job.folder)):
        if visible(word) != word:
            reasons.append(f"{shown(word)} has a character that a line of the script cannot hold: leave it out")
    if reasons:
        raise UsageError(*reasons)


def _too_short(job: Submission) -> Iterator[str]:
    """Why SLURM would stop the job as soon as it begins, and with --requeue again and again."""
    for word, following in zip(job.sbatch, (*job.sbatch[1:], ""), strict=False):
        if _sbatch_name(word) != "--time":
            continue
        if word not in ("--time", "-t"):
            limit = word.partition("=")[2] if word.startswith("--") else word[2:]
        else:
            limit = "" if following.startswith("-") else following
        seconds = _seconds(limit)
        if not limit:
            yield f"{word}: there is no time limit after it: write for example --time 4:00:00"
        elif seconds is not None and seconds > _MOST_DAYS * 86_400:
            yield f"--time {limit}: longer than {_MOST_DAYS:,} days: give less, or 0 for no limit"
        elif seconds is not None and 0 < seconds <= job.grace_s:
            yield (
                f"--time {limit}: the run is stopped {job.grace_s} s (--grace) before its limit, which is as soon as it"
                " begins: give it more time, or a shorter --grace"
            )


def _seconds(limit: str) -> int | None:
    """A time limit of SLURM, which counts whole minutes; 0 is no limit, None one that cannot be read here."""
    match = _TIME.fullmatch(limit)
    if match is None:
        return None
    days, *numbers = (None if part is None else int(part) for part in match.groups())
    given = [number for number in numbers if number is not None]
    if days is None:
        # One number is of minutes, two are of minutes and seconds.
        hours, minutes, seconds = [0, *given, 0][:3] if len(given) < 3 else given
    else:
        hours, minutes, seconds = [*given, 0, 0][:3]
    total = (24 * (days or 0) + hours) * 3600 + minutes * 60 + seconds
    return -(-total // 60) * 60


def _name(word: str) -> str:
    return word.partition("=")[0]


def _sbatch_name(word: str) -> str:
    """The option of sbatch that a word begins with, in full: of -c4, -c and --cpus-per-task=4 the same."""
    return _name(word) if word.startswith("--") else _SHORT.get(word[:2], word)


def _lines(words: Sequence[str]) -> list[str]:
    """Options of sbatch, each with its value if that is a word of its own."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") or not lines:
            lines.append(_quoted(word))
        else:
            lines[-1] += f" {_quoted(word)}"
    return lines


def _quoted(word: str) -> str:
    """A word as sbatch reads it from a script: in double quotes where it has blanks or marks of its own."""
    if not any(char.isspace() or char in "#\"'\\" for char in word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
