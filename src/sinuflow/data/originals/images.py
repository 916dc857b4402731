"""MNIST and CIFAR-10 from their published files, with labels."""

from __future__ import annotations

import gzip
import math
import tarfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import DataError
from ..image_sets import IMAGE_SETS, Bytes
from .common import find_file

_CIFAR10_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_CIFAR10_FOLDER = "cifar-10-batches-bin"


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
    return split_validation(10_000, train[:, None], labels, test[:, None], test_labels)


def prepare_cifar10(original: Path) -> LabelledSplits:
    """From ``cifar-10-binary.tar.gz`` or its unpacked folder: six files of labels and images, without pickles."""
    raw = _from_folder(original) if original.is_dir() else _from_archive(original)
    *train, (test, test_labels) = (_cifar10_images(raw[name], name) for name in _CIFAR10_FILES)
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    return split_validation(5_000, images, labels, test, test_labels)


def split_validation(size: int, train: Bytes, labels: Bytes, test: Bytes, test_labels: Bytes) -> LabelledSplits:
    """Split the last ``size`` training images off for validation.

    Example:
        >>> images, labels = np.zeros((5, 1, 2, 2), np.uint8), np.arange(5, dtype=np.uint8)
        >>> split_validation(2, images, labels, images, labels).val_labels
        array([3, 4], dtype=uint8)
    """
    if len(train) <= size or len(train) != len(labels) or len(test) != len(test_labels):
        raise DataError(
            f"{len(train):,} training images with {len(labels):,} labels, and {len(test):,} test images with "
            f"{len(test_labels):,}: the files are not the published ones"
        )
    at = len(train) - size
    return LabelledSplits(train[:at], train[at:], test, labels[:at], labels[at:], test_labels)


def read_idx(path: Path, dimensions: int) -> Bytes:
    """The array of an IDX file: 0, 0, 8 (for bytes), the number of dimensions, their sizes, the bytes.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "idx"
        >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7]))
        >>> read_idx(path, 1)
        array([5, 6, 7], dtype=uint8)
    """
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


def _from_folder(original: Path) -> dict[str, bytes]:
    folder = original / _CIFAR10_FOLDER if (original / _CIFAR10_FOLDER).is_dir() else original
    return {name: find_file(folder, name).read_bytes() for name in _CIFAR10_FILES}


def _from_archive(original: Path) -> dict[str, bytes]:
    if not original.is_file():
        raise DataError(f"there is no {original}: give the published file cifar-10-binary.tar.gz, or its folder")
    contents = {}
    try:
        with tarfile.open(original) as archive:
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
