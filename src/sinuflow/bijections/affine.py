"""Affine maps: elementwise, and with a full matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from ..registry import register
from ..solvers import Inversion, SolverOptions
from .base import Bijection


@register
class ElementwiseAffine(Bijection):
    r"""The map :math:`z_i = (x_i - \mu_i) \, e^{-s_i}`.

    It starts as the identity. :meth:`initialize` sets it from data, as ActNorm does (Kingma and Dhariwal, 2018), so
    that its output has mean 0 and standard deviation 1; this happens when it is called and never inside ``forward``,
    whose meaning must not depend on what it saw before.

    Example:
        >>> affine = ElementwiseAffine(2)
        >>> x = 3 + 5 * torch.randn(1000, 2)
        >>> _ = affine.initialize(x.T, None)
        >>> z, _ = affine(x)
        >>> bool(z.mean().abs() < 1e-5)
        True
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.mean = nn.Parameter(torch.zeros(features))
        self.log_scale = nn.Parameter(torch.zeros(features))

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        log_scale = self.log_scale.to(x.dtype)
        z = (x - self.mean.unsqueeze(-1)) * torch.exp(-log_scale).unsqueeze(-1)
        return z, -log_scale.sum().expand(x.shape[-1])

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        mean, log_scale = self.mean.to(z.dtype), self.log_scale.to(z.dtype)
        x = torch.addcmul(mean.unsqueeze(-1), z, torch.exp(log_scale).unsqueeze(-1))
        usable = _resolved(self.mean.detach(), self.log_scale.detach()).all()
        return Inversion.exact(x, log_scale.sum().expand(z.shape[-1]), usable)

    @torch.no_grad()
    def initialize(self, x: Tensor, context: Tensor | None) -> Tensor:
        spread = x.std(dim=-1, correction=0)
        # A feature that does not vary gives no scale: leave it as it is.
        log_scale = torch.where(spread > 0, spread.log(), self.log_scale)
        mean = x.mean(-1)
        _refuse_degenerate(mean, log_scale)
        self.log_scale.copy_(log_scale)
        self.mean.copy_(mean)
        return self.transform(x, context)[0]

    def check_degenerate(self) -> None:
        _refuse_degenerate(self.mean, self.log_scale)


def _resolved(mean: Tensor, log_scale: Tensor) -> Tensor:
    r"""Whether the dtype resolves each feature's mean and scale :math:`e^s`; False for NaN and infinity.

    The scale and its reciprocal, the factors of the two directions, must be normal floating-point numbers, and the
    plausible draws :math:`\mu + e^s z` must not all round to the same value.
    """
    reach = 8 * torch.exp(log_scale)  # the fraction of draws outside is 1e-15
    return _normal(log_scale) & (mean + reach > mean - reach)


def _normal(log_scale: Tensor) -> Tensor:
    return log_scale.abs() <= -math.log(torch.finfo(log_scale.dtype).tiny)


def _refuse_degenerate(mean: Tensor, log_scale: Tensor) -> None:
    mean, log_scale = mean.detach(), log_scale.detach()
    _raise_unless(_resolved(mean, log_scale), "elementwise affine map", {"mean": mean, "log-scale": log_scale})


def _raise_unless(resolved: Tensor, kind: str, parameters: dict[str, Tensor]) -> None:
    if bool(resolved.all()):
        return
    i = int((~resolved).nonzero()[0])
    values = " and ".join(f"the {name} {float(value[i]):.4g}" for name, value in parameters.items())
    (dtype,) = {value.dtype for value in parameters.values()}
    raise ArgumentError(
        f"the {kind} is degenerate in {int((~resolved).sum())} of {len(resolved)} features: {dtype} cannot resolve "
        f"{values} of feature {i}. Standardise the data, leave out features that do not vary, or use float64"
    )


@register
class Linear(Bijection):
    r"""The map :math:`z = L U x + b` with a unit lower triangular L and an upper triangular U of positive diagonal.

    The log-determinant is :math:`\sum_i \log U_{ii}`, a constant. It starts as the identity.

    Example:
        >>> linear = Linear(features=3)
        >>> x = torch.randn(5, 3)
        >>> z, ladj = linear(x)
        >>> torch.allclose(linear.inverse(z)[0], x)
        True
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.lower = nn.Parameter(torch.zeros(features, features))
        self.upper = nn.Parameter(torch.zeros(features, features))
        self.log_diagonal = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        y = self.upper.triu(1) @ x + self.log_diagonal.exp().unsqueeze(-1) * x
        z = self.lower.tril(-1) @ y + y + self.bias.unsqueeze(-1)
        return z, self.log_diagonal.sum().expand(x.shape[-1])

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        upper = torch.diagonal_scatter(self.upper, self.log_diagonal.exp())
        # Only the triangles that these solvers read are factors.
        y = torch.linalg.solve_triangular(self.lower, z - self.bias.unsqueeze(-1), upper=False, unitriangular=True)
        x = torch.linalg.solve_triangular(upper, y, upper=True)
        return Inversion.exact(x, -self.log_diagonal.sum().expand(z.shape[-1]), self._resolved().all())

    def _resolved(self) -> Tensor:
        """Whether the dtype resolves each :math:`U_{ii}`, its reciprocal, and plausible draws of :math:`z_i - b_i`."""
        return _normal(self.log_diagonal) & (self.bias.abs() < 8 / torch.finfo(self.bias.dtype).eps)

    def check_degenerate(self) -> None:
        parameters = {"bias": self.bias.detach(), "log-diagonal": self.log_diagonal.detach()}
        _raise_unless(self._resolved(), "linear map", parameters)
