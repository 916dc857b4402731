"""Results of solvers: a scalar root, and the inverse of a bijection, both with their certificates."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Root(NamedTuple):
    """A solution of f(x) = target with its certificate, elementwise."""

    x: Tensor
    slope: Tensor  # f'(x)
    iterations: Tensor  # evaluations of f for this element
    residual: Tensor  # |f - target|, before the last step
    converged: Tensor  # whether the residual is within the tolerance

    @classmethod
    def exact(cls, x: Tensor, slope: Tensor) -> Root:
        """A root in closed form; it has converged wherever it is finite."""
        return cls(x, slope, torch.ones_like(x, dtype=torch.int32), torch.zeros_like(x), x.isfinite())

    def per_row(self) -> Inversion:
        """The inverse of an elementwise map (D, B), with certificates reduced over the features."""
        ladj = -self.slope.log().sum(0)
        return Inversion(self.x, ladj, self.iterations.amax(0), self.residual.amax(0), self.converged.all(0))


class Inversion(NamedTuple):
    r"""The inverse of a bijection, its log-determinant, and the certificate of every sample.

    For a layer, ``x`` has shape (D, B), and the other fields have shape (B,). For a chain, the last three have shape
    (layers, B). For ``flow.invert``, all have the batch shape: ``residual`` is then the end-to-end one,
    :math:`\max_i |T^{-1}(x)_i - z_i|`, ``iterations`` the maximum over the layers, and ``converged`` says whether every
    layer met its tolerance and the residual is within :math:`\text{atol} + \text{rtol} \max_i |z_i|`.
    """

    x: Tensor
    ladj: Tensor
    iterations: Tensor
    residual: Tensor
    converged: Tensor

    @classmethod
    def exact(cls, x: Tensor, ladj: Tensor | None, usable: Tensor | None = None) -> Inversion:
        """An inverse in closed form; samples have not converged where x is not finite or parameters are not ``usable``.

        ``ladj`` may be a scalar for all rows, or None for 0.
        """
        residual = (x.detach() * 0).sum(0).abs_()  # 0, or NaN where x is not finite
        if usable is not None:
            residual = torch.where(usable, residual, torch.nan)
        ladj = torch.zeros_like(residual) if ladj is None else ladj
        ladj = ladj.expand_as(residual) if ladj.dim() == 0 else ladj
        return cls(x, ladj, torch.ones_like(ladj, dtype=torch.int32), residual, residual == 0)

    @classmethod
    def stack(cls, layers: list[Inversion]) -> Inversion:
        """The inverse of a chain from those of its layers, in the order in which they were inverted."""
        _, _, *certificates = zip(*layers, strict=True)
        iterations, residual, converged = (
            torch.cat([t if t.dim() == 2 else t[None] for t in each]) for each in certificates
        )
        ladj = torch.stack([layer.ladj for layer in layers]).sum(0)
        return cls(layers[-1].x, ladj, iterations, residual.detach(), converged)

    def to(self, dtype: torch.dtype) -> Inversion:
        """The inversion in another dtype; samples that overflow in it have not converged."""
        x, ladj, residual = (t.to(dtype) for t in (self.x, self.ladj, self.residual))
        return Inversion(x, ladj, self.iterations, residual, self.converged & x.isfinite().all(0))
