"""Writing the files of a set: all of them, or none."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StorageError
from ...files import replacing


def check_outputs(paths: list[Path], force: bool) -> None:
    """Before any work is done for them."""
    for path in paths:
        if path.exists() and not force:
            raise StorageError(f"{path} exists already: replace it with --force, or choose another folder")
    for folder in (paths[0].parent, paths[0].parent.parent):
        if folder.exists() and not folder.is_dir():
            raise StorageError(f"cannot write into {folder}: it is not a folder")


def write_arrays(paths: list[Path], arrays: Iterable[np.ndarray[Any, Any]]) -> None:
    """All are written before the first takes the place of another."""
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {paths[0].parent}: {error.strerror or error}") from error
    with ExitStack() as stack:
        for path, rows in zip(paths, arrays, strict=True):
            with open(stack.enter_context(replacing(path)), "wb") as file:
                np.save(file, rows, allow_pickle=False)


def sizes_in_words(rows: tuple[int, ...]) -> str:
    """Numbers of rows, side by side.

    Example:
        >>> sizes_in_words((45000, 5000, 10000))
        '45,000 / 5,000 / 10,000'
    """
    return " / ".join(f"{n:,}" for n in rows)
