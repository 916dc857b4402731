"""The benchmark tables of Papamakarios, Pavlakou & Murray (2017), on which most flows are evaluated."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from ..errors import DataError
from .datasets import Array, Dataset, find
from .datasets import Splits as Splits

#: The authors' own prepared files of the five datasets.
PREPROCESSED = "https://zenodo.org/records/1161203"

_UCI = "https://archive.ics.uci.edu/dataset"
_GAS, _HEPMASS = f"{_UCI}/322/gas+sensor+array+under+dynamic+gas+mixtures", f"{_UCI}/347/hepmass"


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

    def _read(self, split: str, folder: Path) -> Array:
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


def benchmark(name: str) -> Benchmark:
    """The benchmark dataset of a name."""
    return find(BENCHMARKS, name, "benchmark dataset")


def load_benchmark(name: str, folder: str | os.PathLike[str] | None) -> Splits:
    """Read a prepared dataset: ``train.npy``, ``val.npy`` and ``test.npy`` in ``folder/name``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "power").mkdir()
        ...     for split in Splits._fields:
        ...         np.save(Path(folder) / "power" / f"{split}.npy", np.zeros((3, 6)))
        ...     load_benchmark("power", folder).train.shape
        (3, 6)
    """
    return benchmark(name).load(folder)
