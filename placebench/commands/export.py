"""Exporting a run to trackers and files."""

from pathlib import Path

import click

from placebench.commands.completion import complete_runs
from placebench.commands.group import readers_may_leave
from placebench.commands.options import option
from placebench.commands.outputs import OutputPath, writing
from placebench.commands.tracking import TRACKERS
from placebench.errors import UsageError
from placebench.host.terminal import say

_EXAMPLES = """\b
Examples:
  placebench export latest --to parquet --out tables
  placebench export latest --to tensorboard --to otlp-json
"""
_TARGETS = (*TRACKERS, "parquet", "csv", "otlp-json")


@click.command(epilog=_EXAMPLES, short_help="Export a run to W&B, TensorBoard, MLflow, or files.")
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
@option("--to", "targets", type=click.Choice(_TARGETS), multiple=True, required=True, help="Where to; repeatable.")
@option(
    "--out",
    type=OutputPath(is_folder=True),
    metavar="PATH",
    help="Folder to write; for otlp-json, the file.  [default: export/ in the run's folder]",
)
def export(run: str, targets: tuple[str, ...], out: Path | None) -> None:
    """Export a run's steps, phases, devices and ratios to trackers or files.

    A launch is a run of the tracker, the comparison one more with the report as its artifact, all in one group. wandb
    and mlflow go where their own settings say, such as WANDB_MODE and MLFLOW_TRACKING_URI; --out keeps them in a
    folder.
    """
    from placebench.out.export import check_clients
    from placebench.out.export import export as export_run
    from placebench.record.named_runs import find_run

    if out is not None and len(set(targets)) > 1:
        raise UsageError(f"--out {out}: {len(set(targets))} targets are named with --to: name one")
    check_clients(targets)
    path = find_run(run)
    for name in dict.fromkeys(targets):
        with writing("--out", out or path):
            place = export_run(path, name, out)
        with readers_may_leave():
            say(f"{name}: {place}")
