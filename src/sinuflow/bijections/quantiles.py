"""A monotone spline through the quantiles of each column, which makes its distribution nearly normal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError
from ..registry import register
from .columns import ElementwiseDataBijection

Array = np.ndarray[Any, np.dtype[np.float64]]

Knots = tuple[tuple[float, ...], tuple[float, ...]]

#: The knots and scores of the identity.
_NONE: Knots = (0.0, 1.0), (0.0, 1.0)
#: The numbers of knots that are tried, and the fewest values of a column for one of them.
_KNOTS, _VALUES_PER_KNOT, _FOLDS = (3, 5, 9, 17, 33), 8, 4
#: The most values from which knots are chosen.
_ENOUGH = 20_000


@register
class QuantileSpline(ElementwiseDataBijection):
    r"""A monotone rational-quadratic spline for each column, linear beyond its knots.

    In a bin of width w and height h with the slopes :math:`d_0, d_1` at its ends, and :math:`s = h / w`, it maps
    :math:`\xi = (x - x_0) / w` to

    .. math::
        z = z_0 + h \frac{s \xi^2 + d_0 \xi (1 - \xi)}{s + (d_0 + d_1 - 2 s) \xi (1 - \xi)}

    (Gregory and Delbourgo, 1982). The slope at an inner knot is the harmonic mean of those of its two bins.

    Args:
        knots: for each column its knots x, in increasing order; two or more.
        scores: their images z.

    Example:
        >>> spline = QuantileSpline([[0.0, 1.0, 4.0]], [[-1.0, 0.0, 1.0]])
        >>> z = spline.value(torch.tensor([[0.0, 1.0, 5.0]], dtype=torch.float64))
        >>> [round(v, 3) for v in z[0].tolist()]
        [-1.0, 0.0, 1.333]
        >>> spline.inverse_value(z).tolist()
        [[0.0, 1.0, 5.0]]
    """

    x: Tensor
    z: Tensor
    slopes: Tensor

    def __init__(self, knots: Sequence[Sequence[float]], scores: Sequence[Sequence[float]]) -> None:
        super().__init__(len(knots))
        most = max(map(len, knots))
        splines = [
            _spline(np.asarray(x, dtype=np.float64), np.asarray(z, dtype=np.float64), most)
            for x, z in zip(knots, scores, strict=True)
        ]
        for name, values in zip(("x", "z", "slopes"), zip(*splines, strict=True), strict=True):
            self.register_buffer(name, torch.from_numpy(np.stack(values)))

    def value(self, x: Tensor) -> Tensor:
        return self._forward(x)[0]

    def inverse_value(self, y: Tensor) -> Tensor:
        index, inside = self._bin(self.z, y)
        x0, z0, w, h, d0, d1 = self._knots(index)
        s = h / w
        rise = (y - z0).clamp(torch.zeros_like(h), h)
        c = d0 + d1 - 2 * s
        a, b = h * (s - d0) + rise * c, h * d0 - rise * c
        xi = 2 * s * rise / (b + (b.square() + 4 * a * s * rise).clamp(min=0.0).sqrt())
        beyond = torch.where(y < z0, (y - z0) / d0, w + (y - z0 - h) / d1)
        return x0 + torch.where(inside, xi * w, beyond)

    def log_derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return self._forward(x)[1]

    def _forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        index, inside = self._bin(self.x, x)
        x0, z0, w, h, d0, d1 = self._knots(index)
        s, xi = h / w, ((x - x0) / w).clamp(0.0, 1.0)
        between = xi * (1 - xi)
        scale = s + (d0 + d1 - 2 * s) * between
        beyond = torch.where(x < x0, (x - x0) * d0, h + (x - x0 - w) * d1)
        z = z0 + torch.where(inside, h * (s * xi.square() + d0 * between) / scale, beyond)
        slope = s.square() * (d1 * xi.square() + 2 * s * between + d0 * (1 - xi).square()) / scale.square()
        return z, slope.log()

    def _bin(self, edges: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The bin of each value, and whether it is inside; values beyond the knots have the first or last bin."""
        index = torch.searchsorted(edges, values.contiguous(), right=True) - 1
        inside = (index >= 0) & (index < edges.shape[1] - 1)
        return index.clamp(0, edges.shape[1] - 2), inside

    def _knots(self, index: Tensor) -> tuple[Tensor, ...]:
        x0, z0, d0 = (t.gather(1, index) for t in (self.x, self.z, self.slopes))
        x1, z1, d1 = (t.gather(1, index + 1) for t in (self.x, self.z, self.slopes))
        return x0, z0, x1 - x0, z1 - z0, d0, d1


def _spline(x: Array, z: Array, size: int) -> tuple[Array, Array, Array]:
    """The knots of a spline and its slopes there, with further knots on the line beyond the last one."""
    if len(x) != len(z) or len(x) < 2 or not (np.isfinite(x).all() and np.isfinite(z).all()):
        raise ArgumentError("a spline needs two or more finite knots, and as many scores")
    w, h = np.diff(x), np.diff(z)
    if not (w.min() > 0 and h.min() > 0):
        raise ArgumentError("knots and their scores must increase")
    s = h / w
    inner = (w[:-1] + w[1:]) / (w[:-1] / s[:-1] + w[1:] / s[1:])
    slopes = np.concatenate([s[:1], inner, s[-1:]])
    more = np.arange(1, size - len(x) + 1) * w[-1]
    return np.append(x, x[-1] + more), np.append(z, z[-1] + slopes[-1] * more), np.pad(slopes, (0, len(more)), "edge")


def fit_quantiles(values: Array) -> Knots:
    """The knots and scores of a spline that makes values nearly normal; identical pairs (0, 0), (1, 1) for none.

    The number of knots has the highest cross-validated likelihood, where more knots must gain more than the standard
    error of the gain. Knots are at quantiles that are equally spaced in normal scores.
    """
    identity = _NONE
    everything = values
    random = np.random.default_rng(0)
    values = random.permutation(values)[:_ENOUGH]
    fold = np.arange(len(values)) % _FOLDS
    best, best_scores = identity, _log_density(values, identity)
    for size in _KNOTS:
        if len(values) < size * _VALUES_PER_KNOT:
            break
        scores = np.empty(len(values))
        for k in range(_FOLDS):
            held = fold == k
            scores[held] = _log_density(values[held], _through_quantiles(values[~held], size))
        gain = scores - best_scores
        if gain.mean() > gain.std() / len(gain) ** 0.5:
            best, best_scores = _through_quantiles(values, size), scores
    return _with_extremes(*best, everything)


def _with_extremes(x: tuple[float, ...], z: tuple[float, ...], values: Array) -> Knots:
    """The knots, and further ones at the least and largest values if the line there leads to absurd scores."""
    usual = float(torch.special.ndtri(torch.tensor(1 - 0.5 / len(values), dtype=torch.float64)))
    ends = torch.tensor([[values.min(), values.max()]], dtype=torch.float64)
    low, high = QuantileSpline([x], [z]).value(ends)[0].tolist()
    limit = max(1.3 * usual + 0.5, 2.5)
    if (x, z) == _NONE and (low < -limit or high > limit):  # a line that leaves the bulk as it is
        x, z = (-2.0, 2.0), (-2.0, 2.0)
    if low < -limit:
        x, z = map(_mirrored, _with_end(_mirrored(x), _mirrored(z), -float(values.min()), usual))
    if high > limit:
        x, z = _with_end(x, z, float(values.max()), usual)
    return x, z


def _with_end(x: tuple[float, ...], z: tuple[float, ...], value: float, score: float) -> Knots:
    """The knots, and one at a far value.

    Another one is on the line before it: where the line bends, a slope is the harmonic mean, almost that of the flat
    end, and the whole bin before it would bend, too.
    """
    score = max(score, z[-1] + 0.1)
    between = 0.75 * z[-1] + 0.25 * score
    on_line = x[-1] + (between - z[-1]) * (x[-1] - x[-2]) / (z[-1] - z[-2])
    return (*x, on_line, value), (*z, between, score)


def _mirrored(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(-value for value in reversed(values))


def _through_quantiles(values: Array, size: int) -> Knots:
    """The knots at quantiles, without those that coincide."""
    far = torch.special.ndtri(torch.tensor(1 - max(2.0, len(values) ** 0.25) / len(values), dtype=torch.float64)).item()
    z = torch.linspace(-far, far, size, dtype=torch.float64)
    x = np.quantile(values, torch.special.ndtr(z).numpy())
    least = 1e-6 * (x[-1] - x[0])
    keep = [0]
    for i in range(1, size):
        if x[i] - x[keep[-1]] > least:
            keep.append(i)
    if len(keep) < 2:
        return _NONE
    return tuple(x[keep].tolist()), tuple(z.numpy()[keep].tolist())


def _log_density(values: Array, knots: Knots) -> Array:
    z, log_slope = QuantileSpline(*([part] for part in knots))._forward(torch.from_numpy(values)[None])
    return (log_slope - 0.5 * z.square())[0].numpy()
