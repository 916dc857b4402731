"""Conversion between the cells of a column and float64 numbers or codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..checks import LARGEST_INTEGER
from ..errors import DataError
from .column_format import ColumnFormat
from .columns import Column, quoted_list
from .csv_files import MISSING
from .numbers import Array, parse_number

#: The integer types that samples can have.
_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
#: The name of infinities in :attr:`Column.unread`.
INFINITE = "inf"
#: Makes the error for the cell with this index in its array, from a description of the problem.
Refusal = Callable[[int, str], DataError]
#: Strings that are integers, and not real numbers such as 1e20.
_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")


def kind_of(type_name: str) -> str | None:
    """The kind of cells of an Arrow type: "text", "number", "category" for booleans and dictionaries, or None."""
    if type_name in ("string", "large_string", "string_view"):
        return "text"
    if type_name == "bool" or type_name.startswith("dictionary"):
        return "category"
    return "number" if type_name.startswith(("int", "uint", "float", "double", "halffloat", "decimal")) else None


def to_numbers(array: Any) -> tuple[Array, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Cells as the nearest float64, NaN where they are missing, and which of them are texts that are not numbers."""
    import pyarrow

    try:
        floats = array.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        return floats, np.zeros(len(array), dtype=bool)
    except pyarrow.ArrowInvalid:  # Arrow parses fewer strings than Python
        texts = array.to_pylist()
        numbers = [parse_number(text) for text in texts]
        bad = [number is None and text is not None for number, text in zip(numbers, texts, strict=True)]
        return np.array(numbers, dtype=np.float64), np.array(bad)


def first_large_integer(array: Any, numbers: Array) -> tuple[int, int] | None:
    """The index and value of the first integer that float64 would round, which could merge different identifiers.

    ``numbers`` are the values of the Arrow array as float64.
    """
    rows = np.flatnonzero(np.abs(numbers) >= LARGEST_INTEGER)
    for row, cell in zip(rows.tolist(), array.take(rows).to_pylist(), strict=True):
        text = str(cell)
        # Longer texts are infinite as float64.
        if len(text) < 400 and _INTEGER.fullmatch(text) and abs(int(text)) > LARGEST_INTEGER:
            return row, int(text)
    return None


def distinct_values(array: Any) -> tuple[list[Any], Array]:
    """The distinct values of an array as JSON values, and the index of each entry among them, NaN if missing."""
    import pyarrow

    encoded = array if pyarrow.types.is_dictionary(array.type) else array.dictionary_encode()
    values = [_as_json(value) for value in encoded.dictionary.to_pylist()]
    codes = encoded.indices.cast(pyarrow.float64()).to_numpy(zero_copy_only=False).copy()
    codes[np.isin(codes, [i for i, value in enumerate(values) if value is None])] = np.nan
    return values, codes


def recode(indices: Array, codes: list[float]) -> Array:
    """The code of each entry, from its index in a list of codes; NaN stays NaN."""
    return np.array([*codes, np.nan])[np.where(np.isnan(indices), len(codes), indices).astype(np.int64)]


def without_texts(array: Any, texts: Sequence[str]) -> Any:
    """The cells of an array of strings, null where they are one of these texts."""
    import pyarrow
    from pyarrow import compute

    absent = compute.is_in(array, value_set=pyarrow.array(texts, array.type))
    return compute.if_else(absent, pyarrow.scalar(None, array.type), array) if absent.true_count else array


def numbers_of(column: Column, array: Any, first_row: int, table: str) -> Array:
    """Cells of a column as numbers or codes: NaN if missing, infinite if the model's column cannot have it.

    Cells of another kind are refused.
    """

    def refusal(at: int, problem: str) -> DataError:
        return DataError(f"{table}, row {first_row + at + 1}: column {column.table_column!r} {problem}")

    if column.kind == "category":
        return _codes_of(column, array, refusal)
    type_name = str(array.type)
    if kind_of(type_name) == "text":  # strings of a frame may be what a CSV file has for missing values
        array = without_texts(array, [*column.unread, *MISSING])
    if column.format is not None:
        numbers = _formatted_numbers(column.format, array, refusal)[:, column.part]
    elif kind_of(type_name) in ("text", "number") or type_name == "null":  # all of it may be missing
        numbers = _plain_numbers(column, array, refusal)
    else:
        raise DataError(f"column {column.name!r} of {table} must hold numbers; it holds {type_name}")
    low, high = (end if bound is None else bound for bound, end in zip(column.bounds, (-np.inf, np.inf), strict=True))
    return np.where((numbers < low) | (numbers > high), np.inf, numbers)


def differs(column: Column, array: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which cells are not the value of a constant column."""
    (constant,) = column.categories
    values, codes = distinct_values(array)
    if isinstance(constant, (int, float)) and not isinstance(constant, bool):
        same = [parse_number(str(value)) == constant for value in values]
    else:
        same = [code_of(column, value) is not None for value in values]
    return np.asarray(recode(codes, [float(not each) for each in same]) != 0)


def _formatted_numbers(column_format: ColumnFormat, array: Any, refusal: Refusal) -> Array:
    """The numbers (n, parts) of cells, NaN where they are missing."""
    from pyarrow import ArrowException

    try:
        numbers = column_format.read(array)
        bad = np.isnan(numbers[:, 0]) & ~np.asarray(array.is_null())
    except ArrowException:  # another type, which cannot be converted to a time
        bad = np.array([not _is_readable(column_format, array.slice(at, 1)) for at in range(len(array))])
    if bad.any():
        at = int(bad.argmax())
        raise refusal(at, f"holds {array[at].as_py()!r}, which is not in the format of the training table")
    return numbers


def _is_readable(column_format: ColumnFormat, array: Any) -> bool:
    from pyarrow import ArrowException

    try:
        column_format.read(array)
    except ArrowException:
        return False
    return True


def _plain_numbers(column: Column, array: Any, refusal: Refusal) -> Array:
    numbers, bad = to_numbers(array)
    if bad.any():
        at = int(bad.argmax())
        raise refusal(at, f"must be a number; it holds {array[at].as_py()!r}")
    large = first_large_integer(array, numbers)
    if large is not None:
        at, value = large
        raise refusal(
            at,
            f"holds the integer {value}, which float64 would round, as it is beyond 2**53: convert the column to "
            "floating point",
        )
    infinite = np.isinf(numbers)
    if infinite.any() and INFINITE not in column.unread:
        raise refusal(int(infinite.argmax()), "holds an infinity")
    return np.where(infinite, np.nan, numbers)


def _codes_of(column: Column, array: Any, refusal: Refusal) -> Array:
    values, indices = distinct_values(array)
    value_codes = [np.nan if value is None else code_of(column, value) for value in values]
    codes = recode(indices, [-1.0 if code is None else float(code) for code in value_codes])
    unseen = (codes < 0).nonzero()[0]
    if column.rows:  # format 2 has a probability for unseen values
        codes[unseen] = np.inf
    elif len(unseen):
        at, names = int(unseen[0]), quoted_list(column.categories, 5)
        raise refusal(at, f"holds {values[int(indices[at])]!r}, which the model has never seen; it knows {names}")
    return codes


def code_of(column: Column, value: Any) -> int | None:
    """The code of a category's value, or None for an unseen one.

    Equal values of different file formats match: True in Parquet is 'true' in a CSV file.
    """
    exact = [code for code, category in enumerate(column.categories) if str(category) == str(value)]
    similar = [code for code, category in enumerate(column.categories) if _normalized(category) == _normalized(value)]
    return next(iter([*exact, *similar]), None)


def _normalized(value: Any) -> str:
    text = str(value)
    return text.strip().lower() if text.strip().lower() in ("true", "false") else text


def _as_json(value: Any) -> Any:
    """A value as JSON can store it."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return None
    return value if isinstance(value, (str, bool, int, float)) else str(value)


def to_arrow(column: Column, numbers: Array) -> Any:
    """Numbers or codes as an Arrow array of the column's type, null where they are NaN."""
    import pyarrow
    import pyarrow.compute

    missing = np.isnan(numbers)
    if column.kind == "category":
        values = [None if code != code else column.categories[int(code)] for code in numbers.tolist()]
        large = column.type == "large_string"
        return pyarrow.array(values, pyarrow.large_string() if large else pyarrow.array(column.categories).type)
    if column.kind == "constant":
        return pyarrow.array([column.categories[0]] * len(numbers))
    if "int" in column.type:
        dtype = np.dtype(column.type if column.type in _INTEGERS else "int64")
        limits = np.iinfo(dtype)  # restored values may be beyond them
        whole = np.clip(np.round(np.where(missing, 0.0, numbers)), limits.min, min(limits.max, 2.0**63 - 1024))
        integers = pyarrow.array(whole.astype(dtype), mask=missing)
        if not column.zeros:
            return integers
        return pyarrow.compute.utf8_lpad(integers.cast(pyarrow.string()), width=column.zeros, padding="0")
    if column.relation is None and (column.rounding is not None or column.rounded):  # 0.1 + 0.2 is not 0.3
        short = np.round(numbers, column.digits) if column.rounding is None else column.rounding.apply(numbers)
        numbers = np.where(np.isin(numbers, column.atoms), numbers, short)
    return pyarrow.array(
        numbers.astype(np.float32 if column.type in ("float", "halffloat") else np.float64), mask=missing
    )


def table_arrays(columns: list[Column], numbers: Mapping[str, Array]) -> list[Any]:
    """The Arrow arrays of a table's columns, from numbers or codes by the names of columns."""
    arrays = []
    for column in columns:
        if column.format is None:
            arrays.append(to_arrow(column, numbers[column.name]))
        elif column.part == 0:
            parts = [c.name for c in columns if c.table_column == column.table_column]
            arrays.append(column.format.write(np.stack([numbers[name] for name in parts], axis=1)))
    return arrays
