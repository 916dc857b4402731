r"""Ordered substitution: the inverse of an autoregressive map at the cost of about one pass of its conditioner.

The map is :math:`z_i = \tau(x_i; h_i)` with :math:`h_i = c_i(x_{<i})`. A conditioner hands out parameters step by step:
as soon as it knows the features that they depend on, which the previous steps have solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .options import SolverOptions
from .result import Inversion, Root

#: The indices of some features: a slice or a tensor of integers.
Features = Any


class Step:
    """Some features whose parameters are known, and in return the solution for these features.

    Args:
        features: their indices, as a slice or a tensor of integers.
        parameters: of shape (features of the step, P, B).
    """

    def __init__(self, features: Features, parameters: Tensor) -> None:
        self.features, self.parameters = features, parameters
        self.x: Tensor | None = None

    def push(self, x: Tensor) -> None:
        """Give the conditioner the solution, of shape (features of the step, B)."""
        self.x = x

    @property
    def solution(self) -> Tensor:
        """The solution that was pushed."""
        if self.x is None:
            raise RuntimeError("the solution of a step must be pushed before the next step")
        return self.x


def substitute(
    steps: Iterable[Step], inverse: Callable[[Tensor, Tensor, SolverOptions], Root], z: Tensor, options: SolverOptions
) -> Inversion:
    """Solve for x of shape (D, B), step by step; ``inverse`` is that of the scalar transformer."""
    solved: list[Features] = []
    roots: list[Root] = []
    with torch.inference_mode():  # makes small operations about twice as fast
        for step in steps:
            root = inverse(z[step.features], step.parameters, options)
            step.push(root.x)
            solved.append(step.features)
            roots.append(root)
    starts = [features.start for features in solved if isinstance(features, slice)]
    if len(starts) == len(solved) and starts == sorted(starts):
        return Root(*map(torch.cat, zip(*roots, strict=True))).per_row()
    order = torch.cat([torch.arange(len(z), device=z.device)[features] for features in solved]).argsort()
    return Root(*(torch.cat(parts)[order] for parts in zip(*roots, strict=True))).per_row()
