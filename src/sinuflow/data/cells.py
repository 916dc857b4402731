"""Cells: the points or intervals of an axis of normal scores that represent the values of a table's columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..bijections.columns import Float64Module
from .columns import Column

#: The number of quasi-random points of a row's cells over which its density is averaged.
POINTS = 32
#: In cells with less probability, points are drawn uniformly on the axis instead of uniformly in probability.
_NARROW = 1e-3
#: The largest normal score: Φ(-38) is close to the smallest float64.
_MAX_SCORE = 38.0
_LOG_SQRT_TAU = 0.5 * math.log(2 * math.pi)

#: The columns' increasing maps from feature-major values to normal scores; returns these and the log-derivatives.
NormalScores = Callable[[Tensor], tuple[Tensor, Tensor]]


class RowCells(NamedTuple):
    """The cells of rows, feature-major, and the part of the log-density that does not depend on the point in them.

    A width above 0 is a probability: the cell is the set of Φ⁻¹(u) for u in (start, start + width). One below 0 is a
    length of the axis: the cell is (start, start - width). With a width of 0, the cell is the point itself.
    """

    start: Tensor  # (D, B)
    width: Tensor  # (D, B)
    log_measure: Tensor  # (B,): the log-density of a row is this plus the log-mean over its cells


class Cells(Float64Module):
    r"""The cells of the values of columns, and the inverse: the value whose cell contains a point.

    A column's distribution is a mixture: missing with probability :math:`p_0`, one of the atoms
    :math:`a_1 < a_2 < \dots` with probabilities :math:`p_j`, and otherwise, with probability q, continuous with the
    distribution function :math:`\Phi \circ c`, where c increases from values to normal scores. On the axis of normal
    scores, :math:`\Phi^{-1}(u)` for u in (0, 1), the cell of a value x with the half-width h (0, or half a step of the
    column's grid) is

    .. math::
        u \in \Big( p_0 + \sum_{a_j < x} p_j + q\, \Phi(c(x - h)),\;
                    p_0 + \sum_{a_j \le x} p_j + q\, \Phi(c(x + h)) \Big)

    and that of a missing value (0, p₀). The cell of a value with probability 0, such as a category that was never seen,
    is the whole axis: the column is then integrated out, and the row's density is multiplied by the probability
    1 / (n + 2) of a new value after n rows (the rule of succession), spread over the range of a continuous part.
    """

    atoms: Tensor
    cumulative: Tensor
    continuous_mass: Tensor
    half_width: Tensor
    middle: Tensor
    log_step: Tensor
    log_range: Tensor
    log_unseen: Tensor
    is_continuous: Tensor
    edges: Tensor

    def __init__(self, columns: Sequence[Column], normal_scores: NormalScores) -> None:
        super().__init__()
        max_atoms = max([1, *(len(c.atoms) for c in columns)])
        atoms = [[*c.atoms, *[math.inf] * (max_atoms - len(c.atoms))] for c in columns]
        masses = [[c.missing, *c.masses, *[0.0] * (max_atoms - len(c.masses))] for c in columns]
        cumulative = torch.tensor(masses, dtype=torch.float64).cumsum(1)
        self.register_buffer("atoms", torch.tensor(atoms, dtype=torch.float64))
        #: The probability of being missing or one of the first j atoms, for j = 0, 1, ...
        self.register_buffer("cumulative", cumulative)
        continuous_mass = [0.0 if c.discrete else max(0.0, 1.0 - math.fsum((c.missing, *c.masses))) for c in columns]
        step = [math.log(c.cell) if c.cell else 0.0 for c in columns]
        log_range = [c.log_range for c in columns]
        numbers = {
            "continuous_mass": continuous_mass,
            "half_width": [c.cell / 2 for c in columns],
            "log_step": step,
            "log_range": log_range,
        }
        numbers |= {
            "log_unseen": [-math.log(c.rows + 2.0) for c in columns],
            "middle": [(c.low + c.high) / 2 for c in columns],
        }
        for name, values in numbers.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64).unsqueeze(1))
        #: Whether the column has neither atoms nor missing values: its axis is then that of its normal scores.
        self.register_buffer("is_continuous", torch.tensor([not (c.missing or c.atoms) for c in columns]).unsqueeze(1))
        low, high = (self._continuous_probability(self.atoms, side, normal_scores) for side in (-1, 1))
        edges = torch.stack([cumulative[:, :-1] + low, cumulative[:, 1:] + high])
        self.register_buffer("edges", edges.masked_fill(self.atoms.isinf(), 2.0))

    def _continuous_probability(self, x: Tensor, side: int, normal_scores: NormalScores) -> Tensor:
        """The probability of the continuous part below x minus (``side`` -1) or plus (1) the half-width."""
        at = torch.where(x.isfinite(), x, 0.0) + side * self.half_width
        return self.continuous_mass * _cdf(self._extended_scores(normal_scores, at)[0])

    def _extended_scores(self, normal_scores: NormalScores, x: Tensor) -> tuple[Tensor, Tensor]:
        """Normal scores and log-derivatives; scores are infinite at and beyond the ends of the map's domain."""
        z, log_slope = normal_scores(x)
        return torch.where(z.isnan(), torch.where(x < self.middle, -torch.inf, torch.inf), z), log_slope

    @torch.no_grad()
    def locate(self, x: Tensor, normal_scores: NormalScores, unused: Tensor | None = None) -> RowCells:
        """The cells of rows (D, B): NaN is a missing value, infinity one that the column cannot have.

        ``unused`` marks entries whose values have another level than the continuous one: their cell is the whole axis.
        """
        missing, finite = x.isnan(), x.isfinite()
        at = torch.where(finite, x, 0.0)
        first, last = (torch.searchsorted(self.atoms, at.contiguous(), right=right) for right in (False, True))
        below, above = self.cumulative.gather(1, first), self.cumulative.gather(1, last)
        z, log_slope = self._extended_scores(normal_scores, at)
        low, high = z, z
        if bool((self.half_width > 0).any()):
            low, high = (self._extended_scores(normal_scores, at + side * self.half_width)[0] for side in (-1, 1))
        u0 = torch.where(missing, 0.0, below + self.continuous_mass * _cdf(low))
        u1 = torch.where(missing, self._missing_mass, above + self.continuous_mass * _cdf(high))
        width = u1 - u0
        in_continuous_part = finite & (last == first) & (self.continuous_mass > 0) & z.isfinite()
        point = in_continuous_part & (self.half_width == 0)
        # For narrow cells and in the tails, differences of Φ lose precision: the ends are computed on the axis instead.
        score, ends = self._axis_point(z, below), [self._axis_point(t, below) for t in (low, high)]
        length = (ends[1] - ends[0]).clamp(min=1e-300)  # 0 where it underflows in the far tails
        narrow = in_continuous_part & ~point & (width < _NARROW) & low.isfinite() & high.isfinite()
        measure = torch.where(narrow, length, width).log() - torch.where(missing, 0.0, self.log_step)
        slope = self.continuous_mass.log() + _log_phi(z) - _log_phi(score) + log_slope
        measure = torch.where(point, torch.where(self.is_continuous, log_slope, slope), measure)
        start = torch.where(point, score, torch.where(narrow, ends[0], u0))
        width = torch.where(point, 0.0, torch.where(narrow, -length, width))
        impossible = ~point & ~narrow & ~(finite & (width > 0)) & ~(missing & (width > 0))
        start, width = torch.where(impossible, 0.0, start), torch.where(impossible, 1.0, width)
        measure = torch.where(impossible, self.log_unseen - torch.where(missing, 0.0, self.log_range), measure)
        if unused is not None:
            start, width = start.masked_fill(unused, 0.0), width.masked_fill(unused, 1.0)
            measure = measure.masked_fill(unused, 0.0)
        return RowCells(start, width, measure.sum(0))

    @property
    def _missing_mass(self) -> Tensor:
        return self.cumulative[:, :1]

    def _mass_above(self, below: Tensor) -> Tensor:
        """The probability of the atoms above, from the probability ``below`` of missing values and the atoms below."""
        return self.cumulative[:, -1:] - below

    def _axis_point(self, z: Tensor, below: Tensor) -> Tensor:
        """The point Φ⁻¹(below + q Φ(z)) of the axis for a score z of the continuous part, precise in both tails."""
        lower = torch.special.ndtri((below + self.continuous_mass * _cdf(z)).clamp(1e-300, 1.0))
        upper = -torch.special.ndtri((self._mass_above(below) + self.continuous_mass * _cdf(-z)).clamp(1e-300, 1.0))
        return torch.where(self.is_continuous, z, torch.where(z > 0, upper, lower))

    def decode(self, z: Tensor, inverse: Callable[[Tensor], Tensor]) -> Tensor:
        """The values (D, B) whose cells contain points of the axis, NaN if missing; ``inverse`` inverts the scores."""
        u = _cdf(z)
        above = torch.searchsorted(self.edges[1].contiguous(), u.contiguous(), right=True)
        index = above.clamp(max=self.atoms.shape[1] - 1)
        atom, below = self.atoms.gather(1, index), self.cumulative.gather(1, above)
        on_atom = (u >= self.edges[0].gather(1, index)) & (above == index)
        q = self.continuous_mass.clamp(min=1e-300)
        lower = torch.special.ndtri(((u - below) / q).clamp(1e-300, 1.0))
        upper = -torch.special.ndtri(((_cdf(-z) - self._mass_above(below)) / q).clamp(1e-300, 1.0))
        score = torch.where(self.is_continuous, z, torch.where(z > 0, upper, lower)).clamp(-_MAX_SCORE, _MAX_SCORE)
        # Rounding may leave gaps between the cells of a discrete column: they belong to the next atom.
        last = self.atoms.masked_fill(self.atoms.isinf(), -torch.inf).amax(1, keepdim=True)
        x = torch.where(on_atom | (self.continuous_mass == 0), torch.minimum(atom, last), inverse(score))
        return torch.where(u < self._missing_mass, torch.nan, x)


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
    doubled: Tensor = torch.special.erfc(z * -math.sqrt(0.5))
    return 0.5 * doubled


def _log_phi(z: Tensor) -> Tensor:
    return -0.5 * z.square() - _LOG_SQRT_TAU
