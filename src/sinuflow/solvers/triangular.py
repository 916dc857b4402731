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
    """Some features whose parameters are known, and in return the solution for these features.

    The features are a slice or a tensor of indices; their parameters have shape (features of the step, P, B).
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
        """Give the conditioner the solution, of shape (features of the step, B)."""
        self.x = x

    @property
    def solution(self) -> Tensor:
        """The solution that was pushed."""
        if self.x is None:
            raise SinuflowError("step.solution is not known yet: read it after the step was yielded")
        return self.x


def substitute(steps: Iterable[Step], inverse: ScalarInverse, z: Tensor, options: SolverOptions) -> Inversion:
    """Ordered substitution, for x of shape (D, B), at the cost of about one pass of the conditioner.

    A conditioner yields parameters step by step: as soon as it knows the features that they depend on, which the
    previous steps have solved.
    """
    solved: list[Any] = []
    roots: list[Root] = []
    with torch.inference_mode():  # makes small operations about twice as fast
        for step in steps:
            if not isinstance(step, Step):
                raise ArgumentError(f"a conditioner's incremental must yield Steps; got a {type(step).__name__}")
            target = z[step.features]
            if not roots and step.parameters.shape[::2] != target.shape:  # later ones only as a whole, to save time
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
    """Where the steps solved features 0, 1, ..., or None if in this order; and on a GPU, whether they solved each once.

    Each step names its features by a slice or by indices. The host does not wait for indices on a GPU.
    """
    if all(isinstance(features, slice) for features in solved):
        listed = [i for features in solved for i in range(len(z))[features]]
        if listed == [*range(len(z))]:
            return None, None
        features = torch.tensor(listed, dtype=torch.long)
    else:
        features = torch.cat([torch.arange(len(z), device=z.device)[features] for features in solved])
    found, order = features.sort()
    if len(found) == len(z):
        expected = torch.arange(len(z), device=found.device)
        if found.is_cuda:
            return order, (found == expected).unsqueeze(-1)
        if torch.equal(found, expected):
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

    One sweep computes the parameters from the current x and solves for every :math:`x_i` with them, so sweep j makes at
    least the first j features exact: after D sweeps all are, whatever the network. A row stops as soon as its residual
    is within :math:`\text{atol} + \text{rtol}\,|x|` (for a shift this is Algorithm 1 of the paper); only the others are
    swept again. ``evaluate(x, rows)`` gives z, the log-determinant and the parameters of the chosen rows of the batch.
    """
    (features, count), (rtol, atol) = z.shape, options.tolerances(z.dtype)
    x = z.clone()
    rows = torch.arange(count, device=z.device)
    ladj, residual = torch.empty_like(z[0]), torch.empty_like(z[0])
    iterations, converged = torch.zeros_like(rows, dtype=torch.int32), torch.zeros_like(rows, dtype=torch.bool)
    solved = ~converged
    for used in range(1, options.limit + 1):
        here, target = x[:, rows], z[:, rows]
        value, forward_ladj, parameters = evaluate(here, rows)
        gap = (value - target).abs()
        # Beyond D sweeps nothing changes any more: what is left is rounding, if every inverse has converged.
        final = solved[rows] & (used > features)
        near = (gap.isfinite() & ((gap <= atol + rtol * here.abs()) | final)).all(0)
        ladj[rows], residual[rows], converged[rows], iterations[rows] = -forward_ladj, gap.amax(0), near, used
        if used == options.limit or bool(near.all()):
            break
        rows = rows[~near]
        root = inverse(target[:, ~near], parameters[..., ~near], options)
        x[:, rows] = root.x
        solved[rows] &= root.converged.all(0)
    return Inversion(x, ladj, iterations, residual, converged)
