"""Class labels of images: integers in, one-hot context out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError


def as_labels(labels: Any, count: int, name: str = "labels") -> Tensor:
    """Labels as a tensor: an integer of at least 0 for each of ``count`` images.

    Example:
        >>> as_labels([0, 2, 1], count=3).tolist()
        [0, 2, 1]
    """
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{name} must be integers, the classes counted from 0; got dtype {array.dtype}")
    if array.shape != (count,):
        raise DataError(f"{name} must have one integer for each of the {count} images; got shape {array.shape}")
    if array.size and array.min() < 0:
        raise DataError(f"{name} must count the classes from 0; got {array.min()}")
    return torch.from_numpy(array.astype(np.int64))


def class_counts(labels: Tensor, name: str = "labels") -> list[int]:
    """How many images every class has; classes must be numbered without gaps.

    Example:
        >>> class_counts(torch.tensor([0, 1, 1]))
        [1, 2]
    """
    unique, counts = labels.unique(return_counts=True)  # in increasing order
    gaps = (unique != torch.arange(len(unique))).nonzero()
    if len(gaps):
        raise DataError(
            f"{name} go up to {int(labels.max())}, but no image has the label {int(gaps[0])}: "
            "number the classes from 0 without gaps"
        )
    return [int(n) for n in counts]


def class_indices(labels: Any, classes: Sequence[str], count: int) -> Tensor:
    """Labels, or names of classes, as the indices of known classes.

    Example:
        >>> class_indices(["dog", "cat"], classes=["cat", "dog"], count=2).tolist()
        [1, 0]
    """
    if isinstance(labels, (list, tuple)) and any(isinstance(label, str) for label in labels):
        unknown = [label for label in labels if label not in classes]
        if unknown:
            raise DataError(f"there is no class {unknown[0]!r}; the model has {listed(classes)}")
        labels = [classes.index(label) for label in labels]
    indices = as_labels(labels, count)
    if count and int(indices.max()) >= len(classes):
        raise DataError(f"labels must be below {len(classes)}, the number of the model's classes; got {indices.max()}")
    return indices


def listed(classes: Sequence[str], most: int = 10) -> str:
    """The names of classes, abbreviated if there are many."""
    return ", ".join(classes[:most]) + (", ..." if len(classes) > most else "")
