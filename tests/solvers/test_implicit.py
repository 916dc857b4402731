"""Implicit gradients: operators that keep what their fake kernels promise to a compiler."""

from __future__ import annotations

import torch

from sinuflow.solvers import Inversion, SolverOptions
from sinuflow.solvers.implicit import inverse_backward_op, inverse_op, register_problem


class Transposed:
    """A problem whose results are not contiguous: z = x + c with the context c."""

    key: int

    def solve(self, z: torch.Tensor, inputs: list[torch.Tensor], options: SolverOptions) -> Inversion:
        return Inversion.exact((z - inputs[0]).mT.contiguous().mT, z.new_zeros(z.shape[-1]))

    def pull_back(self, x, inputs, grad_x, grad_ladj):
        return [grad_x.mT.contiguous().mT, -grad_x.mT.contiguous().mT]


def test_results_have_the_strides_that_a_compiler_expects():
    """PyTorch's own checks, among them that the fake kernels agree with the real ones."""
    problem = Transposed()
    register_problem(problem)
    z, c, grad = (torch.randn(3, 5) for _ in range(3))
    torch.library.opcheck(inverse_op, (z, [c], problem.key, "certified", 1e-12, 1e-12, 200))
    torch.library.opcheck(inverse_backward_op, (z, [c], grad, grad[0] + 1, problem.key))
