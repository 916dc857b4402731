"""Random parameters with the ranges of a trained flow.

A new flow is the identity, for which accuracy and speed mean nothing. A trained POWER model has residual weights up to
0.979 and frequencies from 0.01 to 4.3. These draws have the same ranges or wider ones, and networks of unit gain whose
outputs move a feature, or the parameters of its waves, by a few tenths.

Modules are recognized by the names of their classes and parameters, which all versions of Sinuflow share.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Flow = TypeVar("Flow", bound=nn.Module)

#: Constants of the constraints α = ALPHA_MAX·tanh and a = FREQUENCY_MIN + softplus.
ALPHA_MAX, FREQUENCY_MIN = 1 - 2**-10, 1e-4


def look_trained(
    flow: Flow,
    seed: int = 0,
    strength: float = 0.979,
    frequency: tuple[float, float] = (0.01, 4.3),
    gain: float = 1.0,
) -> Flow:
    """Overwrite the flow's parameters; ``strength`` is the largest residual weight."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(shape: torch.Size, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)

    def normal(shape: torch.Size, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    def raw_frequency(shape: torch.Size) -> Tensor:
        a = torch.exp(uniform(shape, math.log(frequency[0]), math.log(frequency[1])))
        return torch.log(torch.expm1(a - FREQUENCY_MIN))

    def raw_strength(shape: torch.Size) -> Tensor:
        return torch.atanh(uniform(shape, -strength, strength) / ALPHA_MAX)

    def draw_waves(layer: Any) -> None:
        """Draw biases of a conditional transformer as for a sinusoidal layer."""
        bias = layer.conditioner.head.bias.view(layer.features, -1)
        count = layer.transformer.scales * layer.transformer.waves
        bias[:, 2 : 2 + count].copy_(raw_frequency(bias[:, 2 : 2 + count].shape))
        bias[:, 2 + count : 2 + 2 * count].copy_(uniform(bias[:, :count].shape, -3, 3))
        bias[:, 2 + 3 * count :].copy_(raw_strength(bias[:, 2 + 3 * count :].shape))

    heads: list[Any] = []
    with torch.no_grad():
        module: Any
        for module in flow.modules():
            kind = type(module).__name__
            if kind == "MaskedLinear":
                fan_in = module.mask.sum(1, keepdim=True).clamp(min=1)
                module.weight.copy_(normal(module.weight.shape, gain) / fan_in.sqrt())
                module.bias.copy_(normal(module.bias.shape, 0.1))
            elif kind == "MADE":
                heads.append(module.head)
            elif isinstance(module, nn.Linear) and module.bias is not None:
                module.weight.copy_(normal(module.weight.shape, gain / math.sqrt(module.in_features)))
                module.bias.copy_(normal(module.bias.shape, 0.1))
            elif kind in ("SinusoidalLayer", "SinusoidalScale"):
                module.frequency.copy_(raw_frequency(module.frequency.shape))
                module.phase.copy_(uniform(module.phase.shape, -3, 3))
                module.weight.copy_(normal(module.weight.shape))
                module.strength.copy_(raw_strength(module.strength.shape))
                module.shift.copy_(normal(module.shift.shape, 0.1))
        for head in heads:
            head.weight.mul_(0.3)
        for module in flow.modules():
            if hasattr(getattr(module, "transformer", None), "waves"):
                draw_waves(module)
    return flow
