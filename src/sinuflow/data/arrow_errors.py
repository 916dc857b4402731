"""Translating errors of Arrow and the operating system into one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import DataError, SinuflowError


def arrow_modules() -> tuple[Any, Any]:
    """``pyarrow`` and ``pyarrow.dataset``, imported on first use."""
    try:
        import pyarrow
        import pyarrow.dataset
        import pyarrow.fs
    except ImportError:
        raise SinuflowError("tables need pyarrow and narwhals: pip install 'sinuflow[cli]'") from None
    return pyarrow, pyarrow.dataset


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Translate errors of Arrow and the operating system into a DataError about the table ``name``."""
    arrow, _ = arrow_modules()
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text: save it as UTF-8") from error
    except (arrow.ArrowException, OSError, OverflowError) as error:
        if "UTF8" in str(error):
            raise DataError(f"{name} is not UTF-8 text: save it as UTF-8") from error
        text = first_line(error)
        if "Empty CSV" in text:
            raise DataError(f"{name} is empty") from error
        if "straddling" in text:
            raise DataError(f"{name} has a row that is longer than 1 MiB, or a quote that is never closed") from error
        raise DataError(f"cannot read {name}: {text}") from error


def first_line(error: Exception) -> str:
    """The message of an error, in one line."""
    text = " ".join(map(str, error.args)) if not isinstance(error, OSError) else str(error)
    text = text.strip() or type(error).__name__
    return text.split("Invalid: ")[-1].splitlines()[0][:300]  # Arrow puts the place before the problem
