"""Percentiles of log-densities among rows that a model was not fitted to."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[np.float64]]

#: The maximum number of scores that a model stores; of more, it stores this number of quantiles.
_MAX_SCORES = 10_000
#: The minimum number of rows to resolve the percentile 99.
MIN_ROWS = 200


def calibration_quantiles(scores: Tensor) -> Tensor:
    """The scores in increasing order, or quantiles of them if there are many."""
    if len(scores) <= _MAX_SCORES:
        return scores.sort().values
    return torch.quantile(scores, torch.linspace(0, 1, _MAX_SCORES, dtype=torch.float64))


def percentile(log_density: Array, quantiles: Array, rows: int) -> Array:
    r"""The percentile of log-densities s among those of n calibration rows.

    .. math:: 100 \Big( 1 - \frac{1 + \#\{i : s_i \le s\}}{n + 1} \Big)

    This is a conformal p-value: if the row has the same distribution as the calibration rows, its percentile exceeds p
    with a probability of at most 1 - p / 100.

    Example:
        >>> percentile(np.array([-9.0, 0.5, 9.0]), np.array([0.0, 1.0, 2.0]), 3).tolist()
        [75.0, 50.0, 0.0]
    """
    below = np.searchsorted(quantiles, log_density, side="right") / len(quantiles)
    return np.where(np.isnan(log_density), np.nan, 100 * (1 - (1 + below * rows) / (rows + 1)))
