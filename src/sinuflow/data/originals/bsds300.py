"""BSDS300: 8 by 8 grey patches of photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, SinuflowError
from ..benchmarks import BENCHMARKS
from ..datasets import Splits

Image = np.ndarray[Any, np.dtype[np.uint8]]
Rows = np.ndarray[Any, np.dtype[np.float32]]

_SIDE = 8
#: Patches dequantized at a time.
_CHUNK = 65_536


def prepare_bsds300(original: Path) -> Splits:
    """From the folder ``BSDS300``, with ``images/train`` and ``images/test``."""
    for folder in (original, original / "images", original / "BSDS300" / "images"):
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            return split_bsds300(read_images(folder / "train"), read_images(folder / "test"))
    raise DataError(f"there are no folders images/train and images/test in {original}: give the unpacked BSDS300")


def read_images(folder: Path) -> list[Image]:
    """The grey values of all photographs in a folder, in numerical order of their names."""
    try:
        from PIL import Image as Pillow
    except ImportError:
        raise SinuflowError("reading photographs needs Pillow: pip install pillow") from None
    paths = [path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png")]
    images = []
    for path in sorted(paths, key=lambda path: (len(path.stem), path.stem)):
        try:
            with Pillow.open(path, formats=("JPEG", "PNG")) as picture:
                image = np.asarray(picture.convert("L"), dtype=np.uint8)
        except OSError as error:
            raise DataError(f"{path} is not a picture, or is damaged: unpack BSDS300 again") from error
        if min(image.shape) < _SIDE:
            raise DataError(f"{path} is smaller than a patch of {_SIDE} by {_SIDE}: unpack BSDS300 again")
        images.append(image)
    return images


def split_bsds300(
    train: list[Image], test: list[Image], sizes: tuple[int, int, int] = BENCHMARKS["bsds300"].sizes
) -> Splits:
    """Cut patches at random places; a tenth of the training photographs is the validation split.

    The published patches were cut at other places of the same photographs.

    Example:
        >>> photographs = [np.full((9, 12), value, dtype=np.uint8) for value in range(10)]
        >>> [part.shape for part in split_bsds300(photographs, photographs, (20, 5, 10))]
        [(20, 63), (5, 63), (10, 63)]
    """
    if len(train) < 2 or not test:
        raise DataError(f"{len(train)} and {len(test)} photographs are too few: unpack BSDS300 again")
    random = np.random.RandomState(300)
    order = random.permutation(len(train))
    size = max(1, len(train) // 10)
    pools = ([train[i] for i in order[size:]], [train[i] for i in order[:size]], test)
    return Splits(*(_rows(cut(pool, n, random), random) for pool, n in zip(pools, sizes, strict=True)))


def cut(images: list[Image], count: int, random: np.random.RandomState) -> Image:
    """Patches from random places of random images, shuffled, (count, 64).

    Example:
        >>> cut([np.arange(90, dtype=np.uint8).reshape(9, 10)], 5, np.random.RandomState(0)).shape
        (5, 64)
    """
    each = np.bincount(random.randint(len(images), size=count), minlength=len(images))
    patches = []
    for image, n in zip(images, each, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(image, (_SIDE, _SIDE))
        down, across = (random.randint(0, size, size=n) for size in windows.shape[:2])
        patches.append(windows[down, across].reshape(n, _SIDE**2))
    return np.concatenate(patches)[random.permutation(count)]


def _rows(patches: Image, random: np.random.RandomState) -> Rows:
    chunks = [patches[i : i + _CHUNK] for i in range(0, len(patches), _CHUNK)]
    return np.concatenate([dequantize(chunk, random) for chunk in chunks])


def dequantize(patches: Image, random: np.random.RandomState) -> Rows:
    """Add uniform noise within a grey value, subtract the patch's mean, and drop the last pixel, which is redundant.

    Example:
        >>> dequantize(np.full((1, 64), 7, dtype=np.uint8), np.random.RandomState(0)).shape
        (1, 63)
    """
    light = (patches + random.rand(*patches.shape)) / 256.0
    light -= light.mean(1, keepdims=True)
    return light[:, :-1].astype(np.float32)
