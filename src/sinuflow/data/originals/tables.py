"""POWER, GAS, HEPMASS and MINIBOONE, and the steps that recipes share: finding, reading, splitting, standardizing."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ..datasets import Splits
from ..numbers import Array

#: HEPMASS: the published dataset uses the first tenth of each file.
_TRAIN_ROWS, _TEST_ROWS = 700_000, 350_000


def prepare_power(original: Path) -> Splits:
    """POWER, electric power consumption of one household, from ``household_power_consumption.txt``.

    Complete rows, shuffled, dequantized by uniform noise, split into tenths and standardized by train and val. The
    published paper adds noise to the minute too; its code does not. Without noise the density is unbounded, so noise is
    added here, from a separate generator: the other columns are those of the published code.
    """
    path = find_file(original, "household_power_consumption.txt")
    with path.open(encoding="utf-8", errors="replace") as file:
        next(file, None)  # the header
        complete = (line for line in file if "?" not in line)
        # Active power, voltage, the three meters and the time; without the date, reactive power and intensity.
        options = {"usecols": (2, 4, 6, 7, 8, 1), "converters": {1: _minute_of_day}}
        table = read_table(complete, str(path), delimiter=";", **options)
    n, random = len(table), np.random.RandomState(42)
    order = random.permutation(n)
    volts, watts, meters = 0.01 * random.rand(n, 1), 0.001 * random.rand(n, 1), random.rand(n, 3)
    minutes = np.random.RandomState(2006).rand(n, 1)
    noisy = table[order] + np.hstack([watts, volts, meters, minutes])
    train, val, test = split_tenths(noisy)
    return standardize((train, val, test), by=noisy[: -len(test)])


def _minute_of_day(time: str) -> float:
    hours, minutes, _ = time.split(":")
    return 60.0 * int(hours) + int(minutes)


def prepare_gas(original: Path) -> Splits:
    """GAS, sixteen gas sensors without those that nearly copy another, from ``ethylene_CO.txt``.

    A random quarter of the rows, split into tenths and standardized by all rows. The published dataset is another
    random quarter: which rows is not recorded.
    """
    path = find_file(original, "ethylene_CO.txt")
    table = read_table(path, str(path), skiprows=1, usecols=range(3, 19))  # without the time and the mixture
    chosen = np.random.RandomState(42).permutation(len(table))[: round(len(table) / 4)]
    table = drop_correlated(table[chosen])
    return standardize(split_tenths(table), by=table, ddof=1)


def drop_correlated(table: Array) -> Array:
    """Drop the first column whose correlation with another exceeds 0.98, until there is none."""
    if len(table) < 2:
        return table
    with np.errstate(invalid="ignore", divide="ignore"):  # a constant column has no correlation
        correlated = np.corrcoef(table, rowvar=False).reshape(table.shape[1], -1) > 0.98
    np.fill_diagonal(correlated, False)
    columns = np.ones(len(correlated), dtype=bool)
    while (copies := (correlated & columns).any(1) & columns).any():
        columns[copies.argmax()] = False
    return table[:, columns]


def prepare_hepmass(original: Path) -> Splits:
    """HEPMASS, simulated collisions, from a folder with ``1000_train.csv.gz`` and ``1000_test.csv.gz``, or unpacked.

    The rows of particles of mass 1000, without columns that repeat their smallest value. The last tenth of the training
    rows, which standardize, is the validation split.
    """
    folder = original.parent if original.is_file() else original
    signals = []
    for name, rows in (("1000_train.csv", _TRAIN_ROWS), ("1000_test.csv", _TEST_ROWS)):
        path = find_file(folder, f"{name}.gz", name)
        # The label and 26 of 27 features: one file's header lacks the last name, and the published dataset the column.
        table = read_table(path, str(path), delimiter=",", skiprows=1, usecols=range(27), max_rows=rows)
        signals.append(table[table[:, 0] == 1, 1:])
        if not len(signals[-1]):
            raise DataError("no row has the label 1: the file is not the published one, download it again")
    columns = ~repeats_smallest(signals[0])
    train, test = (signal[:, columns] for signal in signals)
    return standardize((*last_tenth(train), test), by=train, ddof=1)


def prepare_miniboone(original: Path) -> Splits:
    """MINIBOONE, electron neutrinos in a detector, from ``MiniBooNE_PID.txt``.

    The signal, which comes before the background; the first line holds both numbers of rows. Drops rows without a
    measurement and columns that repeat their smallest value; standardized by train and val. The rows are split into
    tenths in the order of the file, because no other order is recorded.
    """
    path = find_file(original, "MiniBooNE_PID.txt")
    with path.open(encoding="utf-8", errors="replace") as file:
        counts = file.readline().split()
    if len(counts) != 2 or not all(count.isdigit() for count in counts):
        raise DataError(f"the first line of {path} must hold two numbers of rows: download MiniBooNE_PID.txt again")
    table = read_table(path, str(path), skiprows=1, max_rows=int(counts[0]))
    if len(table) < int(counts[0]):
        raise DataError(f"{path} ends after {len(table)} of {counts[0]} rows of signal: download it again")
    table = table[table[:, 0] >= -100.0]  # far below, there is no measurement
    if not len(table):
        raise DataError("no row holds a measurement: the file is not the published one, download it again")
    table = table[:, ~repeats_smallest(table)]
    train, val, test = split_tenths(table)
    return standardize((train, val, test), by=table[: -len(test)])


def find_file(original: Path, *names: str) -> Path:
    """The file itself, or the first of these names that exists in the folder."""
    if original.is_dir():
        for name in names:
            if (original / name).is_file():
                return original / name
        raise DataError(f"there is no {' or '.join(names)} in {original}: give the folder of the unpacked files")
    if not original.is_file():
        raise DataError(f"there is no {original}: give the published file {names[0]}, or its folder")
    return original


def read_table(text: Path | Iterable[str], name: str, **options: Any) -> Array:
    """The numbers of a text file, compressed by gzip or not, or of its lines, with options of :func:`numpy.loadtxt`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty table is an error below, not a warning
            table = np.loadtxt(text, ndmin=2, encoding="utf-8", **options)
    except (ValueError, IndexError, EOFError, OSError, zlib.error) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].split(";")[0]
        raise DataError(f"{name} is not the published file: {reason}") from error
    if not table.size:
        raise DataError(f"{name} has no rows of numbers: download it again")
    return table


def split_tenths(table: Array) -> tuple[Array, Array, Array]:
    """Train, val and test: the last tenth is the test split, the last tenth of the rest the validation split."""
    rest, test = last_tenth(table)
    return *last_tenth(rest), test


def last_tenth(table: Array) -> tuple[Array, Array]:
    """All but the last tenth of the rows, and the last tenth."""
    at = len(table) - len(table) // 10
    if at == len(table):
        raise DataError(f"{len(table)} rows cannot be split into tenths: the file is incomplete, download it again")
    return table[:at], table[at:]


def standardize(parts: Iterable[Array], by: Array, ddof: int = 0) -> Splits:
    """Subtract the column means of ``by`` and divide by its standard deviations; float32."""
    with np.errstate(invalid="ignore"):  # infinities are refused as well
        mean, std = by.mean(0), by.std(0, ddof=ddof)
    if not (std > 0).all():
        raise DataError("a column is constant, or not finite: the file is not the published one")
    return Splits(*(((part - mean) / std).astype(np.float32) for part in parts))


def repeats_smallest(table: Array) -> np.ndarray:
    """Columns in which the smallest value occurs more than five times.

    The published preparation removes columns with "too many reoccurring values", but it counts the smallest value only:
    counts and censored values are removed, values that recur in the middle stay.
    """
    repeats: np.ndarray = (table == table.min(0)).sum(0) > 5
    return repeats
