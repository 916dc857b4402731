"""CIFAR-10: six files in which each image is its class and 3,072 bytes; the published form without pickles."""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

import numpy as np

from ...errors import DataError
from ..image_sets import IMAGE_SETS, Bytes
from .labelled import LabelledSplits, split_off

#: Images that validate: the last ones to train on.
_HELD_OUT = 5_000
_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_FOLDER = "cifar-10-batches-bin"


def prepare_cifar10(original: Path) -> LabelledSplits:
    """From ``cifar-10-binary.tar.gz``, or the folder that was unpacked from it."""
    raw = _from_folder(original) if original.is_dir() else _from_archive(original)
    *train, (test, test_labels) = (_images(raw[name], name) for name in _FILES)
    images, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    return split_off(_HELD_OUT, images, labels, test, test_labels)


def _from_folder(original: Path) -> dict[str, bytes]:
    folder = original / _FOLDER if (original / _FOLDER).is_dir() else original
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise DataError(f"there is no {missing[0]} in {folder}: give the binary version of CIFAR-10, or its folder")
    return {name: (folder / name).read_bytes() for name in _FILES}


def _from_archive(original: Path) -> dict[str, bytes]:
    if not original.is_file():
        raise DataError(f"there is no {original}: give the published file cifar-10-binary.tar.gz, or its folder")
    found = {}
    try:
        with tarfile.open(original) as archive:
            for name in _FILES:
                file = archive.extractfile(f"{_FOLDER}/{name}")  # read, and never unpacked to a place that it names
                found[name] = b"" if file is None else file.read()
    except (tarfile.TarError, KeyError, EOFError, OSError, zlib.error) as error:
        raise DataError(
            f"{original} is not the binary version of CIFAR-10, or is damaged: download it again"
        ) from error
    return found


def _images(raw: bytes, name: str) -> tuple[Bytes, Bytes]:
    shape = IMAGE_SETS["cifar10"].shape
    rows = np.frombuffer(raw, np.uint8)
    if not len(rows) or len(rows) % (1 + np.prod(shape)):
        raise DataError(f"{name} is not the file as it was published: download it again")
    rows = rows.reshape(-1, 1 + np.prod(shape))
    return rows[:, 1:].reshape(-1, *shape), rows[:, 0]
