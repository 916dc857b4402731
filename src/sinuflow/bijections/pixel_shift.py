"""What a PixelCNN tells of images, their shift first of all: the definition, and the same by kernels, with gradients.

Which kernels a network gets, :mod:`sinuflow.bijections.pixel_kernels` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conditioners.pixelcnn import PixelCNN
from ..ops.backends.cuda.pixels.program import Learnt, PackedPixels, PixelGradients, Purpose
from ..ops.dispatch import reference_backward
from ..ops.pixelcnn import PixelWeights, pixel_network


class NetworkShape(Protocol):
    """A network as kernels see it: its images; maps outside of bottlenecks, and inside; how many of these there are."""

    @property
    def channels(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def wide(self) -> int: ...
    @property
    def narrow(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def rough(self) -> bool: ...


class Kernels(Protocol):
    """What kernels can do for a network, whoever they are by."""

    device: torch.device

    @property
    def shape(self) -> NetworkShape: ...

    def fits(self) -> bool:
        """Whether they can do anything for it at all."""

    def inverts(self) -> bool:
        """Whether they have an inverse."""

    def pack(self, parameters: Sequence[Tensor], purpose: Purpose) -> PackedPixels:
        """Its numbers as the kernels want them."""

    def forward(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> Tensor:
        """What is told of images of shape (D, B); ``added`` (B, ...) is what the context adds to maps."""

    def check(self, packed: PackedPixels, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is told, and the largest unit of every image on the way, (B,)."""

    def inverse(self, packed: PackedPixels, z: Tensor, added: Tensor | None) -> Tensor:
        """x, given z."""

    def learn(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> Learnt:
        """The same as :meth:`forward`, and all that the gradients need."""

    def backward(
        self, weights: Tensor, x: Tensor, kept: Tensor, reverse: bool, grad: Tensor, conditional: bool
    ) -> PixelGradients:
        """The chain rule, for the gradient of what is told."""


def to_images(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Feature-major (D, B) as (B, C, H, W)."""
    return x.mT.reshape(-1, *shape)


def from_images(images: Tensor) -> Tensor:
    """(B, C, H, W) as feature-major (D, B)."""
    return images.flatten(1).mT


def plain_shift(
    x: Tensor,
    context: Tensor | None,
    numbers: PixelWeights,
    shape: Sequence[int],
    reverse: bool,
    keep: list[Tensor] | None = None,
) -> Tensor:
    """What is told of images, as :mod:`sinuflow.ops.pixel_affine` says: the definition, in plain PyTorch.

    What is active inside is added to ``keep``, as by :func:`~sinuflow.ops.pixelcnn.pixel_network`.
    """
    seen = to_images(x.flip(0) if reverse else x, shape)
    outputs = from_images(pixel_network(seen, None if context is None else context.mT, numbers, keep)).split(len(x))
    shift, *free = (each.flip(0) if reverse else each for each in outputs)
    return torch.cat([x + shift, *free]) if free else x + shift


def fused_shift(program: Kernels, network: PixelCNN, x: Tensor, context: Tensor | None, reverse: bool) -> Tensor:
    """The same by kernels."""
    layers = network.layers
    numbers = [*(layer.weight for layer in layers), *(layer.bias for layer in layers), *network.context_maps]
    masks = [layer.mask for layer in layers]
    told: Tensor = _FusedShift.apply(torch.is_grad_enabled(), program, masks, reverse, x, context, *numbers)
    return told


def fused_inverse(
    program: Kernels, z: Tensor, context: Tensor | None, numbers: PixelWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """x, given z; what the network tells of it; and the largest unit on the way, image by image.

    By kernels, and without gradients; the context is (K, B).
    """
    purpose: Purpose = "invert finely" if z.dtype == torch.float64 else "invert"
    packed = program.pack([*numbers.weights, *numbers.biases], purpose)
    added = None if context is None else added_maps(program.shape, context, numbers.given)
    x = program.inverse(packed, z.contiguous(), added)
    return x, *program.check(packed, x, added)


class _FusedShift(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        grad_enabled: bool,
        program: Kernels,
        masks: list[Tensor],
        reverse: bool,
        x: Tensor,
        context: Tensor | None,
        *numbers: Tensor,
    ) -> Tensor:
        learning = grad_enabled and any(ctx.needs_input_grad)
        assert not (learning and x.dtype == torch.float64), "the fine kernels have no gradients"
        depth = len(masks)
        purpose: Purpose = "score finely" if x.dtype == torch.float64 else "learn" if learning else "score"
        packed = program.pack(numbers[: 2 * depth], purpose)
        added = None if context is None else added_maps(program.shape, context, numbers[2 * depth :])
        if not learning:
            return program.forward(packed, x.contiguous(), added, reverse)
        told, kept = program.learn(packed, x.contiguous(), added, reverse)
        ctx.program, ctx.masks, ctx.reverse, ctx.conditional = program, masks, reverse, context is not None
        ctx.save_for_backward(packed.backward, kept, x, *([] if context is None else [context]), *numbers)
        return told

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        program, depth = ctx.program, len(ctx.masks)
        weights, kept, x, *saved = ctx.saved_tensors
        context, numbers = (saved[0], saved[1:]) if ctx.conditional else (None, saved)
        if torch.is_grad_enabled():
            return None, None, None, None, *_differentiable(ctx, x, context, numbers, grad)
        found = program.backward(weights, x.contiguous(), kept, ctx.reverse, grad.contiguous(), ctx.conditional)
        pieces = found.parameters.split([p.numel() for p in numbers[: 2 * depth]])
        of_parameters = [piece.view_as(p) for piece, p in zip(pieces, numbers, strict=False)]
        of_context, of_maps = None, []
        if context is not None and found.added is not None:
            widths = [program.shape.wide] + [program.shape.narrow] * program.shape.blocks
            pairs = zip(found.added.split(widths, 1), numbers[2 * depth :], strict=True)
            parts = [(part[:, : len(given)], given) for part, given in pairs]
            of_maps = [(context @ part).mT for part, _ in parts]
            of_context = sum((part @ given for part, given in parts), torch.zeros_like(context.mT)).mT
        return None, None, None, None, found.x, of_context, *of_parameters, *of_maps


def added_maps(shape: NetworkShape, context: Tensor, given: Sequence[Tensor]) -> Tensor:
    """What the context (K, B) adds to the maps of every image, with zeros for maps that fill a tile."""
    widths = [shape.wide] + [shape.narrow] * shape.blocks
    with torch.autocast(context.device.type, enabled=False):  # kernels take single precision
        parts = [F.pad(F.linear(context.mT, g), (0, width - len(g))) for g, width in zip(given, widths, strict=True)]
    return torch.cat(parts, 1).contiguous()


def _differentiable(
    ctx: Any, x: Tensor, context: Tensor | None, numbers: Sequence[Tensor], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again, by the definition."""
    depth, shape = len(ctx.masks), ctx.program.shape
    size = (shape.channels, shape.height, shape.width)

    def run(x: Tensor, *others: Tensor) -> Tensor:
        given, rest = (others[0], others[1:]) if ctx.conditional else (None, others)
        weights = [mask * w for mask, w in zip(ctx.masks, rest, strict=False)]
        plain = PixelWeights(weights, list(rest[depth : 2 * depth]), list(rest[2 * depth :]))
        return plain_shift(x, given, plain, size, ctx.reverse)

    leaves = (x, *([] if context is None else [context]), *numbers)
    of_x, *rest = reference_backward(run, leaves, (grad,))
    return (of_x, *rest) if context is not None else (of_x, None, *rest)
