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
    """The stack as a problem of :mod:`sinuflow.solvers.implicit`, whose parameters are those of its waves."""

    key: int
    stateful = False

    def solve(
        self, z: Tensor, context: Tensor | None, parameters: Sequence[Tensor] | None, options: SolverOptions
    ) -> Inversion:
        assert parameters is not None
        return scale_stack.inverse(z, Waves(*parameters), options)

    def pull_back(
        self, x: Tensor, context: Tensor | None, parameters: Sequence[Tensor], grad_x: Tensor, grad_ladj: Tensor
    ) -> list[Tensor]:
        pull = partial(scale_stack.backward, x, Waves(*parameters))
        slope, _ = pull(torch.ones_like(x), torch.zeros_like(grad_ladj))
        ladj_by_x, _ = pull(torch.zeros_like(x), grad_ladj)
        grad_z = (grad_x - ladj_by_x) / slope
        _, grads = pull(-grad_z, -grad_ladj)
        return [grad_z, *grads]


STACK = _Stack()
enter(STACK)
