"""From the values of a column to numbers, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .columns import Column

Array = np.ndarray[Any, np.dtype[np.float64]]


def is_text(type_name: str) -> bool:
    """Whether an Arrow type holds categories rather than numbers."""
    return type_name in ("string", "large_string", "string_view") or type_name.startswith("dictionary")


def is_number(type_name: str) -> bool:
    """Whether an Arrow type holds numbers or booleans."""
    return type_name == "bool" or type_name.startswith(("int", "uint", "float", "double", "halffloat", "decimal"))


def to_objects(array: Any) -> list[Any]:
    """The values as Python objects, None where they are missing."""
    values: list[Any] = array.to_pylist()
    return values


def to_floats(array: Any) -> Array:
    """Numbers and booleans as float64, NaN where they are missing."""
    import pyarrow

    if pyarrow.types.is_boolean(array.type):
        array = array.cast(pyarrow.int8())
    floats: Array = array.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
    return floats


def parse_texts(array: Any) -> tuple[Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Texts as numbers, and which of them are none; what is missing is NaN and not among those."""
    import pyarrow

    try:
        return to_floats(array.cast(pyarrow.float64())), np.zeros(len(array), dtype=bool)
    except pyarrow.ArrowInvalid:
        pass
    numbers, bad = np.full(len(array), np.nan), np.zeros(len(array), dtype=bool)
    for i, text in enumerate(array.to_pylist()):
        if text is not None:
            try:
                numbers[i] = float(text)
            except ValueError:
                bad[i] = True
    return numbers, bad


def codes_of(column: Column, array: Any, first_row: int, table: str) -> Array:
    """Codes of a category's values, NaN where they are missing; unknown values are refused."""
    known = {_plain(value): float(i) for i, value in enumerate(column.categories)}
    codes = np.full(len(array), np.nan)
    for i, value in enumerate(to_objects(array)):
        if value is None:
            continue
        code = known.get(_plain(value))
        if code is None:
            raise DataError(
                f"{table}, row {first_row + i + 1}: column {column.name!r} holds {value!r}, which the model "
                f"has never seen; it knows {_some(column.categories)}"
            )
        codes[i] = code
    return codes


def _plain(value: Any) -> Any:
    """Equal values compare equal whichever file they come from: True in Parquet, 'true' in CSV."""
    text = str(value).strip()
    return text.lower() if text.lower() in ("true", "false") else text


def _some(values: tuple[Any, ...]) -> str:
    shown = ", ".join(repr(v) for v in values[:5])
    return shown + (f" and {len(values) - 5} more" if len(values) > 5 else "")


def to_arrow(column: Column, numbers: Array) -> Any:
    """Numbers or codes as an Arrow array of the column's type."""
    import pyarrow

    if column.kind == "category":
        return pyarrow.array([column.categories[int(code)] for code in numbers])
    if column.kind == "constant":
        return pyarrow.array([column.categories[0]] * len(numbers))
    if "int" in column.type:
        return pyarrow.array(np.round(numbers).astype(np.int64))
    if column.type == "bool":
        return pyarrow.array(numbers > 0.5)
    if column.step and column.rounded:
        # 0.1 + 0.2 is not 0.3: print what was measured, not the arithmetic.
        digits = max(0, int(np.ceil(-np.log10(column.step) - 1e-9)) + 1)
        numbers = np.round(numbers, digits)
    if column.type in ("float", "halffloat"):
        return pyarrow.array(numbers.astype(np.float32))
    return pyarrow.array(numbers)
