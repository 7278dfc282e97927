"""A run's tables as files for other programs: CSV and Parquet."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from placebench.compare.read.run import Run
from placebench.compare.read.run_reading import load_run
from placebench.out.loaded import LoadedRun
from placebench.out.tables import TABLES
from placebench.record.writing import making_folder, replacing, write_atomically
from placebench.spec.legible import sheet_cell


def tables_of(run: Run) -> dict[str, pd.DataFrame]:
    """Every table of a run by the name of its file."""
    comparison = LoadedRun(run.folder.path).compare().table
    return {name: table(run) for name, table in TABLES.items()} | {"comparison": comparison}


def csv_text(table: pd.DataFrame) -> str:
    """A table as CSV, in which no cell is a formula to a spreadsheet; what is missing is empty."""
    texts = {name: table[name].map(_cell) for name in table.select_dtypes(exclude=["number", "bool"]).columns}
    changed = table.assign(**texts).rename(columns=sheet_cell)
    return changed.to_csv(index=False, lineterminator="\n")


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
    tables = tables_of(load_run(path))
    with making_folder(where):
        for name, table in tables.items():
            write(table, where / f"{name}.{suffix}")
    return str(where)


def _cell(value: object) -> object:
    return sheet_cell(value) if isinstance(value, str) else value
