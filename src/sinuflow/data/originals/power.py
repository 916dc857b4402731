"""POWER: electric power consumption of one household."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..datasets import Splits
from .common import Array, find_file, read_table, split_tenths, standardize

#: Active power, voltage, the three meters and the time; without the date, reactive power and intensity.
_COLUMNS = (2, 4, 6, 7, 8, 1)


def prepare_power(original: Path) -> Splits:
    """From ``household_power_consumption.txt``."""
    return split_power(read_power(find_file(original, "household_power_consumption.txt")))


def read_power(path: Path) -> Array:
    """Complete rows: active power, voltage, three meters, minute of the day."""
    lines = _complete_lines(path)
    return read_table(lines, str(path), delimiter=";", usecols=_COLUMNS, converters={1: minute_of_day})


def _complete_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        next(file, None)  # the header
        yield from (line for line in file if "?" not in line)


def minute_of_day(time: str) -> float:
    """Minutes since midnight.

    Example:
        >>> minute_of_day("17:24:00")
        1044.0
    """
    hours, minutes, _ = time.split(":")
    return 60.0 * int(hours) + int(minutes)


def split_power(table: Array) -> Splits:
    """Shuffle, dequantize by uniform noise, split into tenths and standardize by train and val.

    The published paper adds noise to the minute too; its code does not. Without noise the density is unbounded, so
    noise is added here, from a separate generator: the other columns are those of the published code.

    Example:
        >>> splits = split_power(np.random.default_rng(0).normal(size=(100, 6)))
        >>> [part.shape for part in splits]
        [(81, 6), (9, 6), (10, 6)]
    """
    n, random = len(table), np.random.RandomState(42)
    order = random.permutation(n)
    volts, watts, meters = 0.01 * random.rand(n, 1), 0.001 * random.rand(n, 1), random.rand(n, 3)
    minutes = np.random.RandomState(2006).rand(n, 1)
    noisy = table[order] + np.hstack([watts, volts, meters, minutes])
    train, val, test = split_tenths(noisy)
    return standardize((train, val, test), by=noisy[: -len(test)])
