"""The inverse of a stack of sinusoidal transformers, with implicit gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..solvers import Inversion, SolverOptions
from ..solvers.implicit import enter
from . import scale_stack
from .waves import Waves


class _Stack:
    """The stack as a problem of :mod:`sinuflow.solvers.implicit`, whose inputs are its waves."""

    key: int

    def solve(self, z: Tensor, inputs: Sequence[Tensor], options: SolverOptions) -> Inversion:
        return scale_stack.inverse(z, Waves(*inputs), options)

    def pull_back(self, x: Tensor, inputs: Sequence[Tensor], grad_x: Tensor, grad_ladj: Tensor) -> list[Tensor]:
        pull = partial(scale_stack.backward, x, Waves(*inputs))
        slope, _ = pull(torch.ones_like(x), torch.zeros_like(grad_ladj))
        ladj_by_x, _ = pull(torch.zeros_like(x), grad_ladj)
        grad_z = (grad_x - ladj_by_x) / slope
        _, grads = pull(-grad_z, -grad_ladj)
        return [grad_z, *grads]


STACK = _Stack()
enter(STACK)
