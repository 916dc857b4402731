"""MNIST and CIFAR-10 with labels, and BSDS300, 8 by 8 grey patches of photographs."""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import DataError
from ..datasets import BENCHMARKS, Splits
from ..image_files import pillow_image
from ..image_sets import IMAGE_SETS, Bytes
from .tables import find_file

_CIFAR10_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_CIFAR10_FOLDER = "cifar-10-batches-bin"
#: BSDS300: the side of a patch, and patches dequantized at a time.
_SIDE, _CHUNK = 8, 65_536


class LabelledSplits(NamedTuple):
    """Images (N, C, H, W) and labels (N,), named as their files."""

    train: Bytes
    val: Bytes
    test: Bytes
    train_labels: Bytes
    val_labels: Bytes
    test_labels: Bytes


def prepare_mnist(original: Path) -> LabelledSplits:
    """From the folder of the four published files, compressed or not."""
    if not original.is_dir():
        raise DataError(f"there is no folder {original}: give the folder of the four published files")
    train, labels, test, test_labels = (
        read_idx(find_file(original, f"{name}.gz", name), dimensions)
        for part in ("train", "t10k")
        for name, dimensions in ((f"{part}-images-idx3-ubyte", 3), (f"{part}-labels-idx1-ubyte", 1))
    )
    return _split_validation(10_000, train[:, None], labels, test[:, None], test_labels)


def prepare_cifar10(original: Path) -> LabelledSplits:
    """From ``cifar-10-binary.tar.gz`` or its unpacked folder: six files of labels and images, without pickles."""
    if original.is_dir():
        folder = original / _CIFAR10_FOLDER if (original / _CIFAR10_FOLDER).is_dir() else original
        raw = {name: find_file(folder, name).read_bytes() for name in _CIFAR10_FILES}
    else:
        raw = _from_archive(original)
    *train, (test, test_labels) = (_cifar10_images(raw[name], name) for name in _CIFAR10_FILES)
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    return _split_validation(5_000, images, labels, test, test_labels)


def _split_validation(size: int, train: Bytes, labels: Bytes, test: Bytes, test_labels: Bytes) -> LabelledSplits:
    """Split the last ``size`` training images off for validation."""
    if len(train) <= size or len(train) != len(labels) or len(test) != len(test_labels):
        raise DataError(
            f"{len(train):,} training images with {len(labels):,} labels, and {len(test):,} test images with "
            f"{len(test_labels):,}: the files are not the published ones"
        )
    at = len(train) - size
    return LabelledSplits(train[:at], train[at:], test, labels[:at], labels[at:], test_labels)


def read_idx(path: Path, dimensions: int) -> Bytes:
    """The array of an IDX file: 0, 0, 8 (for bytes), the number of dimensions, their sizes, the bytes."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: download it again") from error
    header = 4 + 4 * dimensions
    sizes = [int(n) for n in np.frombuffer(raw[4:header], ">u4")] if len(raw) >= header else []
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) != header + math.prod(sizes):
        raise DataError(f"{path} is not the published file: download it again")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(sizes)


def _from_archive(original: Path) -> dict[str, bytes]:
    contents = {}
    try:
        with tarfile.open(find_file(original, "cifar-10-binary.tar.gz")) as archive:
            for name in _CIFAR10_FILES:
                # Members are read in memory: an archive could name any place to unpack them to.
                file = archive.extractfile(f"{_CIFAR10_FOLDER}/{name}")
                contents[name] = b"" if file is None else file.read()
    except (tarfile.TarError, KeyError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{original} is not the binary version of CIFAR-10, or is damaged: get it again") from error
    return contents


def _cifar10_images(raw: bytes, name: str) -> tuple[Bytes, Bytes]:
    shape = IMAGE_SETS["cifar10"].shape
    rows = np.frombuffer(raw, np.uint8)
    if not len(rows) or len(rows) % (1 + math.prod(shape)):
        raise DataError(f"{name} is not the published file: download it again")
    rows = rows.reshape(-1, 1 + math.prod(shape))
    return rows[:, 1:].reshape(-1, *shape), rows[:, 0]


def prepare_bsds300(original: Path) -> Splits:
    """From the folder ``BSDS300``, with ``images/train`` and ``images/test``."""
    for folder in (original, original / "images", original / "BSDS300" / "images"):
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            return split_bsds300(read_photographs(folder / "train"), read_photographs(folder / "test"))
    raise DataError(f"there are no folders images/train and images/test in {original}: give the unpacked BSDS300")


def read_photographs(folder: Path) -> list[Bytes]:
    """The grey values of all photographs in a folder, in numerical order of their names."""
    image = pillow_image()
    paths = [path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png")]
    photographs = []
    for path in sorted(paths, key=lambda path: (len(path.stem), path.stem)):
        try:
            with image.open(path, formats=("JPEG", "PNG")) as picture:
                photograph = np.asarray(picture.convert("L"), dtype=np.uint8)
        except OSError as error:
            raise DataError(f"{path} is not a picture, or is damaged: unpack BSDS300 again") from error
        if min(photograph.shape) < _SIDE:
            raise DataError(f"{path} is smaller than a patch of {_SIDE} by {_SIDE}: unpack BSDS300 again")
        photographs.append(photograph)
    return photographs


def split_bsds300(
    train: list[Bytes], test: list[Bytes], sizes: tuple[int, int, int] = BENCHMARKS["bsds300"].sizes
) -> Splits:
    """Cut patches at random places; a tenth of the training photographs is the validation split.

    The published patches were cut at other places of the same photographs.
    """
    if len(train) < 2 or not test:
        raise DataError(f"{len(train)} and {len(test)} photographs are too few: unpack BSDS300 again")
    random = np.random.RandomState(300)
    order = random.permutation(len(train))
    size = max(1, len(train) // 10)
    pools = ([train[i] for i in order[size:]], [train[i] for i in order[:size]], test)
    return Splits(*(_patches(pool, n, random) for pool, n in zip(pools, sizes, strict=True)))


def _patches(photographs: list[Bytes], count: int, random: np.random.RandomState) -> np.ndarray:
    """Dequantized patches from random places of random photographs, shuffled, (count, 63)."""
    each = np.bincount(random.randint(len(photographs), size=count), minlength=len(photographs))
    patches = []
    for photograph, n in zip(photographs, each, strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(photograph, (_SIDE, _SIDE))
        down, across = (random.randint(0, size, size=n) for size in windows.shape[:2])
        patches.append(windows[down, across].reshape(n, _SIDE**2))
    shuffled = np.concatenate(patches)[random.permutation(count)]
    return np.concatenate([dequantize(shuffled[i : i + _CHUNK], random) for i in range(0, count, _CHUNK)])


def dequantize(patches: Bytes, random: np.random.RandomState) -> np.ndarray:
    """Add uniform noise within a grey value, subtract the patch's mean, and drop the last pixel, which is redundant."""
    light = (patches + random.rand(*patches.shape)) / 256.0
    light -= light.mean(1, keepdims=True)
    return light[:, :-1].astype(np.float32)
