"""Data frames and arrays as Arrow tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .arrow_errors import arrow_modules, first_line
from .names import check_names


def frame_to_arrow(data: Any) -> Any:
    """A pandas or Polars frame as an Arrow table, without pandas' index."""
    arrow_modules()
    import narwhals

    if narwhals.dependencies.is_pandas_dataframe(data):
        check_names("the frame", [str(name) for name in data.columns])
        data = _for_arrow(data)
    try:
        frame = narwhals.from_native(data, eager_only=True)
    except TypeError:
        raise DataError(
            f"cannot read a table from {type(data).__name__}: give a path, a pandas or Polars frame, "
            "an Arrow table or a NumPy array"
        ) from None
    names = [str(name) for name in frame.columns]
    check_names("the frame", names)
    try:
        return frame.to_arrow().select(range(len(names))).rename_columns(names)  # the index follows the columns
    except Exception as error:  # of the frame's library or Arrow, which share no base class
        _name_the_column(frame, names)
        raise DataError(f"cannot read the frame: {first_line(error)}") from error


def _for_arrow(data: Any) -> Any:
    """A pandas frame with sparse dtypes and long double, which Arrow lacks, converted."""
    converted = {}
    for name, dtype in data.dtypes.items():
        if type(dtype).__name__ == "SparseDtype":
            converted[name] = dtype.subtype
        elif dtype == np.longdouble:
            converted[name] = np.dtype(np.float64)
    return data.astype(converted) if converted else data


def _name_the_column(frame: Any, names: list[str]) -> None:
    """Raise an error that names the first column that Arrow cannot convert."""
    for i, name in enumerate(names):
        try:
            frame[:, [i]].to_arrow()
        except Exception as error:  # as above
            raise DataError(
                f"column {name!r} of the frame cannot be read ({first_line(error)}): convert it to numbers or to "
                "strings, or remove it from the frame"
            ) from error


def array_to_arrow(name: str, array: np.ndarray) -> Any:
    """A two-dimensional array as an Arrow table with the columns x0, x1, ..."""
    arrow, _ = arrow_modules()
    if array.ndim != 2 or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise DataError(f"{name} must hold numbers in rows and columns; it has shape {array.shape}, type {array.dtype}")
    if np.iscomplexobj(array):
        raise DataError(f"{name} holds complex numbers: split them into real and imaginary parts")
    native = np.dtype(np.float64) if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # overflows become infinite, which is refused later
        columns = [arrow.array(np.ascontiguousarray(array[:, i]).astype(native)) for i in range(array.shape[1])]
    return arrow.table(columns, names=[f"x{i}" for i in range(array.shape[1])])
