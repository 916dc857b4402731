r"""Inverses of triangular maps :math:`z_i = \tau(x_i; h_i)` with :math:`h_i = c_i(x_{<i})`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..checks import shortened
from ..errors import ArgumentError, SinuflowError
from .options import SolverOptions
from .result import Inversion, Root

#: The inverse of the scalar transformer: from z and its parameters to x.
ScalarInverse = Callable[[Tensor, Tensor, SolverOptions], Root]


class Step:
    """A step of ordered substitution: features whose parameters are known, and then their solution.

    Args:
        features: a slice or a tensor of indices.
        parameters: the transformer's parameters for these features, of shape (features of the step, P, B).
    """

    def __init__(self, features: Any, parameters: Tensor) -> None:
        if isinstance(features, int):
            raise ArgumentError(
                f"a step's features must be a slice or a tensor of indices: use slice({features}, {features + 1}) "
                f"instead of {features}"
            )
        self.features, self.parameters = features, parameters
        self.x: Tensor | None = None

    def push(self, x: Tensor) -> None:
        """Pass the solution, of shape (features of the step, B), to the conditioner."""
        self.x = x

    @property
    def solution(self) -> Tensor:
        """The solution that was pushed."""
        if self.x is None:
            raise SinuflowError("step.solution is not known yet: read it after the step was yielded")
        return self.x


def substitute(steps: Iterable[Step], inverse: ScalarInverse, z: Tensor, options: SolverOptions) -> Inversion:
    """Ordered substitution, for x of shape (D, B), at the cost of about one pass of the conditioner.

    A conditioner yields a step's parameters as soon as the features that they depend on are solved.
    """
    solved: list[Any] = []
    roots: list[Root] = []
    with torch.inference_mode():  # makes small operations about twice as fast
        for step in steps:
            if not isinstance(step, Step):
                raise ArgumentError(f"a conditioner's incremental must yield Steps; got a {type(step).__name__}")
            target = z[step.features]
            # Of later steps, the solutions are checked together, which is faster.
            if not roots and step.parameters.shape[::2] != target.shape:
                raise ArgumentError(
                    f"the conditioner's step for {step.features} has parameters of shape {tuple(step.parameters.shape)}"
                    f" instead of (features of the step, parameters, rows), here {(len(target), 'P', *z.shape[1:])}"
                )
            root = inverse(target, step.parameters, options)
            step.push(root.x)
            solved.append(step.features)
            roots.append(root)
    order, valid = _order(solved, z)
    root = Root(*map(torch.cat, zip(*roots, strict=True)))
    if root.x.shape != z.shape:
        raise ArgumentError(f"the steps' solutions have shape {tuple(root.x.shape)} instead of {tuple(z.shape)}")
    if order is not None:
        root = Root(*(t[order] for t in root))
    return (root if valid is None else root._replace(converged=root.converged & valid)).per_row()


def _order(solved: list[Any], z: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The indices that sort the solved features, or None if they are sorted; and on a GPU, a flag for each feature.

    The flag says whether it was solved exactly once: on a GPU, an error would synchronize with the host.
    """
    if all(isinstance(features, slice) for features in solved):
        listed = [i for features in solved for i in range(len(z))[features]]
        if listed == [*range(len(z))]:
            return None, None
        features = torch.tensor(listed, dtype=torch.long)
    else:
        features = torch.cat([torch.arange(len(z), device=z.device)[features] for features in solved])
    in_order, order = features.sort()
    if len(in_order) == len(z):
        expected = torch.arange(len(z), device=in_order.device)
        if in_order.is_cuda:
            return order, (in_order == expected).unsqueeze(-1)
        if torch.equal(in_order, expected):
            return order.to(z.device), None
    counts = features.bincount(minlength=len(z)).tolist()
    missing, repeated = ([i for i, n in enumerate(counts) if test(n)] for test in (lambda n: n == 0, lambda n: n > 1))
    raise ArgumentError(
        f"the steps of the conditioner's incremental must name each of the {len(z)} features once: "
        f"they leave out {shortened(missing)} and repeat {shortened(repeated)}"
    )


def parallel_sweeps(
    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    inverse: ScalarInverse,
    z: Tensor,
    options: SolverOptions,
) -> Inversion:
    r"""Jacobi iteration for x of shape (D, B), all features at once, starting from x = z.

    One sweep computes the parameters from the current x and solves for every :math:`x_i` with them. After sweep j at
    least the first j features are exact, so after D sweeps all are, whatever the network. A row stops as soon as its
    residual is within :math:`\text{atol} + \text{rtol}\,|x|` (for a shift this is Algorithm 1 of the paper); the
    remaining rows are swept again. ``evaluate(x, rows)`` returns z, the log-determinant and the parameters of the
    chosen rows of the batch.
    """
    (features, count), (rtol, atol) = z.shape, options.tolerances(z.dtype)
    x = z.clone()
    rows = torch.arange(count, device=z.device)
    ladj, residual = torch.empty_like(z[0]), torch.empty_like(z[0])
    iterations, converged = torch.zeros_like(rows, dtype=torch.int32), torch.zeros_like(rows, dtype=torch.bool)
    solved = ~converged
    for used in range(1, options.limit + 1):
        current, target = x[:, rows], z[:, rows]
        value, forward_ladj, parameters = evaluate(current, rows)
        gap = (value - target).abs()
        # After D sweeps x no longer changes: the residual is rounding, if every scalar inverse has converged.
        final = solved[rows] & (used > features)
        done = (gap.isfinite() & ((gap <= atol + rtol * current.abs()) | final)).all(0)
        ladj[rows], residual[rows], converged[rows], iterations[rows] = -forward_ladj, gap.amax(0), done, used
        if used == options.limit or bool(done.all()):
            break
        rows = rows[~done]
        root = inverse(target[:, ~done], parameters[..., ~done], options)
        x[:, rows] = root.x
        solved[rows] &= root.converged.all(0)
    return Inversion(x, ladj, iterations, residual, converged)
