"""Sets of images: what they are, where they are published, and reading them once they are prepared.

MNIST and CIFAR-10 as Papamakarios, Pavlakou & Murray (2017) use them. Neither is part of this package: a set is a
folder with ``train.npy``, ``val.npy`` and ``test.npy``, bytes of shape (N, C, H, W), which
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

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class ImageSet:
    """A set of images.

    Attributes:
        name: as in :data:`IMAGE_SETS`, and of its folder.
        shape: (C, H, W) of an image.
        what: it is.
        source: the page on which the original files are published.
        licence: of the data.
        sizes: images to train, to validate and to test.
        comparable: whether figures may stand beside published ones, and with which words.
        alpha: of the :class:`~sinuflow.bijections.pixels.PixelMap` with which published figures were found.
        flips: whether training exchanges left and right.
        original: the files that ``sinuflow data prepare`` starts from.

    Example:
        >>> IMAGE_SETS["mnist"].shape, IMAGE_SETS["mnist"].sizes
        ((1, 28, 28), (50000, 10000, 10000))
        >>> IMAGE_SETS["cifar10"].command("sets")
        'sinuflow data prepare cifar10 --from cifar-10-binary.tar.gz --to sets'
    """

    name: str
    shape: tuple[int, int, int]
    what: str
    source: str
    licence: str
    sizes: tuple[int, int, int]
    comparable: str
    alpha: float
    flips: bool
    original: str

    def command(self, folder: str | os.PathLike[str]) -> str:
        """What prepares it from its original."""
        return f"sinuflow data prepare {self.name} --from {self.original} --to {folder}"


class ImageSplits(NamedTuple):
    """The images of a set, bytes of shape (N, C, H, W)."""

    train: Bytes
    val: Bytes
    test: Bytes


#: By name.
IMAGE_SETS: dict[str, ImageSet] = {
    found.name: found
    for found in (
        ImageSet(
            "mnist",
            (1, 28, 28),
            "grey images of handwritten digits",
            "https://yann.lecun.com/exdb/mnist/",
            "none stated; published for research",
            (50_000, 10_000, 10_000),
            "yes: the last 10,000 of the images to train on validate",
            1e-6,
            False,
            "FOLDER_WITH_train-images-idx3-ubyte.gz_AND_THE_OTHER_THREE",
        ),
        ImageSet(
            "cifar10",
            (3, 32, 32),
            "small colour photographs of ten kinds of things",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            "none stated; published for research",
            (45_000, 5_000, 10_000),
            "yes: the last 5,000 of the images to train on validate",
            0.05,
            True,
            "cifar-10-binary.tar.gz",
        ),
    )
}


def image_set(name: str) -> ImageSet:
    """The set of a name.

    Example:
        >>> image_set("cifar10").alpha
        0.05
    """
    if name not in IMAGE_SETS:
        raise ArgumentError(f"there is no set of images {name!r}; choose one of {', '.join(IMAGE_SETS)}")
    return IMAGE_SETS[name]


def load_image_set(name: str, folder: str | os.PathLike[str] | None) -> ImageSplits:
    """Read a prepared set.

    Args:
        name: as in :data:`IMAGE_SETS`.
        folder: in which the folder ``name`` has ``train.npy``, ``val.npy`` and ``test.npy``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "mnist").mkdir()
        ...     for split in ImageSplits._fields:
        ...         np.save(Path(folder) / "mnist" / f"{split}.npy", np.zeros((3, 1, 28, 28), np.uint8))
        ...     load_image_set("mnist", folder).train.shape
        (3, 1, 28, 28)
    """
    found = image_set(name)
    if folder is None:
        raise DataError(f"{name} is not part of Sinuflow: say with --data in which folder it is; {_how(found, 'DIR')}")
    return ImageSplits(*(np.array(_open(found, Path(folder), split)) for split in ImageSplits._fields))


def images_present(name: str, folder: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """How many images a prepared set has, by its files' headers; None if a file is not there.

    Example:
        >>> images_present("mnist", "no such folder") is None
        True
    """
    found, place = image_set(name), Path(folder)
    if not all((place / name / f"{split}.npy").is_file() for split in ImageSplits._fields):
        return None
    return tuple(len(_open(found, place, split)) for split in ImageSplits._fields)


def _how(found: ImageSet, folder: str | os.PathLike[str]) -> str:
    return f"get the original from {found.source} and run `{found.command(folder)}`"


def _open(found: ImageSet, folder: Path, split: str) -> np.ndarray[Any, Any]:
    path = folder / found.name / f"{split}.npy"
    array = open_array(path, _how(found, folder))
    if array.dtype != np.uint8 or array.shape[1:] != found.shape:
        raise DataError(
            f"{path} must hold uint8 of shape (N, {', '.join(map(str, found.shape))}), and holds {array.dtype} of "
            f"shape {array.shape}: {_how(found, folder)}"
        )
    if not len(array):
        raise DataError(f"{path} has no images: {_how(found, folder)}")
    return array
