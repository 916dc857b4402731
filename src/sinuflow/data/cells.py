"""Cells: the parts of an axis of normal scores that the values of a table's columns own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..bijections.columns import Float64Module
from .columns import Column

#: The fixed points of a row's cells over which its density is averaged.
POINTS = 32
#: Cells with less probability are narrow: uniform points in them are uniform in normal scores.
_NARROW = 1e-3
#: Where float64 ends: Φ(-38) is its smallest number.
_FAR = 38.0
_LOG_SQRT_TAU = 0.5 * math.log(2 * math.pi)

#: A bijection of feature-major columns: its values, and the log-derivative of each.
Curve = Callable[[Tensor], tuple[Tensor, Tensor]]


class Located(NamedTuple):
    """Cells of rows, feature-major, and what does not depend on the point in them.

    A width above 0 is a probability: the cell is the set of Φ⁻¹(u) for u in (start, start + width). One below 0 is a
    length of the axis: the cell is (start, start - width). A width of 0 stands for the point itself.
    """

    start: Tensor  # (D, B)
    width: Tensor  # (D, B)
    log_measure: Tensor  # (B,): the log-density of a row is this plus the log-mean over its cells


class Cells(Float64Module):
    r"""The cells of the values of columns, and the value that owns a point.

    A column's distribution is a mixture: missing with probability :math:`p_0`, one of the atoms
    :math:`a_1 < a_2 < \dots` with probabilities :math:`p_j`, and otherwise, with probability q, continuous with the
    distribution function :math:`\Phi \circ c` for an increasing curve c. On the axis of normal scores,
    :math:`\Phi^{-1}(u)` for u in (0, 1), a value x with the half-width h (0, or half a step of the column's grid) owns

    .. math::
        u \in \Big( p_0 + \sum_{a_j < x} p_j + q\, \Phi(c(x - h)),\;
                    p_0 + \sum_{a_j \le x} p_j + q\, \Phi(c(x + h)) \Big)

    and a missing value (0, p₀). A value that the mixture cannot have, such as a category that was never seen, owns the
    whole axis: the column is then integrated out, and the row's density is multiplied by the probability ε that the
    rule of succession gives to such an event.
    """

    atoms: Tensor
    below: Tensor
    smooth: Tensor
    half_width: Tensor
    middle: Tensor
    log_step: Tensor
    log_spread: Tensor
    surprise: Tensor
    plain: Tensor
    edges: Tensor

    def __init__(self, columns: Sequence[Column], curve: Curve) -> None:
        super().__init__()
        most = max([1, *(len(c.atoms) for c in columns)])
        atoms = [[*c.atoms, *[math.inf] * (most - len(c.atoms))] for c in columns]
        masses = [[c.missing, *c.masses, *[0.0] * (most - len(c.masses))] for c in columns]
        below = torch.tensor(masses, dtype=torch.float64).cumsum(1)
        self.register_buffer("atoms", torch.tensor(atoms, dtype=torch.float64))
        #: The probability of being missing or one of the first j atoms, for j = 0, 1, ...
        self.register_buffer("below", below)
        rest = [0.0 if c.discrete else max(0.0, 1.0 - math.fsum((c.missing, *c.masses))) for c in columns]
        step = [math.log(c.cell) if c.cell else 0.0 for c in columns]
        spread = [c.log_spread for c in columns]
        numbers = {"smooth": rest, "half_width": [c.cell / 2 for c in columns], "log_step": step, "log_spread": spread}
        numbers |= {
            "surprise": [-math.log(c.rows + 2.0) for c in columns],
            "middle": [(c.low + c.high) / 2 for c in columns],
        }
        for name, values in numbers.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64).unsqueeze(1))
        #: Whether the axis of a column is that of its curve.
        self.register_buffer("plain", torch.tensor([not (c.missing or c.atoms) for c in columns]).unsqueeze(1))
        low, high = (self._probability(self.atoms, side, curve) for side in (-1, 1))
        edges = torch.stack([below[:, :-1] + low, below[:, 1:] + high])
        self.register_buffer("edges", edges.masked_fill(self.atoms.isinf(), 2.0))

    def _probability(self, x: Tensor, side: int, curve: Curve) -> Tensor:
        """The continuous part's probability below x minus or plus the half-width."""
        at = torch.where(x.isfinite(), x, 0.0) + side * self.half_width
        return self.smooth * _cdf(self._extended(curve, at)[0])

    def _extended(self, curve: Curve, x: Tensor) -> tuple[Tensor, Tensor]:
        """The curve, infinite beyond its domain and at the ends of it."""
        z, log_slope = curve(x)
        return torch.where(z.isnan(), torch.where(x < self.middle, -torch.inf, torch.inf), z), log_slope

    @torch.no_grad()
    def locate(self, x: Tensor, curve: Curve, absent: Tensor | None = None) -> Located:
        """The cells of rows (D, B): NaN is a missing value, infinity one that the column cannot have.

        Where ``absent``, a column has no value in this row; it owns the whole axis.
        """
        missing, known = x.isnan(), x.isfinite()
        at = torch.where(known, x, 0.0)
        before, upto = (torch.searchsorted(self.atoms, at.contiguous(), right=right) for right in (False, True))
        below, above = self.below.gather(1, before), self.below.gather(1, upto)
        z, log_slope = self._extended(curve, at)
        low, high = z, z
        if bool((self.half_width > 0).any()):
            low, high = (self._extended(curve, at + side * self.half_width)[0] for side in (-1, 1))
        u0 = torch.where(missing, 0.0, below + self.smooth * _cdf(low))
        u1 = torch.where(missing, self._missing, above + self.smooth * _cdf(high))
        width = u1 - u0
        on_curve = known & (upto == before) & (self.smooth > 0) & z.isfinite()
        point = on_curve & (self.half_width == 0)
        # Φ is not precise enough for narrow cells and for those in the tails: their ends on the axis are.
        score, ends = self._score(z, below), [self._score(t, below) for t in (low, high)]
        length = (ends[1] - ends[0]).clamp(min=1e-300)  # 0 where even the tail is at its end
        narrow = on_curve & ~point & (width < _NARROW) & low.isfinite() & high.isfinite()
        measure = torch.where(narrow, length, width).log() - torch.where(missing, 0.0, self.log_step)
        slope = self.smooth.log() + _log_phi(z) - _log_phi(score) + log_slope
        measure = torch.where(point, torch.where(self.plain, log_slope, slope), measure)
        start = torch.where(point, score, torch.where(narrow, ends[0], u0))
        width = torch.where(point, 0.0, torch.where(narrow, -length, width))
        impossible = ~point & ~narrow & ~(known & (width > 0)) & ~(missing & (width > 0))
        start, width = torch.where(impossible, 0.0, start), torch.where(impossible, 1.0, width)
        measure = torch.where(impossible, self.surprise - torch.where(missing, 0.0, self.log_spread), measure)
        if absent is not None:
            start, width = start.masked_fill(absent, 0.0), width.masked_fill(absent, 1.0)
            measure = measure.masked_fill(absent, 0.0)
        return Located(start, width, measure.sum(0))

    @property
    def _missing(self) -> Tensor:
        return self.below[:, :1]

    def _above(self, below: Tensor) -> Tensor:
        """The probability of the atoms that are not counted in ``below``."""
        return self.below[:, -1:] - below

    def _score(self, z: Tensor, below: Tensor) -> Tensor:
        """The normal score of values of the curve: Φ⁻¹(below + q Φ(z)), precise in both tails."""
        lower = torch.special.ndtri((below + self.smooth * _cdf(z)).clamp(1e-300, 1.0))
        upper = -torch.special.ndtri((self._above(below) + self.smooth * _cdf(-z)).clamp(1e-300, 1.0))
        return torch.where(self.plain, z, torch.where(z > 0, upper, lower))

    def fold(self, z: Tensor, inverse: Callable[[Tensor], Tensor]) -> Tensor:
        """The values (D, B) that own points of the axis, by the inverse of the curve; NaN for missing values."""
        u = _cdf(z)
        above = torch.searchsorted(self.edges[1].contiguous(), u.contiguous(), right=True)
        index = above.clamp(max=self.atoms.shape[1] - 1)
        atom, below = self.atoms.gather(1, index), self.below.gather(1, above)
        on_atom = (u >= self.edges[0].gather(1, index)) & (above == index)
        q = self.smooth.clamp(min=1e-300)
        lower = torch.special.ndtri(((u - below) / q).clamp(1e-300, 1.0))
        upper = -torch.special.ndtri(((_cdf(-z) - self._above(below)) / q).clamp(1e-300, 1.0))
        score = torch.where(self.plain, z, torch.where(z > 0, upper, lower)).clamp(-_FAR, _FAR)
        # Rounding may leave gaps between the atoms of a discrete column: the next atom owns them.
        last = self.atoms.masked_fill(self.atoms.isinf(), -torch.inf).amax(1, keepdim=True)
        x = torch.where(on_atom | (self.smooth == 0), torch.minimum(atom, last), inverse(score))
        return torch.where(u < self._missing, torch.nan, x)


def draw_points(start: Tensor, width: Tensor, noise: Tensor) -> Tensor:
    """Points of cells for noise in [0, 1)."""
    u = torch.addcmul(start, width.clamp(min=0.0), noise)
    inside = torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
    return torch.where(width > 0, inside, start - width * noise)


def log_weight(width: Tensor, z: Tensor) -> Tensor:
    """The log-density (B,) by which points z were drawn from cells, relative to their widths."""
    return torch.where(width > 0, _log_phi(z), 0.0).sum(0)


def fixed_points(features: int) -> Tensor:
    """The points (POINTS, features) in [0, 1) of a scrambled Sobol sequence, the same at every call."""
    points = torch.quasirandom.SobolEngine(features, scramble=True, seed=0).draw(POINTS, dtype=torch.float64)
    return points.clamp(1e-9, 1 - 1e-9)


def _cdf(z: Tensor) -> Tensor:
    """Φ(z), which torch.special.ndtr rounds to 0 below -8.3."""
    below: Tensor = torch.special.erfc(z * -math.sqrt(0.5))
    return 0.5 * below


def _log_phi(z: Tensor) -> Tensor:
    return -0.5 * z.square() - _LOG_SQRT_TAU
