"""Flows with damaged parameters, and noise at the edges of floating point."""

from __future__ import annotations

import math
import random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from looks_trained import look_trained
from sinuflow import SinusoidalFlow
from sinuflow.bijections import ElementwiseAffine, SinusoidalLayer
from sinuflow.conditioners import MADE
from sinuflow.conditioners.made import MaskedLinear
from sinuflow.conditioners.pixelcnn import MaskedConvolution, PixelCNN

KINDS = ("shift", "full", "none", "image shift", "image affine")
#: Rows of noise for every flow.
ROWS = 36

DAMAGES = ("nothing", "log-scale", "strength", "frequency", "weights", "one entry", "bias")


class Case(NamedTuple):
    """A flow, noise (ROWS, D), and a context (ROWS, C) or None."""

    flow: SinusoidalFlow
    z: Tensor
    context: Tensor | None
    description: str


def draw_case(seed: int, dtype: torch.dtype = torch.float32, flow: SinusoidalFlow | None = None) -> Case:
    """The case of a seed; ``flow`` is damaged if given, and a new flow otherwise."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    kind = dice.choice(KINDS)
    if flow is None:
        flow = _image_flow(dice, kind) if kind.startswith("image") else _vector_flow(dice, kind)
    _parameters_as_if_trained(flow, seed)
    flow = flow.to(dtype).eval()
    damages = [dice.choice(DAMAGES) for _ in range(dice.choice((1, 1, 2)))]
    with torch.no_grad():
        for damage in damages:
            _damage(flow, damage, dice)
        for module in flow.modules():  # what is masked is no part of the map: scores with NaN there are NaN
            if isinstance(module, (MaskedLinear, MaskedConvolution)):
                module.weight.masked_fill_(module.mask == 0, 0.0)
    context = torch.randn(ROWS, flow.context, dtype=dtype) if flow.context else None
    return Case(flow, hostile_noise(flow.features, dtype, dice), context, f"seed {seed}, {flow.config}, {damages}")


def _vector_flow(dice: random.Random, kind: str) -> SinusoidalFlow:
    options: dict[str, Any] = {
        "features": dice.randint(1, 5),
        "context": dice.choice((0, 0, 2)),
        "blocks": dice.randint(1, 2),
        "scales": dice.randint(1, 3),
        "waves": dice.randint(1, 4),
    }
    if kind != "none":
        options["hidden"] = dice.choice(((8,), (8, 8)))
        options["residual"] = dice.random() < 0.3
        options["activation"] = dice.choice(("relu", "relu", "tanh", "silu", "elu"))
        options["squash"] = dice.choice((0, 4.0, 1.0))
    return SinusoidalFlow(conditioning=kind, **options)  # type: ignore[arg-type]


def _image_flow(dice: random.Random, kind: str) -> SinusoidalFlow:
    return SinusoidalFlow.image(
        dice.choice(((1, 3, 2), (2, 2, 2))),
        context=dice.choice((0, 0, 2)),
        blocks=1,
        scales=dice.randint(1, 2),
        waves=2,
        channels=3,
        residual_blocks=dice.randint(0, 1),
        conditioning=kind.removeprefix("image "),  # type: ignore[arg-type]
    )


def _parameters_as_if_trained(flow: SinusoidalFlow, seed: int) -> None:
    look_trained(flow, seed)
    with torch.no_grad():
        for module in flow.modules():
            if isinstance(module, PixelCNN):
                for parameter in module.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            if isinstance(module, ElementwiseAffine):
                module.mean.copy_(torch.randn(module.features))
                module.log_scale.copy_(0.5 * torch.randn(module.features))


def _damage(flow: SinusoidalFlow, damage: str, dice: random.Random) -> None:
    heads = [m.head.bias.view(m.features, -1) for m in flow.modules() if isinstance(m, MADE)]
    full = flow.config.get("conditioning") == "full"
    scales = [m for m in flow.modules() if isinstance(m, SinusoidalLayer)]
    parameters = list(flow.parameters())
    if damage == "log-scale":
        size = dice.choice((50.0, -50.0, 8.0, -8.0, dice.uniform(-120, 120)))
        if full:
            dice.choice(heads)[:, 1] = size
        else:
            for module in flow.modules():
                if isinstance(module, ElementwiseAffine):
                    module.log_scale[dice.randrange(module.features)] = size
                elif isinstance(module, PixelCNN) and module.outputs == 2:
                    module.head.bias[len(module.head.bias) // 2 :] = size
    elif damage in ("strength", "frequency"):
        size = dice.choice((30.0, -30.0, 1e3, 1e6, 1e30) if damage == "frequency" else (50.0, -50.0, 4.0))
        for scale in scales:
            (scale.strength if damage == "strength" else scale.frequency).fill_(size)
        if full:
            waves = flow.config["scales"] * flow.config["waves"]
            place = slice(2 + 3 * waves, None) if damage == "strength" else slice(2, 2 + waves)
            for head in heads:
                head[:, place] = size
    elif damage == "weights":
        factor = dice.choice((1e-3, 10.0, 1e3, 1e3, 1e12, 1e30))
        for module in flow.modules():
            if isinstance(module, (MaskedLinear, MaskedConvolution)):
                module.weight.mul_(factor)
    elif damage == "one entry":
        parameter = dice.choice(parameters).view(-1)
        parameter[dice.randrange(len(parameter))] = dice.choice((math.nan, math.inf, -math.inf, 1e38, -1e38, 1e-38))
    elif damage == "bias":
        biases = [m.bias for m in flow.modules() if isinstance(m, (MaskedLinear, MaskedConvolution))] or parameters
        bias = dice.choice(biases).view(-1)
        bias[dice.randrange(len(bias))] = dice.choice((math.nan, 1e10, -1e30, 3e38))


def hostile_noise(features: int, dtype: torch.dtype, dice: random.Random) -> Tensor:
    """Rows of every magnitude in the dtype's range, and rows that mix magnitudes."""
    limits = torch.finfo(dtype)
    top = math.log10(limits.max)
    sizes = [0.0, 5e-324, limits.tiny / 64, limits.tiny, 1e-30, 1e-6, 1e3, 1e6, 1e10, 1e20, 1e30, 1e37, 1e38]
    sizes += [10.0 ** dice.uniform(-top, top) for _ in range(4)] + [limits.max / 2, limits.max, math.nan, math.inf]
    rows = [torch.full((features,), dice.choice((1, -1)) * size, dtype=dtype) for size in sizes]
    rows += list(torch.randn(6, features, dtype=dtype))
    while len(rows) < ROWS:
        mixed = [dice.choice((1, -1)) * dice.choice((*sizes[:-2], 0.5, 2.0)) for _ in range(features)]
        rows.append(torch.tensor(mixed, dtype=dtype))
    return torch.stack(rows)
