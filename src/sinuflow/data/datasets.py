"""Published datasets, among them the benchmark tables of Papamakarios, Pavlakou & Murray (2017)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from ..errors import ArgumentError, DataError
from .formats import open_array

#: The authors' own prepared files of the five datasets.
PREPROCESSED = "https://zenodo.org/records/1161203"

_UCI = "https://archive.ics.uci.edu/dataset"
_GAS, _HEPMASS = f"{_UCI}/322/gas+sensor+array+under+dynamic+gas+mixtures", f"{_UCI}/347/hepmass"

T = TypeVar("T")


class Splits(NamedTuple):
    """The examples of a dataset: float32 (rows, features) for tables, uint8 (N, C, H, W) for images."""

    train: np.ndarray
    val: np.ndarray
    test: np.ndarray


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
            remedy = self._instructions("DIR")
            raise DataError(f"{self.name} is not part of Sinuflow: pass its folder with --data; {remedy}")
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

    def _open(self, split: str, folder: Path) -> np.ndarray:
        path, remedy = folder / self.name / f"{split}.npy", self._instructions(folder)
        array = open_array(path, remedy)
        if array.shape[1:] != self.shape or not np.issubdtype(array.dtype, self.dtype):
            raise DataError(
                f"{path} must hold {self.dtype.__name__} of shape (N, {', '.join(map(str, self.shape))}), and holds "
                f"{array.dtype} of shape {array.shape}: {remedy}"
            )
        if not len(array):
            raise DataError(f"{path} has no {self.examples}: {remedy}")
        return array

    def _read(self, split: str, folder: Path) -> np.ndarray:
        return np.array(self._open(split, folder), subok=False)


def find(datasets: Mapping[str, T], name: str, kind: str) -> T:
    """The dataset of a name, or an :class:`~sinuflow.ArgumentError` that lists all names."""
    if name not in datasets:
        raise ArgumentError(f"there is no {kind} {name!r}; choose one of {', '.join(datasets)}")
    return datasets[name]


class Benchmark(Dataset):
    """A benchmark table, read as float32.

    Example:
        >>> power = BENCHMARKS["power"]
        >>> power.features, power.sizes
        (6, (1659917, 184435, 204928))
        >>> power.command("sets")
        'sinuflow data prepare power --from household_power_consumption.txt --to sets'
    """

    @property
    def features(self) -> int:
        """The number of columns."""
        return self.shape[0]

    def _read(self, split: str, folder: Path) -> np.ndarray:
        with np.errstate(over="ignore"):  # overflows to infinity, which is refused below
            rows = np.array(self._open(split, folder), dtype=np.float32, order="C", subok=False)
        finite = np.isfinite(rows).all(1)
        if not finite.all():
            path, row = folder / self.name / f"{split}.npy", int(finite.argmin()) + 1
            raise DataError(f"{path} holds a NaN or an infinity, first in row {row}: {self._instructions(folder)}")
        return rows


def _subset(name: str, columns: int, description: str, source: str, sizes: tuple[int, int, int]) -> Benchmark:
    comparable = "no: a subset, or other columns; use it only to compare flows with each other"
    return Benchmark(name, (columns,), description, source, sizes, comparable=comparable)


#: The benchmark datasets by name.
BENCHMARKS: dict[str, Benchmark] = {
    dataset.name: dataset
    for dataset in (
        Benchmark(
            "power",
            (6,),
            "electric power of one household, every minute of four years",
            f"{_UCI}/235/individual+household+electric+power+consumption",
            (1_659_917, 184_435, 204_928),
            "household_power_consumption.txt",
        ),
        Benchmark(
            "gas",
            (8,),
            "gas sensors in changing mixtures of ethylene and carbon monoxide",
            _GAS,
            (852_174, 94_685, 105_206),
            "ethylene_CO.txt",
            "yes: another random quarter of the rows",
        ),
        Benchmark(
            "hepmass",
            (21,),
            "simulated particle collisions: the signal at mass 1000",
            _HEPMASS,
            (315_123, 35_013, 174_987),
            "FOLDER_WITH_1000_train.csv.gz_AND_1000_test.csv.gz",
        ),
        Benchmark(
            "miniboone",
            (43,),
            "electron neutrinos in the MiniBooNE detector",
            f"{_UCI}/199/miniboone+particle+identification",
            (29_556, 3_284, 3_648),
            "MiniBooNE_PID.txt",
            "yes: split in the order of the file, which is our reading of the recipe",
        ),
        Benchmark(
            "bsds300",
            (63,),
            "8 by 8 grey patches of the BSDS300 photographs",
            "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/bsds/",
            (1_000_000, 50_000, 250_000),
            "BSDS300",
            "yes: patches cut at other places",
            "for non-commercial research and education",
        ),
        _subset("gas-small", 8, "random rows of gas", _GAS, (10_000, 10_000, 10_000)),
        _subset(
            "hepmass-small", 22, "the signal among the first 10,000 rows of each file", _HEPMASS, (4_506, 500, 4_924)
        ),
        _subset(
            "miniboone-small",
            43,
            "the validation rows of miniboone, divided once more, and its test rows",
            PREPROCESSED,
            (2_956, 328, 3_648),
        ),
    )
}


def load_benchmark(name: str, folder: str | os.PathLike[str] | None) -> Splits:
    """Read a prepared dataset: ``train.npy``, ``val.npy`` and ``test.npy`` in ``folder/name``."""
    return find(BENCHMARKS, name, "benchmark dataset").load(folder)
