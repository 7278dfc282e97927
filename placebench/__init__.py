"""placebench measures which placement of RL post-training roles on devices is faster, and why.

`load` reads a run for scripts and notebooks; what it returns is described in `placebench.out.loaded`.
"""

from os import PathLike
from typing import TYPE_CHECKING

from placebench.version import __version__ as __version__

if TYPE_CHECKING:
    from placebench.out.loaded import LoadedRun

__all__ = ["__version__", "load"]


def load(run: "str | PathLike[str]") -> "LoadedRun":
    """Read a run's folder, finished or not; neither torch nor Ray is imported.

    Args:
        run: the folder, such as `runs/20260101T000000Z-standard-split`.

    Raises:
        UsageError: there is no such folder, it is not a run's, or its `run.json` is damaged.
    """
    # pandas takes most of a second, which whoever imports placebench should not wait for.
    from placebench.out.loaded import load_folder

    return load_folder(run)
