"""Column names in messages."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def drop_option(column: str) -> str:
    """The option that drops a column, quoted for a shell, without control characters."""
    return f"--drop {shlex.quote(column) if column.isprintable() else repr(column)}"


def quoted_list(names: Sequence[object], most: int = 20) -> str:
    """The first names or values, quoted and separated by commas, and the number of further ones."""
    shown = ", ".join(map(repr, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
