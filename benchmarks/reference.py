"""Keep what a finished run shows: its summary, report, plots and trace, small enough for a repository.

    python benchmarks/reference.py RUN --into runs/reference/HOST/NAME [--note TEXT]

Rebuilds the report from a copy of the run and keeps it, of the trace the first launch of each placement, and writes
`commands.md`: the exact commands, also those that went on with the run, the host's devices, the versions that made the
figures, and what is to be known of them. The commands of the reference results stand in benchmarks/README.md.
"""

import gzip
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from placebench.record.run_file import RunFile
from placebench.spec.text import plural

KEPT = ("summary.json", "report.md")
TRACE = "trace.json.gz"


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--into", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder to make.")
@click.option("--note", "notes", multiple=True, help="A sentence on the figures for commands.md; repeatable.")
def main(run: Path, into: Path, notes: tuple[str, ...]) -> None:
    """Copy the report of RUN into a folder."""
    shutil.rmtree(into, ignore_errors=True)
    (into / "plots").mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="pb-reference-") as folder:
        copy = Path(shutil.copytree(run, Path(folder, run.name)))
        record = _without_paths(RunFile.read(copy / "run.json"))
        record.write(copy / "run.json")
        subprocess.run([sys.executable, "-m", "placebench", "report", str(copy)], check=True, stdout=subprocess.DEVNULL)
        for name in KEPT:
            shutil.copy(copy / name, into / name)
        _keep_first_launches(copy / TRACE, into / TRACE)
        for plot in sorted((copy / "plots").glob("*.svg")):
            shutil.copy(plot, into / "plots" / plot.name)
    lines = [*_describe(record, into), *(f"- {note}" for note in notes)]
    (into / "commands.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in into.rglob("*") if file.is_file())
    print(f"{into}: {size / 1e6:.1f} MB")


def _keep_first_launches(trace: Path, into: Path) -> None:
    with gzip.open(trace, "rt", encoding="utf-8") as stream:
        content = json.load(stream)
    events = content["traceEvents"]
    launches = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    content["traceEvents"] = [event for event in events if launches[event["pid"]].startswith("round 1 ")]
    packed = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)
    into.write_bytes(packed)


def _describe(record: RunFile, into: Path) -> list[str]:
    run = _run_glob(record)
    return [
        f"# {into.name}",
        "",
        "```bash",
        shlex.join(record.command),
        *(_line(resumption.command, run) for resumption in record.resumptions),
        f"python benchmarks/reference.py {run} --into {_in_checkout(into)}",
        "```",
        "",
        *facts(record),
        f"- started {record.started}; {plural(record.rounds, 'launch', 'launches')} of each placement",
    ]


def _in_checkout(folder: Path) -> Path:
    """A folder of this checkout as its root has it, wherever that lies on this host."""
    root, resolved = Path(__file__).resolve().parents[1], folder.resolve()
    return resolved.relative_to(root) if resolved.is_relative_to(root) else folder


def facts(record: RunFile) -> list[str]:
    """The host's devices and the versions that made the figures, as items of a Markdown list."""
    devices = Counter(device.name for device in record.devices)
    driver, memory = record.host["driver"], record.host["memory_bytes"]
    return [
        f"- {', '.join(f'{count} × {name}' for name, count in devices.items())}"
        + (f", driver {driver}" if driver else "")
        + f", {record.host['cpu_model']}, {memory / 2**30:.0f} GiB of memory",
        "- "
        + ", ".join(f"{name} {version}" for name, version in record.versions.items() if version)
        + (f"; commit {record.git['commit'][:7]}" if record.git else ""),
    ]


def _without_paths(record: RunFile) -> RunFile:
    """The record, its commands without what says only where files lay on that host."""
    resumptions = [
        one.model_copy(update={"command": _without_out(_of_run(one.command, _run_glob(record)))})
        for one in record.resumptions
    ]
    changes = {"command": _without_out(record.command), "resumptions": tuple(resumptions)}
    return record.model_copy(update=changes)


def _run_glob(record: RunFile) -> str:
    return f"runs/*-{record.name}"


def _line(command: Sequence[str], run: str) -> str:
    """The command for a shell, which is to resolve the run's folder."""
    return " ".join(word if word == run else shlex.quote(word) for word in command)


def _of_run(command: Sequence[str], run: str) -> tuple[str, ...]:
    """The command with the run in place of what `--resume` named on that host."""
    words = _apart(command, "--resume")
    if "--resume" not in words:
        return words
    at = words.index("--resume")
    return (*words[: at + 1], run, *words[at + 2 :])


def _without_out(command: Sequence[str]) -> tuple[str, ...]:
    """The command without `--out`, which says only where the files lay on that host."""
    words = _apart(command, "--out")
    if "--out" not in words:
        return words
    at = words.index("--out")
    return words[:at] + words[at + 2 :]


def _apart(command: Sequence[str], option: str) -> tuple[str, ...]:
    """The command with option and value as two words, where they were one."""
    return tuple(part for word in command for part in (word.split("=", 1) if word.startswith(f"{option}=") else [word]))


if __name__ == "__main__":
    main()
