"""What a solver answers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Root(NamedTuple):
    """A solution of f(x) = target with its certificate, elementwise."""

    x: Tensor
    slope: Tensor  # f'(x)
    iterations: Tensor  # evaluations of f that were spent on the element
    residual: Tensor  # |f - target|, before the last step
    converged: Tensor  # whether the residual is within the tolerance


class MonotoneFunction(Protocol):
    """A strictly increasing function of one variable, one per element of a tensor."""

    @property
    def lowest_slope(self) -> Tensor:
        """A number m > 0 with m <= f' everywhere."""

    @property
    def highest_slope(self) -> Tensor:
        """A number M with f' <= M everywhere."""

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """f(x), f'(x) and f''(x), which the caller may overwrite, and the next evaluation will."""

    def guess(self, target: Tensor) -> Tensor:
        """Somewhere to start."""

    def bracket(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """An interval that holds the solution."""

    def select(self, rows: Tensor, columns: Tensor) -> MonotoneFunction:
        """The function of the elements (rows[j], columns[j]) alone, as a tensor of shape (1, count)."""


def working_precision(x: Tensor, target: Tensor, ulps: float = 8.0) -> Tensor:
    """The residual that rounding alone explains.

    It is relative: an absolute tolerance is out of reach for large x and too lax for small.
    """
    return torch.maximum(x.abs(), target.abs()).mul_(ulps * torch.finfo(x.dtype).eps)
