"""A run into the places where people keep results: trackers through their own clients, and files of open formats."""

import contextlib
import errno
import logging
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from placebench.errors import LaunchError, MissingExtraError, PlacebenchError
from placebench.record.writing import making_folder

if TYPE_CHECKING:
    from placebench.out.tracked import TrackedRun


class ExportError(LaunchError):
    """A service or its client has failed."""


@dataclass(frozen=True)
class Target:
    """A place to export to."""

    write: Callable[[Path, Path | None], str]
    """Writes a run's folder to a path, None for the usual place; returns in words where it is now."""
    module: str | None = None
    """Its client; None where it needs none."""


def _tracked(path: Path) -> "TrackedRun":
    from placebench.compare.read.run_reading import load_run
    from placebench.out.tracked import track

    return track(load_run(path))


def _to_tensorboard(path: Path, out: Path | None) -> str:
    from placebench.out.to_tensorboard import write

    return write(_tracked(path), out or path / "export" / "tensorboard")


def _to_mlflow(path: Path, out: Path | None) -> str:
    from placebench.out.to_mlflow import write

    return write(_tracked(path), out)


def _to_wandb(path: Path, out: Path | None) -> str:
    from placebench.out.to_wandb import write

    return write(_tracked(path), out)


def _to_csv(path: Path, out: Path | None) -> str:
    from placebench.out.to_files import write_csv

    return write_csv(path, out or path / "export" / "csv")


def _to_parquet(path: Path, out: Path | None) -> str:
    from placebench.out.to_files import write_parquet

    return write_parquet(path, out or path / "export" / "parquet")


def _to_otlp(path: Path, out: Path | None) -> str:
    from placebench.out.to_otlp import write

    return write(path, out or path / "export" / "otlp.jsonl")


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "wandb": Target(_to_wandb, "wandb"),
        "tensorboard": Target(_to_tensorboard, "tensorboard"),
        "mlflow": Target(_to_mlflow, "mlflow"),
        "parquet": Target(_to_parquet),
        "csv": Target(_to_csv),
        "otlp-json": Target(_to_otlp),
    }
)


def check_clients(names: Iterable[str]) -> None:
    """See that the clients of targets are installed.

    Raises:
        MissingExtraError: one is not.
    """
    for name in names:
        module = TARGETS[name].module
        if module and find_spec(module) is None:
            raise MissingExtraError(name, name, module)


def export(path: Path, name: str, out: Path | None = None) -> str:
    """Export a run's folder; returns in words where it is now.

    Args:
        path: the run's folder.
        name: of the target, one of `TARGETS`.
        out: the folder, of otlp-json the file, to write; None for `export/` in the run's folder, of wandb and mlflow
            for what their own settings say.

    Raises:
        UsageError: it is not a run's folder, or a file of it is damaged.
        ExportError: the service or its client has failed.
        OSError: a file cannot be written.
    """
    target = TARGETS[name]
    if target.module is None:
        return target.write(path, out)
    # What is wrong with the folder is no failure of the service.
    with making_folder(out) if out is not None else contextlib.nullcontext():
        try:
            with _without_their_logging():
                import_module(target.module)
                return target.write(path, out)
        except PlacebenchError:
            raise
        except Exception as error:
            raise ExportError(f"{name} has failed: {_reason(error)}") from error


@contextlib.contextmanager
def _without_their_logging() -> Iterator[None]:
    """Let clients print nothing of what they do, nor a traceback where their own log cannot be written."""
    disabled, raises = logging.root.manager.disable, logging.raiseExceptions
    logging.disable(logging.INFO)
    logging.raiseExceptions = False
    try:
        yield
    finally:
        logging.disable(disabled)
        logging.raiseExceptions = raises


# What SQLAlchemy puts behind a database's own words.
_STATEMENT = re.compile(r"\s*\[SQL: .*", re.DOTALL)


def _reason(error: BaseException) -> str:
    one: BaseException | None = error
    while one is not None:
        if _is_full_disk(one):
            return "no space is left on the disk that it writes to: free some, and export again"
        one = one.__cause__ or one.__context__
    return f"{type(error).__name__}: {_STATEMENT.sub('', str(error))}"


def _is_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
