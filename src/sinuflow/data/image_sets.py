"""MNIST and CIFAR-10 with the splits of Papamakarios, Pavlakou & Murray (2017)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .datasets import Dataset, Splits, find

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class ImageSet(Dataset):
    """An image dataset of bytes.

    Example:
        >>> IMAGE_SETS["mnist"].shape, IMAGE_SETS["mnist"].sizes
        ((1, 28, 28), (50000, 10000, 10000))
        >>> IMAGE_SETS["cifar10"].command("sets")
        'sinuflow data prepare cifar10 --from cifar-10-binary.tar.gz --to sets'
    """

    licence: str = "none stated; published for research"
    alpha: float = 1e-6  # of the PixelMap of published results
    flips: bool = False  # whether training images are flipped horizontally at random

    dtype: ClassVar[type[np.generic]] = np.uint8
    examples: ClassVar[str] = "images"


#: The image datasets by name.
IMAGE_SETS: dict[str, ImageSet] = {
    dataset.name: dataset
    for dataset in (
        ImageSet(
            "mnist",
            (1, 28, 28),
            "grey images of handwritten digits",
            "https://yann.lecun.com/exdb/mnist/",
            (50_000, 10_000, 10_000),
            "FOLDER_WITH_train-images-idx3-ubyte.gz_AND_THE_OTHER_THREE",
            "yes: the last 10,000 training images are the validation split",
        ),
        ImageSet(
            "cifar10",
            (3, 32, 32),
            "small colour photographs of ten classes",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            (45_000, 5_000, 10_000),
            "cifar-10-binary.tar.gz",
            "yes: the last 5,000 training images are the validation split",
            alpha=0.05,
            flips=True,
        ),
    )
}


def image_set(name: str) -> ImageSet:
    """The image dataset of a name."""
    return find(IMAGE_SETS, name, "image dataset")


def load_image_set(name: str, folder: str | os.PathLike[str] | None) -> Splits:
    """Read a prepared dataset in ``folder/name``; ``name`` is one of :data:`IMAGE_SETS`."""
    return image_set(name).load(folder)
