"""Images with their classes, in three parts."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import DataError
from ..image_sets import Bytes


class LabelledSplits(NamedTuple):
    """Images (N, C, H, W) and classes (N,), under the names of their files."""

    train: Bytes
    val: Bytes
    test: Bytes
    train_labels: Bytes
    val_labels: Bytes
    test_labels: Bytes


def split_off(held_out: int, train: Bytes, labels: Bytes, test: Bytes, test_labels: Bytes) -> LabelledSplits:
    """The last of the images to train on validate, as many as that.

    Example:
        >>> import numpy as np
        >>> images, classes = np.zeros((5, 1, 2, 2), np.uint8), np.arange(5, dtype=np.uint8)
        >>> split_off(2, images, classes, images, classes).val_labels
        array([3, 4], dtype=uint8)
    """
    if len(train) <= held_out or len(train) != len(labels) or len(test) != len(test_labels):
        raise DataError(
            f"{len(train):,} images with {len(labels):,} classes to train on, and {len(test):,} with "
            f"{len(test_labels):,} to test: the files are not the published ones"
        )
    at = len(train) - held_out
    return LabelledSplits(train[:at], train[at:], test, labels[:at], labels[at:], test_labels)
