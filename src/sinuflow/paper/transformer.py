r"""Figure "sinusoidal": one sinusoidal transformer and its derivative, with the parameters of the paper's footnote.

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
from .items import Options
from .plotting import DASHED, OTHER, OURS, TRUE, saved_figure
from .record import Result, results

#: The footnote's factor, and the coefficient, frequency and phase of every sine.
STRENGTH = 0.8
SINES = ((0.5, 2.0, 1.0), (0.3, -0.1, 0.0), (0.2, 0.7, -3.0))

_LIMIT, _POINTS = 10.0, 200_001


def run(options: Options) -> list[Result]:
    """Measure the deviation of the library's transformer from the formula, and plot it."""
    x = torch.linspace(-_LIMIT, _LIMIT, _POINTS, dtype=torch.float64)
    value, slope = evaluate(footnote_layer(), x)
    true_value, true_slope = formula(x)
    _plot(options, x, value, slope)
    metrics = {
        "largest deviation of tau from the formula": float((value - true_value).abs().max()),
        "largest deviation of its derivative": float((slope - true_slope).abs().max()),
        "smallest derivative": float(slope.min()),
    }
    extra = {"range": [-_LIMIT, _LIMIT], "points": _POINTS}
    return results(metrics, "footnote", "SinusoidalLayer", None, extra=extra)


def formula(x: Tensor) -> tuple[Tensor, Tensor]:
    """The footnote's map and its derivative."""
    value, slope = x, torch.ones_like(x)
    for coefficient, frequency, phase in SINES:
        value = value - STRENGTH * coefficient * torch.sin(frequency * x + phase)
        slope = slope - STRENGTH * coefficient * frequency * torch.cos(frequency * x + phase)
    return value, slope


def footnote_layer() -> SinusoidalLayer:
    """A sinusoidal layer with the footnote's parameters, in float64: one feature, one transformer, three waves."""
    layer = SinusoidalLayer(features=1, scales=1, waves=len(SINES)).double()
    coefficient, frequency, phase = torch.tensor(SINES, dtype=torch.float64).T
    residual = STRENGTH * coefficient * frequency.abs()
    with torch.no_grad():
        # The inverses of softplus, softmax and tanh.
        layer.frequency.copy_(torch.log(torch.expm1(frequency.abs() / 2 - FREQUENCY_MIN)))
        layer.phase.copy_(torch.where(frequency < 0, math.pi - phase, phase) / 2)
        layer.weight.copy_(torch.log(residual / residual.sum()))
        layer.strength.copy_(torch.atanh(residual.sum() / ALPHA_MAX))
        layer.shift.copy_(-STRENGTH * (coefficient * torch.sin(phase)).sum())
    return layer


def evaluate(layer: SinusoidalLayer, x: Tensor) -> tuple[Tensor, Tensor]:
    """A transformer of one feature and its derivative, the exponential of the log-determinant."""
    with torch.no_grad():
        z, ladj = layer(x.unsqueeze(-1))
    return z.squeeze(-1), ladj.exp()


def _plot(options: Options, *curves: Tensor) -> None:
    x, value, slope = (curve[::100].numpy() for curve in curves)
    with saved_figure(options.out / "transformer.png", 6.25, 5.6) as figure:
        above, below = figure.subplots(2, sharex=True, height_ratios=(2.2, 1))
        above.plot([-_LIMIT, _LIMIT], [-_LIMIT, _LIMIT], color=TRUE, **DASHED)
        above.plot(x, value, color=OURS, linewidth=2)
        above.text(-6.6, -5.2, "$y = x$", color=TRUE, ha="right")
        above.set_ylabel(r"$\tau(x)$", color=OURS)
        above.set_yticks(range(-10, 11, 5))
        above.set_title(r"$\tau(x) = x - 0.8\,[0.5\sin(2x+1) + 0.3\sin(-0.1x) + 0.2\sin(0.7x-3)]$", pad=10)
        below.axhline(0, color=TRUE, linewidth=0.8)
        below.axhline(1, color=TRUE, **DASHED)
        below.plot(x, slope, color=OTHER, linewidth=2)
        below.set_ylabel(r"$\tau'(x)$", color=OTHER)
        below.set(xlabel="$x$", xlim=(-_LIMIT, _LIMIT), ylim=(0, 2), xticks=range(-10, 11, 5))
        lowest = int(slope.argmin())
        below.plot(x[lowest], slope[lowest], "o", color=OTHER, markersize=5)
        below.vlines(x[lowest], slope[lowest], 2, color=OTHER, linewidth=0.7)
        place = {"transform": below.get_xaxis_transform(), "ha": "center", "fontsize": 8}
        below.text(x[lowest], 1.04, f"smallest: {slope[lowest]:.3f}", color=OTHER, **place)
