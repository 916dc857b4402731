"""Column names: validity, and quoting in messages."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from ..errors import DataError


def check_names(table: str, columns: list[str]) -> None:
    """Refuse a table without columns, or with two of the same name."""
    if not columns:
        raise DataError(f"{table} has no columns")
    duplicates = sorted(name for name, count in Counter(columns).items() if count > 1)
    if duplicates:
        raise DataError(f"{table} has more than one column called {quoted_list(duplicates)}: rename them")


def drop_option(column: str) -> str:
    """The option that drops a column, quoted for a shell, without control characters.

    Example:
        >>> drop_option("id"), drop_option("my id"), drop_option("a" + chr(27))
        ('--drop id', "--drop 'my id'", "--drop 'a\\\\x1b'")
    """
    return f"--drop {shlex.quote(column) if column.isprintable() else repr(column)}"


def quoted_list(names: Sequence[object], most: int = 20) -> str:
    """The first names or values, quoted and separated by commas, and the number of further ones."""
    shown = ", ".join(map(repr, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
