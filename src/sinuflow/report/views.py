"""Columns of a model as a report shows them: values in readable units, and names of categories."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..data import Column
from .content import MISSING, ColumnView, Floats, Kind

#: Seconds of a mean Gregorian year.
_YEAR = 31_556_952.0
_UNSEEN = "(never seen)"


def view(column: Column, data: Tensor, samples: Tensor) -> ColumnView:
    """Held-out values and samples of a column, NaN where they are missing and infinite if they were never seen."""
    values = data.numpy(), samples.numpy()
    if column.kind == "category":
        names = np.array([*(str(value) for value in column.categories), MISSING, _UNSEEN])
        of_data, of_samples = (names[_codes(part, len(column.categories))] for part in values)
        return ColumnView(column.name, "category", of_data, of_samples, column.describe())
    name, first, unit = _axis(column)
    kind: Kind = "integer" if "int" in column.type and unit == 1 else "number"
    of_data, of_samples = ((first + part) / unit for part in values)
    step = column.step / unit if column.rounded else 0.0
    return ColumnView(name, kind, of_data, of_samples, column.describe(), step)


def _codes(values: Floats, categories: int) -> np.ndarray:
    missing = np.where(np.isnan(values), categories, values)
    return np.minimum(missing, categories + 1).astype(np.int64)


def _axis(column: Column) -> tuple[str, float, float]:
    """The column's name with a unit, and numbers a and b with which (a + x) / b is in that unit."""
    if column.format is None or column.format.axis is None:
        return column.name, 0.0, 1.0
    part, axis = column.format.parts[column.part], column.format.axis
    if part == "time" and axis.calendar:
        return f"{column.name} (year)", 1970 * _YEAR + axis.origin, _YEAR
    if part in ("time", "time of day"):
        return f"{column.name} (hours)", 0.0, 3600.0
    return column.name, 0.0, 1.0
