"""What tables of steps are made of: columns, and which of several values of a step counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa


def joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """Arrays of whole numbers one after the other."""
    return np.concatenate([np.empty(0, np.int64), *parts])


def last_of_each(
    step: npt.NDArray[np.int64], metric: npt.NDArray[np.int32], steps: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_] | None:
    """Mask of the last value of each step and metric; None where no step comes from two rows."""
    distinct, counts = np.unique(steps, return_counts=True)
    if not (counts > 1).any():
        return None
    keep = np.ones(len(step), np.bool_)
    shared = np.flatnonzero(np.isin(step, distinct[counts > 1]))
    cells = pd.DataFrame({"step": step[shared], "metric": metric[shared]})
    keep[shared[cells.duplicated(keep="last").to_numpy()]] = False
    return keep


def text_column(codes: npt.NDArray[Any], names: Sequence[str]) -> pd.Series[str]:
    """The names that codes stand for, in the string type of the pandas at hand, without a Python object a row."""
    # Lone surrogates, from a JSON escape or a file name that is no UTF-8, are no text.
    names = [name.encode("utf-8", "replace").decode() for name in names]
    dtype = pd.Series(["a"]).dtype
    if isinstance(dtype, pd.StringDtype):
        text = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.large_string()))
        return pd.Series(pd.array(text.cast(pa.large_string()), dtype=dtype))
    return pd.Series(np.array([*names, ""], dtype=object)[codes], dtype=object)
