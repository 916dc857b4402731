r"""One sinusoidal transformer.

With :math:`u = a x`, :math:`p = \alpha w \cos 2b` and :math:`q = \alpha w \sin 2b`,

.. math::
    \tau(x) &= x + \sum_k \frac{q_k \sin^2 u_k - p_k \sin u_k \cos u_k}{a_k} + d \\
    \tau'(x) &= 1 - \sum_k \left[ p_k (1 - 2 \sin^2 u_k) - 2 q_k \sin u_k \cos u_k \right] \\
    \tau''(x) &= \sum_k 2 a_k \left[ q_k (1 - 2 \sin^2 u_k) + 2 p_k \sin u_k \cos u_k \right]

which is the paper's :math:`x + \alpha \sum_k w_k [\sin 2b_k - \sin(2 a_k x + 2 b_k)] / (2 a_k) + d` by the addition
theorems. Nothing cancels as :math:`a \to 0`, because :math:`\sin(u)/a \to x`; and value, slope and curvature are linear
in :math:`\sin^2 u` and :math:`\sin u \cos u`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

#: The largest residual weight. In float32 tanh reaches exactly 1, where the slope could vanish.
ALPHA_MAX = 1 - 2**-10

#: The smallest frequency. A wave this slow is a straight line over any sensible range.
FREQUENCY_MIN = 1e-4

#: Waves below about this frequency are nearly linear over the range of standardised data.
SLOW = 0.1


class Waves(NamedTuple):
    """The constrained parameters of one transformer per feature.

    ``frequency``, ``cosine`` and ``sine`` have shape ``(..., K, B)`` or ``(..., K, 1)``,
    ``shift`` has ``(..., B)`` or ``(..., 1)``: the last axis is 1 when all rows share them.
    """

    frequency: Tensor  # a
    cosine: Tensor  # p = α w cos 2b
    sine: Tensor  # q = α w sin 2b
    shift: Tensor  # d

    def to(self, dtype: torch.dtype) -> Waves:
        """The same in another precision."""
        return self if self.shift.dtype == dtype else Waves(*(t.to(dtype) for t in self))


def sin_products(angle: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\sin^2 u` and :math:`\sin u \cos u`, both with a small relative error as u → 0."""
    tangent = torch.tan(angle)
    product = tangent / (1 + tangent * tangent)
    return tangent * product, product


def transform(x: Tensor, waves: Waves) -> tuple[Tensor, Tensor]:
    r"""The transformer :math:`\tau(x)` and :math:`\log \tau'(x)`, elementwise.

    Example:
        >>> import torch
        >>> one, zero = torch.ones(1, 4, 1), torch.zeros(1, 4, 1)
        >>> waves = Waves(one, zero, zero, torch.zeros(1, 1))  # α = d = 0 is the identity
        >>> transform(torch.tensor([[1.0, 2.0]]), waves)[0]
        tensor([[1., 2.]])
    """
    a, p, q, d = waves
    square, product = sin_products(a * x.unsqueeze(-2))
    value = x + ((q * square - p * product) / a).sum(-2) + d
    bend = (p * (1 - 2 * square) - 2 * q * product).sum(-2)
    return value, torch.log1p(-bend)


class WaveFunction(NamedTuple):
    r"""A transformer as a monotone function to be inverted: value, slope and curvature at once.

    All three are linear in :math:`\sin^2 u` and :math:`\sin u \cos u`, so one contraction of a table of coefficients
    with those two gives them all. Shapes are (D, ..., B), or (D, ..., 1) if all rows share the waves.
    """

    frequency: Tensor  # a, (D, K, B)
    coefficients: Tensor  # for value, slope and curvature, (D, 3, 2K, B)
    constants: Tensor  # added to their sums, (D, 3, B)
    lowest_slope: Tensor  # a lower bound of the slope, (D, B)
    tilt: Tensor  # the slope at 0 of the waves that are nearly linear over the range of the data, (D, B)

    @classmethod
    def stack(cls, waves: Waves) -> list[WaveFunction]:
        """The functions of a stack of transformers, whose waves have a leading axis of scales."""
        a, p, q, d = waves
        both, double = 2 * torch.cat([p, q], dim=-2), torch.cat([a, a], dim=-2)
        signed = torch.cat([q, -p], dim=-2)
        coefficients = torch.stack([signed / double, both, -4 * double * signed], dim=-3)
        constants = torch.stack([d, 1 - p.sum(-2), (2 * a * q).sum(-2)], dim=-2)
        lowest = 1 - torch.hypot(p, q).sum(-2).clamp(max=ALPHA_MAX)
        tilt = 1 - (p / (1 + (a / SLOW) ** 4)).sum(-2)
        return [cls(*parts) for parts in zip(a, coefficients, constants, lowest, tilt, strict=True)]

    @property
    def highest_slope(self) -> Tensor:
        """An upper bound of the slope."""
        return 2 - self.lowest_slope

    def select(self, rows: Tensor, columns: Tensor) -> WaveFunction:
        """The function of the elements (rows[j], columns[j]) alone, as a tensor of shape (1, count)."""

        def pick(part: Tensor) -> Tensor:
            picked = part[..., 0].index_select(0, rows) if part.shape[-1] == 1 else part[rows, ..., columns]
            return picked.movedim(0, -1).contiguous().unsqueeze(0)

        return WaveFunction(*map(pick, self))

    def guess(self, target: Tensor) -> Tensor:
        """A first iterate: the solution if slow waves were linear, and fast ones absent."""
        return (target - self.constants[..., 0, :]) / self.tilt

    def bracket(self, target: Tensor) -> tuple[Tensor, Tensor]:
        r"""An interval that holds the solution: :math:`|x - (z - d - \sum q/2a)| \le \sum |\alpha| w/2a`."""
        sine, cosine = self.coefficients[..., 0, :, :].chunk(2, dim=-2)  # q/a and -p/a
        centre = target - self.constants[..., 0, :] - sine.sum(-2) / 2
        radius = torch.hypot(sine, cosine).sum(-2) / 2
        slack = 16 * torch.finfo(target.dtype).eps * (centre.abs() + target.abs() + radius)
        return centre - radius - slack, centre + radius + slack

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r""":math:`\tau(x)`, :math:`\tau'(x)` and :math:`\tau''(x)` for ``x`` of shape (D, B)."""
        table = torch.cat(sin_products(self.frequency * x.unsqueeze(-2)), dim=-2)
        if self.coefficients.shape[-1] == 1:
            results = torch.baddbmm(self.constants, self.coefficients.squeeze(-1), table)
        else:
            results = (self.coefficients * table.unsqueeze(-3)).sum(-2) + self.constants
        rise, slope, curvature = results.unbind(-2)
        return rise + x, slope, curvature
