"""A run's tables as files for other programs: CSV and Parquet."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from placebench.compare.read.run_reading import load_run
from placebench.out.loaded import LoadedRun
from placebench.out.share import csv_text
from placebench.out.tables import TABLES
from placebench.record.folder import replacing, write_atomically


def write_csv(path: Path, where: Path) -> str:
    """Write a run's tables as CSV, in which no cell is a formula to a spreadsheet; returns the folder."""
    return _write(path, where, "csv", lambda table, file: write_atomically(file, csv_text(table)))


def write_parquet(path: Path, where: Path) -> str:
    """Write a run's tables as Parquet; returns the folder."""

    def write(table: pd.DataFrame, file: Path) -> None:
        with replacing(file) as scratch:
            table.to_parquet(scratch, index=False)

    return _write(path, where, "parquet", write)


def _write(path: Path, where: Path, suffix: str, write: Callable[[pd.DataFrame, Path], None]) -> str:
    run = load_run(path)
    where.mkdir(parents=True, exist_ok=True)
    tables = {name: table(run) for name, table in TABLES.items()} | {"comparison": LoadedRun(path).compare().table}
    for name, table in tables.items():
        write(table, where / f"{name}.{suffix}")
    return str(where)
