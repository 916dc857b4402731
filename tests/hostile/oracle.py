"""What a certified inverse must be: finite, and within rounding of an inverse, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from sinuflow.bijections import Autoregressive, Bijection, Chain, ElementwiseAffine
from sinuflow.bijections.image import ImageLayer
from sinuflow.ops.activations import squash
from sinuflow.ops.conditional_waves import constrained
from sinuflow.ops.pixelcnn import PixelWeights, pixel_network
from sinuflow.solvers import Inversion, SolverOptions

#: Rounding errors that sums over a layer's units, and a few transformers of slope up to 2, may add up.
_SLACK = 512.0
_LARGEST = 1e300


class Verdict(NamedTuple):
    """Flags for every row of noise, (B,)."""

    certified: Tensor
    finite: Tensor
    agrees: Tensor  # whether every layer's forward map gives back its noise, to what rounding explains


def judge(bijection: Bijection, z: Tensor, context: Tensor | None, options: SolverOptions, layers: bool) -> Verdict:
    """Invert feature-major noise, and check what is certified; ``layers``: also layer by layer."""
    inverses: list[Inversion] = []
    with ExitStack() as stack:
        for layer in _leaves(bijection) if layers else ():
            stack.enter_context(patch.object(layer, "invert", partial(_kept, inverses, layer.invert)))
        x, ladj, _, _, converged = bijection.certified(z, context, options)
    certified = converged.all(0)
    finite = x.isfinite().all(0) & ladj.isfinite()
    agrees = torch.ones_like(certified)
    if layers:
        for layer, inverse in zip(_leaves(bijection), inverses, strict=True):
            given = context if layer.context else None
            agrees &= _agrees(layer, inverse.x, z, given, options).all(0)
            z = inverse.x
    return Verdict(certified, finite, agrees)


def _kept(results: list[Inversion], invert: Callable[..., Inversion], *arguments: object) -> Inversion:
    results.append(invert(*arguments))
    return results[-1]


def _leaves(bijection: Bijection) -> Iterator[Bijection]:
    """The layers in the order of inversion."""
    if isinstance(bijection, Chain):
        for part in reversed(list(bijection)):
            yield from _leaves(part)
    else:
        yield bijection


def _agrees(layer: Bijection, x: Tensor, z: Tensor, context: Tensor | None, options: SolverOptions) -> Tensor:
    again = layer.transform(x, context)[0]
    allowed, largest = _tolerance(layer, x, z, context, options), torch.finfo(x.dtype).max
    # Where rounding is as large as the largest number, the forward map may overflow; on the way, it gives NaN.
    overflows = (again.isinf() & (z.double().abs() + allowed >= largest)) | (again.isnan() & ~(allowed < largest))
    return ((again.double() - z.double()).abs() <= allowed) | overflows


def _tolerance(layer: Bijection, x: Tensor, z: Tensor, context: Tensor | None, options: SolverOptions) -> Tensor:
    """Residuals that the arithmetic of one layer explains, (D, B), in float64."""
    relative, absolute = options.tolerances(x.dtype)
    eps = _SLACK * torch.finfo(x.dtype).eps
    size = x.double().abs() + z.double().abs()
    allowed = eps * size
    if options.method == "fixed_point":
        allowed = allowed + 8 * (absolute + relative * x.double().abs())
    if isinstance(layer, ElementwiseAffine):
        shifted = x.double().abs() + layer.mean.double().abs().unsqueeze(-1)
        allowed = allowed + eps * shifted * torch.exp(-layer.log_scale.double()).unsqueeze(-1)
    elif isinstance(layer, ImageLayer):
        flipped = x.flip(0) if layer.reverse else x
        images = flipped.double().abs().mT.reshape(-1, *layer.conditioner.shape)
        numbers = PixelWeights(*([t.double().abs() for t in part] for part in layer.conditioner.weights()))
        given = None if context is None else context.double().abs().mT
        largest = pixel_network(images, given, numbers).flatten(1).amax(1).nan_to_num(torch.inf) + size.amax(0)
        # A unit of this size moves a shift by rounding, and a log-scale, which multiplies up to e^2 by it.
        allowed = allowed + eps * largest * (8.0 if layer.conditioner.outputs == 1 else 8.0 * (1 + size.amax(0)))
    elif isinstance(layer, Autoregressive):
        allowed = allowed + _of_network(layer, x, context, eps)
    return allowed


def _of_network(layer: Autoregressive, x: Tensor, context: Tensor | None, eps: float) -> Tensor:
    """A bound on the effect of a masked network's rounding on z, from the magnitudes of its sums."""
    flipped = x.flip(0) if layer.reverse else x
    head = _sizes(layer, flipped, context)
    if not layer.transformer.num_parameters > 1:
        moved = eps * head.squeeze(1)
    else:
        shift, log_scale, waves = constrained(layer.conditioner(flipped, context).double(), layer.transformer.shape)
        inner = flipped.double().abs() * log_scale.exp()
        radius = (torch.hypot(waves.cosine, waves.sine) / (2 * waves.frequency)).sum(-2).sum(0)
        argument = inner + shift.abs() + radius
        largest = head.amax(1)
        turned = eps * (largest + (largest + waves.frequency.amax((0, 2))) * argument)  # of a phase 2ax + 2b
        moved = eps * (head[:, 0] + inner * (1 + head[:, 1]) + argument) + 2 * radius * turned.clamp(max=1)
    return (moved.flip(0) if layer.reverse else moved).nan_to_num(torch.inf)


def _sizes(layer: Autoregressive, x: Tensor, context: Tensor | None) -> Tensor:
    """The transformer parameters (D, P, B) if all terms were positive: a bound, as activations do not increase it."""
    made = layer.conditioner
    h = squash(x, made.squash).double().abs()
    h = h if context is None else torch.cat([context.double().abs(), h])
    before: list[Tensor] = []
    for linear, skip in zip(made.layers, made.skips, strict=True):
        masked = (linear.weight * linear.mask).double().abs()
        out = masked @ h + linear.bias.double().abs().unsqueeze(-1)
        before.append(out + before[-2] if skip else out)
        h = before[-1].nan_to_num(_LARGEST, _LARGEST)  # also of units that nothing depends on
    masked = (made.head.weight * made.head.mask).double().abs()
    return (masked @ h + made.head.bias.double().abs().unsqueeze(-1)).view(made.plan.features, made.plan.outputs, -1)
