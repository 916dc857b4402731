"""The order of a column's categories, chosen so that neighbours are similar in the other columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .numbers import Array

#: The most rows that are used, and the most categories of another column.
_ROWS, _LEVELS = 20_000, 20
#: Rows by which the means of rare categories are drawn towards the middle.
_PRIOR = 10.0


def category_orders(numbers: Array, categories: Sequence[int]) -> dict[int, np.ndarray[Any, np.dtype[np.int64]]]:
    """For columns with so many categories (0 for numbers), the codes of the categories in their new order.

    With the other columns as normal scores of ranks and as indicators, the order is that of the first principal
    component of the categories' means. A code's place in the order decides which categories share a boundary on the
    axis of normal scores; similar neighbours make the conditional distributions smooth.

    Example:
        >>> size = np.repeat([1.0, 3.0, 2.0], 50)
        >>> code = np.repeat([0.0, 1.0, 2.0], 50)
        >>> order = category_orders(np.stack([code, size], 1), [3, 0])[0].tolist()
        >>> order in ([0, 2, 1], [1, 2, 0])
        True
    """
    numbers = numbers[np.random.default_rng(0).permutation(len(numbers))[:_ROWS]]
    blocks = [_scores(column, kinds) for column, kinds in zip(numbers.T, categories, strict=True)]
    orders = {}
    for i, kinds in enumerate(categories):
        if kinds < 3:
            continue
        others = np.concatenate([np.zeros((len(numbers), 1)), *blocks[:i], *blocks[i + 1 :]], axis=1)
        known = ~np.isnan(numbers[:, i])
        codes = numbers[known, i].astype(np.int64)
        counts = np.bincount(codes, minlength=kinds)
        sums = np.stack([np.bincount(codes, column, kinds) for column in others[known].T], axis=1)
        means = sums / (counts + _PRIOR)[:, None]
        weighted = means * np.sqrt(counts)[:, None]
        _, _, directions = np.linalg.svd(weighted, full_matrices=False)
        place = means @ directions[0]
        orders[i] = np.lexsort((-counts, place))
    return orders


def _scores(column: Array, kinds: int) -> Array:
    """A column as normal scores of its ranks, or as indicators of its most frequent categories, each standardized."""
    known = ~np.isnan(column)
    if kinds:
        counts = np.bincount(column[known].astype(np.int64), minlength=kinds)
        frequent = np.argsort(-counts, kind="stable")[:_LEVELS]
        block = (column[:, None] == frequent).astype(np.float64)
        scale: Any = block.std(0) * max(1, len(frequent) - 1) ** 0.5
    else:
        values, inverse, counts = np.unique(column[known], return_inverse=True, return_counts=True)
        middle = (np.cumsum(counts) - counts / 2) / max(1, known.sum())
        block = np.zeros((len(column), 1))
        block[known, 0] = torch.special.ndtri(torch.from_numpy(middle)).numpy()[inverse] if len(values) else 0.0
        scale = block.std(0)
    return np.asarray((block - block.mean(0)) / np.where(scale > 0, scale, 1.0))
