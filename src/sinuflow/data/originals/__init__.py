"""Preparing benchmark datasets from the files as they were published.

The recipes are those of Papamakarios, Pavlakou & Murray, *Masked Autoregressive Flow for Density Estimation* (2017).
They need the whole dataset in memory, a few gigabytes at most.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from ...errors import ArgumentError, DataError, StorageError
from ...files import replacing
from ..datasets import BENCHMARKS, Dataset, Splits
from ..image_sets import IMAGE_SETS
from .images import LabelledSplits, prepare_bsds300, prepare_cifar10, prepare_mnist
from .tables import prepare_gas, prepare_hepmass, prepare_miniboone, prepare_power

_RECIPES: dict[str, Callable[[Path], Splits | LabelledSplits]] = {
    "power": prepare_power,
    "gas": prepare_gas,
    "hepmass": prepare_hepmass,
    "miniboone": prepare_miniboone,
    "bsds300": prepare_bsds300,
    "mnist": prepare_mnist,
    "cifar10": prepare_cifar10,
}


def prepare(
    name: str,
    original: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Callable[[str], object] = lambda _: None,
) -> Splits | LabelledSplits:
    """Prepare a dataset from its published files: write ``to/name/{train,val,test}.npy``, and the labels of images.

    ``original`` is the published file, or its folder; ``force`` replaces existing files.
    """
    if name not in _RECIPES:
        reason = "has no recipe, because it is not published" if name in BENCHMARKS else "is not a known dataset"
        raise ArgumentError(f"{name} {reason}; choose one of {', '.join(_RECIPES)}")
    dataset: Dataset = IMAGE_SETS[name] if name in IMAGE_SETS else BENCHMARKS[name]
    fields = (LabelledSplits if name in IMAGE_SETS else Splits)._fields
    paths = [Path(to) / name / f"{field}.npy" for field in fields]
    _check_outputs(paths, force)
    progress(f"reading {original}")
    splits = _RECIPES[name](Path(original))
    examples = splits[:3]
    shape = examples[0].shape[1:]
    if shape != dataset.shape:
        raise DataError(
            f"{original} has {dataset.examples} of {in_words(shape)} where {name} has {in_words(dataset.shape)}: it is "
            f"incomplete, or not the file of {dataset.source}"
        )
    if not all(np.isfinite(part).all() for part in examples):
        raise DataError(f"{original} holds NaN or infinite values: download it again from {dataset.source}")
    _write_arrays(paths, splits)
    sizes = tuple(map(len, examples))
    progress(f"{name}: {sizes_in_words(sizes)} {dataset.examples} of {in_words(shape)} in {paths[0].parent}")
    if sizes != dataset.sizes:
        progress(f"note: the published dataset has {sizes_in_words(dataset.sizes)}, so results are not comparable")
    return splits


def in_words(shape: tuple[int, ...]) -> str:
    """The shape of an example: "6 columns", or "1 x 28 x 28 bytes"."""
    return f"{' x '.join(map(str, shape))} {'columns' if len(shape) == 1 else 'bytes'}"


def sizes_in_words(sizes: tuple[int, ...]) -> str:
    """The sizes of the splits, as in "45,000 / 5,000 / 10,000"."""
    return " / ".join(f"{n:,}" for n in sizes)


def _check_outputs(paths: list[Path], force: bool) -> None:
    for path in paths:
        if path.exists() and not force:
            raise StorageError(f"{path} exists already: replace it with --force, or choose another folder")
    for folder in (paths[0].parent, paths[0].parent.parent):
        if folder.exists() and not folder.is_dir():
            raise StorageError(f"cannot write into {folder}: it is not a folder")


def _write_arrays(paths: list[Path], arrays: Iterable[np.ndarray]) -> None:
    """Write all arrays or none: all temporary files are complete before the first replaces an old file."""
    try:
        paths[0].parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot create the folder {paths[0].parent}: {error.strerror or error}") from error
    with ExitStack() as stack:
        for path, rows in zip(paths, arrays, strict=True):
            with open(stack.enter_context(replacing(path)), "wb") as file:
                np.save(file, rows, allow_pickle=False)
