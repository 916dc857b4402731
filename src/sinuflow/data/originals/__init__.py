"""Benchmark sets from the files as they were published.

The recipes are those of Papamakarios, Pavlakou & Murray, *Masked Autoregressive Flow for Density Estimation* (2017):
one file per set. They need the whole set in memory, a few gigabytes at most.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ...errors import ArgumentError, DataError, StorageError
from ...storage import replacing
from ..benchmarks import Benchmark, Splits, benchmark
from .bsds300 import prepare_bsds300
from .gas import prepare_gas
from .hepmass import prepare_hepmass
from .miniboone import prepare_miniboone
from .power import prepare_power

_RECIPES: dict[str, Callable[[Path], Splits]] = {
    "power": prepare_power,
    "gas": prepare_gas,
    "hepmass": prepare_hepmass,
    "miniboone": prepare_miniboone,
    "bsds300": prepare_bsds300,
}


def prepare(
    name: str,
    original: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Callable[[str], object] = lambda _: None,
) -> Splits:
    """Make a benchmark set of its published files, and write ``to/name/{train,val,test}.npy``.

    Args:
        name: of the set.
        original: the published file, or the folder that it is in.
        to: the folder of the sets; it is made if it is not there.
        force: replace what is there.
        progress: is told what happens.

    Example:
        >>> import tempfile
        >>> random = np.random.default_rng(0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "ethylene_CO.txt"
        ...     times, sensors = np.zeros((800, 3)), random.normal(size=(800, 8))
        ...     np.savetxt(file, np.hstack([times, sensors, sensors]), header="time, gases, sensors")
        ...     prepare("gas", file, folder).train.shape
        (162, 8)
    """
    found = benchmark(name)
    if name not in _RECIPES:
        ready = ", ".join(_RECIPES)
        raise ArgumentError(f"{name} has no recipe, because it is published nowhere; choose one of {ready}")
    paths = [Path(to) / name / f"{split}.npy" for split in Splits._fields]
    _check_outputs(paths, force)
    progress(f"reading {original}")
    splits = _RECIPES[name](Path(original))
    _check(found, splits, original)
    _write(paths, splits)
    rows = tuple(len(part) for part in splits)
    progress(f"{name}: {_sizes(rows)} rows of {found.features} columns in {paths[0].parent}")
    if rows != found.sizes:
        progress(f"note: the published set has {_sizes(found.sizes)} rows, so figures are not comparable")
    return splits


def _sizes(rows: tuple[int, ...]) -> str:
    return " / ".join(f"{n:,}" for n in rows)


def _check_outputs(paths: list[Path], force: bool) -> None:
    """Before any work is done for them."""
    for path in paths:
        if path.exists() and not force:
            raise StorageError(f"{path} exists already: replace it with --force, or choose another folder")
    for folder in (paths[0].parent, paths[0].parent.parent):
        if folder.exists() and not folder.is_dir():
            raise StorageError(f"cannot write into {folder}: it is not a folder")


def _check(found: Benchmark, splits: Splits, original: str | os.PathLike[str]) -> None:
    columns = splits.train.shape[1]
    if columns != found.features:
        raise DataError(
            f"{original} gives {columns} columns where {found.name} has {found.features}: it is not the whole file, or "
            f"not the one of {found.source}"
        )
    if not all(np.isfinite(part).all() for part in splits):
        raise DataError(f"{original} holds values that are no numbers: download it again from {found.source}")


def _write(paths: list[Path], splits: Splits) -> None:
    """All three are written before the first takes the place of another."""
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {paths[0].parent}: {error.strerror or error}") from error
    with ExitStack() as stack:
        for path, rows in zip(paths, splits, strict=True):
            with open(stack.enter_context(replacing(path)), "wb") as file:
                np.save(file, rows, allow_pickle=False)


__all__ = ["prepare"]
