"""Benchmark sets and sets of images from the files as they were published.

The recipes are those of Papamakarios, Pavlakou & Murray, *Masked Autoregressive Flow for Density Estimation* (2017):
one file per set. They need the whole set in memory, a few gigabytes at most.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ...errors import ArgumentError, DataError
from ..benchmarks import BENCHMARKS, Benchmark, Splits
from ..image_sets import IMAGE_SETS, ImageSet
from .bsds300 import prepare_bsds300
from .cifar10 import prepare_cifar10
from .gas import prepare_gas
from .hepmass import prepare_hepmass
from .labelled import LabelledSplits
from .miniboone import prepare_miniboone
from .mnist import prepare_mnist
from .outputs import check_outputs, sizes_in_words, write_arrays
from .power import prepare_power

_RECIPES: dict[str, Callable[[Path], Splits]] = {
    "power": prepare_power,
    "gas": prepare_gas,
    "hepmass": prepare_hepmass,
    "miniboone": prepare_miniboone,
    "bsds300": prepare_bsds300,
}
_IMAGES: dict[str, Callable[[Path], LabelledSplits]] = {"mnist": prepare_mnist, "cifar10": prepare_cifar10}


def prepare(
    name: str,
    original: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Callable[[str], object] = lambda _: None,
) -> Splits | LabelledSplits:
    """Make a set of its published files, and write ``to/name/{train,val,test}.npy``; for images, their classes too.

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
    if name not in _RECIPES and name not in _IMAGES:
        ready = ", ".join([*_RECIPES, *_IMAGES])
        why = "has no recipe, because it is published nowhere" if name in BENCHMARKS else "is no set"
        raise ArgumentError(f"{name} {why}; choose one of {ready}")
    found = IMAGE_SETS[name] if name in _IMAGES else BENCHMARKS[name]
    fields = LabelledSplits._fields if name in _IMAGES else Splits._fields
    paths = [Path(to) / name / f"{field}.npy" for field in fields]
    check_outputs(paths, force)
    progress(f"reading {original}")
    splits = _IMAGES[name](Path(original)) if name in _IMAGES else _RECIPES[name](Path(original))
    if isinstance(found, ImageSet):
        _check_shape(found, splits.train.shape[1:], original)
    else:
        _check(found, Splits(*splits[:3]), original)
    write_arrays(paths, splits)
    rows = tuple(len(part) for part in splits[:3])
    progress(f"{name}: {sizes_in_words(rows)} {_in_words(found)} in {paths[0].parent}")
    if rows != found.sizes:
        progress(f"note: the published set has {sizes_in_words(found.sizes)}, so figures are not comparable")
    return splits


def _in_words(found: Benchmark | ImageSet) -> str:
    if isinstance(found, ImageSet):
        return f"images of {' x '.join(map(str, found.shape))} bytes"
    return f"rows of {found.features} columns"


def _check_shape(found: ImageSet, shape: tuple[int, ...], original: str | os.PathLike[str]) -> None:
    if shape != found.shape:
        raise DataError(
            f"{original} gives images of shape {shape} where {found.name} has {found.shape}: it is not the one of "
            f"{found.source}"
        )


def _check(found: Benchmark, splits: Splits, original: str | os.PathLike[str]) -> None:
    columns = splits.train.shape[1]
    if columns != found.features:
        raise DataError(
            f"{original} gives {columns} columns where {found.name} has {found.features}: it is not the whole file, or "
            f"not the one of {found.source}"
        )
    if not all(np.isfinite(part).all() for part in splits):
        raise DataError(f"{original} holds values that are no numbers: download it again from {found.source}")


__all__ = ["prepare"]
