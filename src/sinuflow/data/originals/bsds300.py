"""BSDS300: small grey patches of photographs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError, SinuflowError
from ..benchmarks import BENCHMARKS, Rows, Splits

Image = np.ndarray[Any, np.dtype[np.uint8]]

_SIDE = 8
#: Patches that become numbers at once.
_CHUNK = 65_536


def prepare_bsds300(original: Path) -> Splits:
    """From the folder ``BSDS300``, which has the folders ``images/train`` and ``images/test``."""
    for folder in (original, original / "images", original / "BSDS300" / "images"):
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            return split_bsds300(read_images(folder / "train"), read_images(folder / "test"))
    raise DataError(f"there are no folders images/train and images/test in {original}: give the unpacked BSDS300")


def read_images(folder: Path) -> list[Image]:
    """The grey values of all photographs in a folder, in the order of their numbers."""
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
    """Cut patches at random places; a tenth of the photographs to train on is kept to validate.

    The published patches were cut elsewhere in the same photographs, so these are other rows of the same kind.

    Example:
        >>> photographs = [np.full((9, 12), value, dtype=np.uint8) for value in range(10)]
        >>> [part.shape for part in split_bsds300(photographs, photographs, (20, 5, 10))]
        [(20, 63), (5, 63), (10, 63)]
    """
    if len(train) < 2 or not test:
        raise DataError(f"{len(train)} and {len(test)} photographs are too few: unpack BSDS300 again")
    random = np.random.RandomState(300)
    order = random.permutation(len(train))
    held = max(1, len(train) // 10)
    pools = ([train[i] for i in order[held:]], [train[i] for i in order[:held]], test)
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
    return np.concatenate([dequantised(chunk, random) for chunk in chunks])


def dequantised(patches: Image, random: np.random.RandomState) -> Rows:
    """Uniform noise within a grey value, less the patch's mean; the last pixel follows from the others and is left out.

    Example:
        >>> dequantised(np.full((1, 64), 7, dtype=np.uint8), np.random.RandomState(0)).shape
        (1, 63)
    """
    light = (patches + random.rand(*patches.shape)) / 256.0
    light -= light.mean(1, keepdims=True)
    return light[:, :-1].astype(np.float32)
