"""Published datasets: where they are found, and reading them once they are prepared."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ..errors import ArgumentError, DataError
from .arrays import open_array

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class Splits(NamedTuple):
    """The examples of a dataset: float32 (rows, features) for tables, uint8 (N, C, H, W) for images."""

    train: Array
    val: Array
    test: Array


@dataclass(frozen=True)
class Dataset:
    """A published dataset, which is not part of this package.

    A prepared dataset is a folder with ``train.npy``, ``val.npy`` and ``test.npy``, which
    :mod:`sinuflow.data.originals` makes from the published files.
    """

    name: str
    shape: tuple[int, ...]  # of an example, (features,) or (C, H, W)
    description: str
    source: str  # the page that publishes the original files
    sizes: tuple[int, int, int]
    original: str | None = None  # what `sinuflow data prepare` reads; None if there is no recipe
    comparable: str = "yes"  # with published results: "yes" or "no", and a qualification
    licence: str = "CC BY 4.0"

    #: The type of the stored numbers, and what an example is called.
    dtype: ClassVar[type[np.generic]] = np.floating
    examples: ClassVar[str] = "rows"

    def command(self, folder: str | os.PathLike[str]) -> str:
        """The command that prepares the dataset from its original."""
        return f"sinuflow data prepare {self.name} --from {self.original} --to {folder}"

    def load(self, folder: str | os.PathLike[str] | None) -> Splits:
        """The prepared dataset in ``folder/name``."""
        if folder is None:
            raise DataError(
                f"{self.name} is not part of Sinuflow: pass its folder with --data; {self._instructions('DIR')}"
            )
        return Splits(*(self._read(split, Path(folder)) for split in Splits._fields))

    def count(self, folder: str | os.PathLike[str]) -> tuple[int, ...] | None:
        """The sizes of the prepared dataset by the headers of its files; None if a file is missing."""
        if not all((Path(folder) / self.name / f"{split}.npy").is_file() for split in Splits._fields):
            return None
        return tuple(len(self._open(split, Path(folder))) for split in Splits._fields)

    def _instructions(self, folder: str | os.PathLike[str]) -> str:
        if self.original is None:
            larger = self.name.removesuffix("-small")
            return f"it has no recipe, so bring your own, with {self.shape[0]} columns, or take {larger}"
        return f"get the original from {self.source} and run `{self.command(folder)}`"

    def _open(self, split: str, folder: Path) -> Array:
        path = folder / self.name / f"{split}.npy"
        array = open_array(path, self._instructions(folder))
        if array.shape[1:] != self.shape or not np.issubdtype(array.dtype, self.dtype):
            raise DataError(
                f"{path} must hold {self.dtype.__name__} of shape (N, {', '.join(map(str, self.shape))}), and holds "
                f"{array.dtype} of shape {array.shape}: {self._instructions(folder)}"
            )
        if not len(array):
            raise DataError(f"{path} has no {self.examples}: {self._instructions(folder)}")
        return array

    def _read(self, split: str, folder: Path) -> Array:
        return np.array(self._open(split, folder), subok=False)


def find(datasets: Mapping[str, T], name: str, kind: str) -> T:
    """The dataset of a name, or an :class:`~sinuflow.ArgumentError` that lists all names."""
    if name not in datasets:
        raise ArgumentError(f"there is no {kind} {name!r}; choose one of {', '.join(datasets)}")
    return datasets[name]
