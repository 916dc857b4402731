"""Benchmark sets: what they are, where they are published, and reading them once they are prepared.

The five tables are those of Papamakarios, Pavlakou & Murray (2017), on which nearly every flow is measured. None of
them is part of this package: a set is a folder with ``train.npy``, ``val.npy`` and ``test.npy``, which
:mod:`sinuflow.data.originals` makes of the published files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, DataError
from .arrays import open_array

Rows = np.ndarray[Any, np.dtype[np.float32]]

#: The authors' own prepared files of the five sets.
PREPROCESSED = "https://zenodo.org/records/1161203"

_UCI = "https://archive.ics.uci.edu/dataset"
_CC_BY = "CC BY 4.0"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark set.

    Attributes:
        name: as in :data:`BENCHMARKS`, and of its folder.
        features: columns.
        what: it is.
        source: the page on which the original files are published.
        licence: of the data.
        sizes: rows to train, to validate and to test.
        comparable: whether figures may stand beside published ones: "yes" or "no", and why or with which words.
        original: the file or folder that ``sinuflow data prepare`` starts from; None if there is no recipe.

    Example:
        >>> power = BENCHMARKS["power"]
        >>> power.features, power.sizes
        (6, (1659917, 184435, 204928))
        >>> power.command("sets")
        'sinuflow data prepare power --from household_power_consumption.txt --to sets'
    """

    name: str
    features: int
    what: str
    source: str
    licence: str
    sizes: tuple[int, int, int]
    comparable: str
    original: str | None

    def command(self, folder: str | os.PathLike[str]) -> str:
        """What prepares it from its original."""
        return f"sinuflow data prepare {self.name} --from {self.original} --to {folder}"


class Splits(NamedTuple):
    """The rows of a set, float32, (rows, features)."""

    train: Rows
    val: Rows
    test: Rows


#: By name.
BENCHMARKS: dict[str, Benchmark] = {
    found.name: found
    for found in (
        Benchmark(
            "power",
            6,
            "electric power of one household, every minute of four years",
            f"{_UCI}/235/individual+household+electric+power+consumption",
            _CC_BY,
            (1_659_917, 184_435, 204_928),
            "yes",
            "household_power_consumption.txt",
        ),
        Benchmark(
            "gas",
            8,
            "gas sensors in changing mixtures of ethylene and carbon monoxide",
            f"{_UCI}/322/gas+sensor+array+under+dynamic+gas+mixtures",
            _CC_BY,
            (852_174, 94_685, 105_206),
            "yes: another random quarter of the rows",
            "ethylene_CO.txt",
        ),
        Benchmark(
            "hepmass",
            21,
            "simulated particle collisions: the signal at mass 1000",
            f"{_UCI}/347/hepmass",
            _CC_BY,
            (315_123, 35_013, 174_987),
            "yes",
            "FOLDER_WITH_1000_train.csv.gz_AND_1000_test.csv.gz",
        ),
        Benchmark(
            "miniboone",
            43,
            "electron neutrinos in the MiniBooNE detector",
            f"{_UCI}/199/miniboone+particle+identification",
            _CC_BY,
            (29_556, 3_284, 3_648),
            "yes: split in the order of the file, which is our reading of the recipe",
            "MiniBooNE_PID.txt",
        ),
        Benchmark(
            "bsds300",
            63,
            "8 by 8 grey patches of the BSDS300 photographs",
            "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/bsds/",
            "for non-commercial research and education",
            (1_000_000, 50_000, 250_000),
            "yes: patches cut afresh",
            "BSDS300",
        ),
        Benchmark(
            "gas-small",
            8,
            "random rows of gas",
            f"{_UCI}/322/gas+sensor+array+under+dynamic+gas+mixtures",
            _CC_BY,
            (10_000, 10_000, 10_000),
            "no: a subset with columns of its own; compare flows on it with each other only",
            None,
        ),
        Benchmark(
            "hepmass-small",
            22,
            "the signal among the first 10,000 rows of each file of hepmass",
            f"{_UCI}/347/hepmass",
            _CC_BY,
            (4_506, 500, 4_924),
            "no: a subset with columns of its own; compare flows on it with each other only",
            None,
        ),
        Benchmark(
            "miniboone-small",
            43,
            "the validation rows of miniboone, divided once more, and its test rows",
            PREPROCESSED,
            _CC_BY,
            (2_956, 328, 3_648),
            "no: without the rows that others train on; compare flows on it with each other only",
            None,
        ),
    )
}


def benchmark(name: str) -> Benchmark:
    """The benchmark set of a name.

    Example:
        >>> benchmark("bsds300").comparable
        'yes: patches cut afresh'
    """
    if name not in BENCHMARKS:
        raise ArgumentError(f"there is no benchmark set {name!r}; choose one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


def load_benchmark(name: str, folder: str | os.PathLike[str] | None) -> Splits:
    """Read a prepared set.

    Args:
        name: as in :data:`BENCHMARKS`.
        folder: in which the folder ``name`` has ``train.npy``, ``val.npy`` and ``test.npy``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "power").mkdir()
        ...     for split in Splits._fields:
        ...         np.save(Path(folder) / "power" / f"{split}.npy", np.zeros((3, 6)))
        ...     load_benchmark("power", folder).train.shape
        (3, 6)
    """
    found = benchmark(name)
    if folder is None:
        raise DataError(f"{name} is not part of Sinuflow: say with --data in which folder it is; {_how(found, 'DIR')}")
    return Splits(*(_read(found, Path(folder), split) for split in Splits._fields))


def rows_present(name: str, folder: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """How many rows a prepared set has, by its files' headers; None if a file is not there.

    Example:
        >>> rows_present("gas", "no such folder") is None
        True
    """
    found, place = benchmark(name), Path(folder)
    if not all(_path(found, place, split).is_file() for split in Splits._fields):
        return None
    return tuple(len(_open(found, place, split)) for split in Splits._fields)


def _path(found: Benchmark, folder: Path, split: str) -> Path:
    return folder / found.name / f"{split}.npy"


def _how(found: Benchmark, folder: str | os.PathLike[str]) -> str:
    if found.original is None:
        return f"it has no recipe, so bring your own, of {found.features} columns, or take {found.name.split('-')[0]}"
    return f"get the original from {found.source} and run `{found.command(folder)}`"


def _open(found: Benchmark, folder: Path, split: str) -> np.ndarray[Any, Any]:
    path = _path(found, folder, split)
    array = open_array(path, _how(found, folder))
    if array.ndim != 2 or array.shape[1] != found.features or not np.issubdtype(array.dtype, np.floating):
        raise DataError(
            f"{path} must hold floats in {found.features} columns, and holds {array.dtype} of shape {array.shape}: "
            + _how(found, folder)
        )
    if not len(array):
        raise DataError(f"{path} has no rows: {_how(found, folder)}")
    return array


def _read(found: Benchmark, folder: Path, split: str) -> Rows:
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        rows = np.array(_open(found, folder, split), dtype=np.float32, order="C", subok=False)
    whole = np.isfinite(rows).all(1)
    if not whole.all():
        path = _path(found, folder, split)
        raise DataError(
            f"{path} holds a NaN or an infinity, first in row {int(whole.argmin()) + 1}: {_how(found, folder)}"
        )
    return rows
