"""From the values of a column to numbers, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .columns import Column
from .names import quoted_list

Array = np.ndarray[Any, np.dtype[np.float64]]


def is_text(type_name: str) -> bool:
    """Whether an Arrow type holds texts."""
    return type_name in ("string", "large_string", "string_view")


def is_category(type_name: str) -> bool:
    """Whether an Arrow type can hold nothing but categories."""
    return type_name == "bool" or type_name.startswith("dictionary")


def is_number(type_name: str) -> bool:
    """Whether an Arrow type holds numbers."""
    return type_name.startswith(("int", "uint", "float", "double", "halffloat", "decimal"))


def to_floats(array: Any) -> Array:
    """Numbers as the nearest float64, NaN where they are missing."""
    import pyarrow

    floats: Array = array.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return floats


def distinct_values(array: Any) -> tuple[list[Any], Array]:
    """The different values of an array, and which of them stands where; NaN where one is missing."""
    import pyarrow

    if isinstance(array, pyarrow.ChunkedArray):
        array = array.combine_chunks()
    encoded = array if pyarrow.types.is_dictionary(array.type) else array.dictionary_encode()
    values = [plain_value(value) for value in encoded.dictionary.to_pylist()]
    codes = encoded.indices.cast(pyarrow.float64()).to_numpy(zero_copy_only=False).copy()
    missing = [i for i, value in enumerate(values) if value is None]
    codes[np.isin(codes, missing)] = np.nan
    return values, codes


def plain_value(value: Any) -> Any:
    """A value that JSON can hold; None for one that is missing."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    return value if isinstance(value, (str, bool, int, float)) else str(value)


def parse_texts(array: Any) -> tuple[Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Texts as numbers, and which of them are none; what is missing is NaN and not among those."""
    import pyarrow

    try:
        return to_floats(array), np.zeros(len(array), dtype=bool)
    except pyarrow.ArrowInvalid:
        pass
    numbers, bad = np.full(len(array), np.nan), np.zeros(len(array), dtype=bool)
    for i, text in enumerate(array.to_pylist()):
        if text is not None:
            number = parse_number(text)
            numbers[i], bad[i] = (np.nan, True) if number is None else (number, False)
    return numbers, bad


def parse_number(text: Any) -> float | None:
    """The number that a string represents, or None."""
    try:
        return None if "_" in text else float(text)  # 1_000 is Python's notation, and an identifier elsewhere
    except (TypeError, ValueError):
        return None


def codes_of(column: Column, array: Any, first_row: int, table: str) -> Array:
    """Codes of a category's values, NaN where they are missing; unknown values are refused."""
    values, places = distinct_values(array)
    codes = np.array([np.nan if value is None else _code(column, value) for value in values] + [np.nan])
    found: Array = codes[np.where(np.isnan(places), len(values), places).astype(np.int64)]
    unknown = (found < 0).nonzero()[0]
    if len(unknown):
        value = values[int(places[unknown[0]])]
        raise DataError(
            f"{table}, row {first_row + int(unknown[0]) + 1}: column {column.name!r} holds {value!r}, which the "
            f"model has never seen; it knows {quoted_list(column.categories, 5)}"
        )
    return found


def code_of(column: Column, value: Any) -> int | None:
    """The code of a category's value, or None if it has none.

    Equal values are found whichever file they come from: True in Parquet is 'true' in a CSV file.
    """
    exact = [code for code, known in enumerate(column.categories) if str(known) == str(value)]
    alike = [code for code, known in enumerate(column.categories) if _loose(known) == _loose(value)]
    return next(iter([*exact, *alike]), None)


def _loose(value: Any) -> str:
    text = str(value)
    return text.strip().lower() if text.strip().lower() in ("true", "false") else text


def _code(column: Column, value: Any) -> float:
    code = code_of(column, value)
    return -1.0 if code is None else float(code)


def to_arrow(column: Column, numbers: Array) -> Any:
    """Numbers or codes as an Arrow array of the column's type."""
    import pyarrow

    if column.kind == "category":
        return pyarrow.array([column.categories[int(code)] for code in numbers])
    if column.kind == "constant":
        return pyarrow.array([column.categories[0]] * len(numbers))
    if "int" in column.type:
        return pyarrow.array(np.round(numbers).astype(np.int64))
    if column.rounded:
        numbers = np.round(numbers, column.digits)  # 0.1 + 0.2 is not 0.3: the value, not the arithmetic
    if column.type in ("float", "halffloat"):
        return pyarrow.array(numbers.astype(np.float32))
    return pyarrow.array(numbers)
