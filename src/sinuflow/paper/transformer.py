r"""Figure "sinusoidal": one sinusoidal transformer and its derivative, with the numbers of the paper's footnote.

The footnote writes :math:`\tau(x) = x - 0.8 \sum_k c_k \sin(\omega_k x + \varphi_k)`, and the library's transformer is
:math:`x + \alpha \sum_k w_k [\sin 2b_k - \sin(2a_k x + 2b_k)] / (2a_k) + d`. They are the same map if

.. math:: 2a_k = |\omega_k|, \quad \alpha w_k = 0.8 \, c_k |\omega_k|, \quad 2b_k = \varphi_k,
    \quad d = -0.8 \sum_k c_k \sin \varphi_k,

but for a negative frequency :math:`2b_k = \pi - \varphi_k`, because :math:`\sin(-u) = \sin(\pi + u)`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..bijections import SinusoidalLayer
from ..ops.waves import ALPHA_MAX, FREQUENCY_MIN
from . import pictures
from .items import Options
from .record import Figure

#: What stands before the bracket in the footnote, and in it: coefficient, frequency and phase of every sine.
STRENGTH = 0.8
SINES = ((0.5, 2.0, 1.0), (0.3, -0.1, 0.0), (0.2, 0.7, -3.0))

_LIMIT = 10.0
_POINTS = 200_001
_MODEL = "SinusoidalLayer"


def run(options: Options) -> list[Figure]:
    """How far the library's transformer is from the formula, and its picture."""
    x = torch.linspace(-_LIMIT, _LIMIT, _POINTS, dtype=torch.float64)
    value, slope = evaluate(footnote_scale(), x)
    true_value, true_slope = formula(x)
    _paint(options, x, value, slope)
    found = {
        "largest deviation of tau from the formula": (value - true_value).abs().max(),
        "largest deviation of its derivative": (slope - true_slope).abs().max(),
        "smallest derivative": slope.min(),
    }
    extra = {"range": [-_LIMIT, _LIMIT], "points": _POINTS}
    return [Figure("footnote", name, _MODEL, {None: float(number)}, extra=extra) for name, number in found.items()]


def formula(x: Tensor) -> tuple[Tensor, Tensor]:
    """The footnote's map and its derivative, written down as they stand there.

    Example:
        >>> value, slope = formula(torch.tensor([0.0]))
        >>> [round(float(number), 4) for number in (value, slope)]
        [-0.314, 0.7026]
    """
    value, slope = x, torch.ones_like(x)
    for coefficient, frequency, phase in SINES:
        value = value - STRENGTH * coefficient * torch.sin(frequency * x + phase)
        slope = slope - STRENGTH * coefficient * frequency * torch.cos(frequency * x + phase)
    return value, slope


def footnote_scale() -> SinusoidalLayer:
    """The library's object with the footnote's numbers, in float64: one feature, one scale, three waves.

    Example:
        >>> x = torch.tensor([[0.5]], dtype=torch.float64)
        >>> z, _ = footnote_scale()(x)
        >>> bool((z - formula(x)[0]).abs().max() < 1e-15)
        True
    """
    scale = SinusoidalLayer(features=1, scales=1, waves=len(SINES)).double()
    coefficient, frequency, phase = torch.tensor(SINES, dtype=torch.float64).T
    share = STRENGTH * coefficient * frequency.abs()
    turned = torch.where(frequency < 0, math.pi - phase, phase)
    with torch.no_grad():
        # The inverses of softplus, softmax and tanh.
        scale.frequency.copy_(torch.log(torch.expm1(frequency.abs() / 2 - FREQUENCY_MIN)))
        scale.phase.copy_(turned / 2)
        scale.weight.copy_(torch.log(share / share.sum()))
        scale.strength.copy_(torch.atanh(share.sum() / ALPHA_MAX))
        scale.shift.copy_(-STRENGTH * (coefficient * torch.sin(phase)).sum())
    return scale


def evaluate(scale: SinusoidalLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """A transformer of one feature and its derivative, which is the exponential of its log-determinant."""
    with torch.no_grad():
        z, ladj = scale(x.unsqueeze(-1))
    return z.squeeze(-1), ladj.exp()


def _paint(options: Options, *curves: Tensor) -> None:
    x, value, slope = (curve[::100].numpy() for curve in curves)
    with pictures.picture(options.out / "transformer.png", 6.25, 5.6) as figure:
        above, below = figure.subplots(2, sharex=True, height_ratios=(2.2, 1))
        above.plot([-_LIMIT, _LIMIT], [-_LIMIT, _LIMIT], color=pictures.TRUE, linewidth=0.9, linestyle=(0, (4, 3)))
        above.plot(x, value, color=pictures.OURS, linewidth=2)
        above.text(-6.6, -5.2, "$y = x$", color=pictures.TRUE, ha="right")
        above.set_ylabel(r"$\tau(x)$", color=pictures.OURS)
        above.set_yticks(range(-10, 11, 5))
        above.set_title(r"$\tau(x) = x - 0.8\,[0.5\sin(2x+1) + 0.3\sin(-0.1x) + 0.2\sin(0.7x-3)]$", pad=10)
        below.axhline(0, color=pictures.TRUE, linewidth=0.8)
        below.axhline(1, color=pictures.TRUE, linewidth=0.9, linestyle=(0, (4, 3)))
        below.plot(x, slope, color=pictures.OTHER, linewidth=2)
        below.set_ylabel(r"$\tau'(x)$", color=pictures.OTHER)
        below.set_xlabel("$x$")
        below.set_ylim(0, 2)
        below.set_xlim(-_LIMIT, _LIMIT)
        below.set_xticks(range(-10, 11, 5))
        lowest = int(slope.argmin())
        below.plot(x[lowest], slope[lowest], "o", color=pictures.OTHER, markersize=5)
        below.vlines(x[lowest], slope[lowest], 2, color=pictures.OTHER, linewidth=0.7)
        place = {"transform": below.get_xaxis_transform(), "ha": "center", "fontsize": 8}
        below.text(x[lowest], 1.04, f"smallest: {slope[lowest]:.3f}", color=pictures.OTHER, **place)
