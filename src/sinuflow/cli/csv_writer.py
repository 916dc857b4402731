"""Writing record batches as CSV, with unchanged cells, quoted only where needed."""

from __future__ import annotations

import re
from typing import Any

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
    """Writes record batches to a comma-separated UTF-8 file.

    A missing value is an empty cell, an empty string a quoted one. Arrow's own writer would quote every string.

    Args:
        path: the file.
        schema: of the batches.
        spreadsheet_safe: put an apostrophe before strings that spreadsheets evaluate as formulas.
    """

    def __init__(self, path: str, schema: Any, spreadsheet_safe: bool = False) -> None:
        import pyarrow

        self._safe = spreadsheet_safe
        for field in schema:
            _check_type(field)
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
        names = pyarrow.array(schema.names, pyarrow.string())
        header = ",".join(_quoted(self._escape_formulas(names), _QUOTED_NAMES).to_pylist())
        self._file.write((header or '""').encode() + b"\n")

    def write_batch(self, batch: Any) -> None:
        """Write the rows of a record batch."""
        for start in range(0, len(batch), _ROWS):
            self._write_rows(batch.slice(start, _ROWS))

    def _write_rows(self, batch: Any) -> None:
        from pyarrow import compute

        cells = [self._cells(field, batch.column(i)) for i, field in enumerate(batch.schema)]
        rows = compute.binary_join_element_wise(*cells, ",", null_handling="replace", null_replacement="")
        self._file.write("".join(f"{row}\n" for row in rows.to_pylist()).encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cells(self, field: Any, array: Any) -> Any:
        import pyarrow

        try:
            texts = array.cast(pyarrow.string())
            texts.validate(full=True)  # strings in Parquet files may be invalid UTF-8
        except pyarrow.ArrowInvalid:
            raise DataError(
                f"column {field.name!r} holds bytes that are not UTF-8 text: write a .parquet file instead"
            ) from None
        return _quoted(self._escape_formulas(texts) if _holds_text(field.type) else texts, _QUOTED_CELLS)

    def _escape_formulas(self, texts: Any) -> Any:
        from pyarrow import compute

        if not self._safe:
            return texts
        formula = compute.and_not(
            compute.match_substring_regex(texts, _FORMULA), compute.match_substring_regex(texts, _NUMBER)
        )
        return compute.if_else(formula, compute.binary_join_element_wise("'", texts, ""), texts)


def _quoted(texts: Any, pattern: str) -> Any:
    from pyarrow import compute

    needed = compute.match_substring_regex(texts, pattern)
    if not needed.true_count:
        return texts
    doubled = compute.replace_substring(texts, '"', '""')
    return compute.if_else(needed, compute.binary_join_element_wise('"', doubled, '"', ""), texts)


def looks_like_formula(text: str) -> bool:
    """Whether a spreadsheet evaluates a string as a formula.

    Example:
        >>> looks_like_formula("=1+1"), looks_like_formula("-5"), looks_like_formula("Oslo")
        (True, False, False)
    """
    return re.search(_FORMULA, text) is not None and re.fullmatch(_NUMBER, text) is None


def _check_type(field: Any) -> None:
    from pyarrow import BaseExtensionType, types

    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    if types.is_nested(kind) or types.is_run_end_encoded(kind) or isinstance(kind, BaseExtensionType):
        raise DataError(f"column {field.name!r} holds {kind}, which CSV cannot hold: write a .parquet file instead")


def _holds_text(kind: Any) -> bool:
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))
