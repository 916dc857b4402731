"""Parameters that look trained.

A flow starts as the identity, where its inverse is trivial and nothing that is measured means
anything. A POWER model after training has residual weights up to 0.979 and frequencies from 0.01
to 4.3; these draws have the same ranges, or wider ones, and networks of unit gain
whose outputs move a feature, or the parameters of its waves, by a few tenths.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from sinuflow import bijections
from sinuflow.bijections import AutoregressiveWaves
from sinuflow.conditioners.made import MADE, MaskedLinear
from sinuflow.ops.waves import ALPHA_MAX, FREQUENCY_MIN

Flow = TypeVar("Flow", bound=nn.Module)
SinusoidalLayer = getattr(bijections, "SinusoidalLayer", None) or bijections.SinusoidalScale  # its name in 0.1


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

    def free_frequency(shape: torch.Size) -> Tensor:
        a = torch.exp(uniform(shape, math.log(frequency[0]), math.log(frequency[1])))
        return torch.log(torch.expm1(a - FREQUENCY_MIN))

    def free_strength(shape: torch.Size) -> Tensor:
        return torch.atanh(uniform(shape, -strength, strength) / ALPHA_MAX)

    heads: list[MaskedLinear] = []
    with torch.no_grad():
        for module in flow.modules():
            if isinstance(module, MaskedLinear):
                fan_in = module.mask.sum(1, keepdim=True).clamp(min=1)
                module.weight.copy_(normal(module.weight.shape, gain) / fan_in.sqrt())
                module.bias.copy_(normal(module.bias.shape, 0.1))
            elif isinstance(module, MADE):
                heads.append(module.head)
            elif isinstance(module, nn.Linear):
                module.weight.copy_(normal(module.weight.shape, gain / math.sqrt(module.in_features)))
                module.bias.copy_(normal(module.bias.shape, 0.1))
            elif isinstance(module, SinusoidalLayer):
                module.frequency.copy_(free_frequency(module.frequency.shape))
                module.phase.copy_(uniform(module.phase.shape, -3, 3))
                module.weight.copy_(normal(module.weight.shape))
                module.strength.copy_(free_strength(module.strength.shape))
                module.shift.copy_(normal(module.shift.shape, 0.1))
        for head in heads:  # what a network computes moves a feature, or its waves, by a few tenths
            head.weight.mul_(0.3)
        for module in flow.modules():
            if isinstance(module, AutoregressiveWaves):
                _conditional_waves(module, free_frequency, free_strength, uniform)
    return flow


def _conditional_waves(layer, free_frequency, free_strength, uniform) -> None:  # type: ignore[no-untyped-def]
    """Biases as for a plain scale, from which the network departs row by row."""
    head, transformer = layer.conditioner.head, layer.transformer
    bias = head.bias.view(layer.features, -1)
    count = transformer.scales * transformer.waves
    bias[:, 2 : 2 + count].copy_(free_frequency(bias[:, 2 : 2 + count].shape))
    bias[:, 2 + count : 2 + 2 * count].copy_(uniform(bias[:, :count].shape, -3, 3))
    bias[:, 2 + 3 * count :].copy_(free_strength(bias[:, 2 + 3 * count :].shape))
