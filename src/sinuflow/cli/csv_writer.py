"""Writing record batches as CSV, with unchanged cells, quoted only where needed."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow
from pyarrow import compute, types

from ..errors import DataError

#: Names and cells that need quotes; a quoted empty cell is an empty string, an unquoted one a missing value.
_QUOTED_NAMES = r'[,"\r\n]'
_QUOTED_CELLS = r'^$|[,"\r\n]'
#: Strings that spreadsheets evaluate as formulas, including the full-width forms of these characters.
_FORMULA = "^[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
#: Rows converted at a time: an Arrow array of strings holds at most 2 GiB.
_ROWS = 8192


class CsvWriter:
    """Writes record batches to a comma-separated UTF-8 file, on demand with apostrophes before formulas.

    A missing value is an empty cell, an empty string a quoted one. Arrow's own writer would quote every string.
    """

    def __init__(self, path: str, schema: Any, spreadsheet_safe: bool = False) -> None:
        self._safe = spreadsheet_safe
        for field in schema:
            kind = _type_of_values(field)
            if types.is_nested(kind) or types.is_run_end_encoded(kind) or isinstance(kind, pyarrow.BaseExtensionType):
                raise DataError(f"column {field.name!r} holds {kind}, which CSV cannot hold: write a .parquet file")
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
        self.close = self._file.close
        names = pyarrow.array(schema.names, pyarrow.string())
        header = ",".join(_quoted(self._escaped(names), _QUOTED_NAMES).to_pylist())
        self._file.write((header or '""').encode() + b"\n")

    def write_batch(self, batch: Any) -> None:
        """Write the rows of a record batch."""
        for start in range(0, len(batch), _ROWS):
            rows = batch.slice(start, _ROWS)
            cells = [self._cells(field, rows.column(i)) for i, field in enumerate(batch.schema)]
            lines = compute.binary_join_element_wise(*cells, ",", null_handling="replace", null_replacement="")
            self._file.write("".join(f"{line}\n" for line in lines.to_pylist()).encode())

    def _cells(self, field: Any, array: Any) -> Any:
        try:
            texts = _without_exponents(array)
            texts.validate(full=True)  # strings in Parquet files may be invalid UTF-8
        except pyarrow.ArrowInvalid:
            raise DataError(f"column {field.name!r} holds bytes that are not UTF-8: write a .parquet file") from None
        kind = _type_of_values(field)
        is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        return _quoted(self._escaped(texts) if is_text else texts, _QUOTED_CELLS)

    def _escaped(self, texts: Any) -> Any:
        if not self._safe:
            return texts
        return compute.if_else(formulas(texts), compute.binary_join_element_wise("'", texts, ""), texts)


def formulas(texts: Any) -> Any:
    """Which strings of an Arrow array a spreadsheet evaluates.

    Example:
        >>> formulas(pyarrow.array(["=1+1", "-5", "Oslo"])).to_pylist()
        [True, False, False]
    """
    formula, number = (compute.match_substring_regex(texts, pattern) for pattern in (_FORMULA, _NUMBER))
    return compute.and_not(formula, number)


def _without_exponents(array: Any) -> Any:
    """The cells as strings: Arrow writes 15000000000.0 as 1.5e+10, which is a table's notation only from 1e16 on."""
    texts = array.cast(pyarrow.string())
    if not types.is_floating(array.type):
        return texts
    large = compute.match_substring_regex(texts, r"e\+1[0-5]$")
    if not large.true_count:
        return texts
    plain = [text if text is None else f"{Decimal(text):f}" for text in texts.filter(large).to_pylist()]
    return compute.replace_with_mask(texts, large, pyarrow.array(plain, pyarrow.string()))


def _quoted(texts: Any, pattern: str) -> Any:
    needed = compute.match_substring_regex(texts, pattern)
    if not needed.true_count:
        return texts
    doubled = compute.replace_substring(texts, '"', '""')
    return compute.if_else(needed, compute.binary_join_element_wise('"', doubled, '"', ""), texts)


def _type_of_values(field: Any) -> Any:
    return field.type.value_type if types.is_dictionary(field.type) else field.type
