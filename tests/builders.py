"""What the tests build over and over: flows and bijections with parameters that look trained."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from looks_trained import look_trained
from sinuflow import SinusoidalFlow, bijections

CONDITIONINGS = ["shift", "full", "none"]

#: One constructor per bijection: one test body serves them all.
BIJECTIONS: dict[str, Callable[[int, int], bijections.Bijection]] = {
    "affine": lambda d, c: bijections.ElementwiseAffine(d),
    "scale": lambda d, c: bijections.SinusoidalLayer(d, scales=2, waves=3, context=c),
    "lower": lambda d, c: bijections.LowerShift(d, c, hidden=(11, 7)),
    "upper": lambda d, c: bijections.UpperShift(d, c, hidden=(9, 9), residual=True),
    "lower without hidden layers": lambda d, c: bijections.LowerShift(d, c, hidden=()),
    "waves": lambda d, c: bijections.AutoregressiveWaves(d, c, scales=2, waves=3, hidden=(11, 7), squash_width=4.0),
    "waves reversed": lambda d, c: bijections.AutoregressiveWaves(
        d, c, scales=1, waves=2, hidden=(8, 8), residual=True, reverse=True, activation="tanh"
    ),
    "ldu": lambda d, c: bijections.LDUBlock(d, c, scales=2, waves=2, hidden=(12,)),
    "chain": lambda d, c: bijections.Chain(
        [
            bijections.LDUBlock(d, c, scales=1, hidden=(8,)),
            bijections.ElementwiseAffine(d),
            bijections.AutoregressiveWaves(d, c, hidden=(8,)),
        ]
    ),
}


def trained(
    bijection: bijections.Bijection, seed: int = 0, dtype: torch.dtype = torch.float64, **ranges: object
) -> bijections.Bijection:
    """The bijection with drawn parameters, for evaluation."""
    look_trained(bijection, seed, **ranges)
    for module in bijection.modules():
        if isinstance(module, bijections.ElementwiseAffine):
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                module.mean.copy_(torch.randn(module.features, generator=generator))
                module.log_scale.copy_(0.5 * torch.randn(module.features, generator=generator))
    return bijection.to(dtype).eval()


def trained_flow(
    features: int,
    context: int = 0,
    conditioning: str = "shift",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    ranges: dict[str, object] | None = None,
    **options: object,
) -> SinusoidalFlow:
    """A small flow with drawn parameters."""
    options = {"blocks": 2, "hidden": (16, 16)} | options
    flow = SinusoidalFlow(features, context, conditioning, **options)  # type: ignore[arg-type]
    trained(flow.bijection, seed, dtype, **(ranges or {}))
    return flow.eval()


def batch(features: int, context: int = 0, rows: int = 5, seed: int = 1, dtype: torch.dtype = torch.float64, scale=1.5):
    """Rows, and a context or None."""
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(rows, features, generator=generator, dtype=torch.float64)
    c = torch.randn(rows, context, generator=generator, dtype=torch.float64) if context else None
    return x.to(dtype), None if c is None else c.to(dtype)


def check_round_trip(bijection, x: Tensor, context: Tensor | None, ladj_tolerance: float) -> None:
    """The inverse of float64 outputs is the input, with the negative log-determinant."""
    z, ladj = bijection(x, context)
    back, ladj_back = bijection.inverse(z, context)
    torch.testing.assert_close(bijection(back, context)[0], z, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(back, x, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(ladj_back, -ladj, rtol=ladj_tolerance, atol=1e-6)


def jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The full Jacobian of one row, by automatic differentiation."""
    return torch.autograd.functional.jacobian(function, x)
