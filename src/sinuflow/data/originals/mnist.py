"""MNIST: four files of bytes, each with its sizes in front."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..image_sets import Bytes
from .common import find_file
from .labelled import LabelledSplits, split_off

#: Images that validate: the last ones to train on.
_HELD_OUT = 10_000


def prepare_mnist(original: Path) -> LabelledSplits:
    """From the folder of the four published files, packed or not."""
    parts = [
        read_bytes(_find(original, f"{part}-{kind}"), dimensions)
        for part in ("train", "t10k")
        for kind, dimensions in (("images-idx3-ubyte", 3), ("labels-idx1-ubyte", 1))
    ]
    train, labels, test, test_labels = parts
    return split_off(_HELD_OUT, train[:, None], labels, test[:, None], test_labels)


def _find(original: Path, name: str) -> Path:
    if not original.is_dir():
        raise DataError(f"there is no folder {original}: give the folder of the four published files")
    return find_file(original, f"{name}.gz", name)


def read_bytes(path: Path, dimensions: int) -> Bytes:
    """A file of the kind "idx": 0, 0, the kind of numbers (8: bytes), how many dimensions, their sizes, the bytes.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "idx"
        >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 5, 6, 7]))
        >>> read_bytes(path, 1)
        array([5, 6, 7], dtype=uint8)
    """
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: download it again") from error
    head = 4 + 4 * dimensions
    sizes = [int(n) for n in np.frombuffer(raw[4:head], ">u4")] if len(raw) >= head else []
    if raw[:4] != bytes([0, 0, 8, dimensions]) or len(raw) != head + math.prod(sizes):
        raise DataError(f"{path} is not the file as it was published: download it again")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(sizes)
