"""The shift of images by a PixelCNN: plain, or by CUDA kernels where they fit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conditioners.pixelcnn import PixelCNN
from ..kernels.cuda.blocks import Launcher
from ..kernels.cuda.driver import CudaLauncher
from ..kernels.cuda.pixels.program import PixelProgram, Purpose
from ..kernels.cuda.pixels.shape import PixelShape
from ..kernels.dispatch import fused_allowed, reference_backward
from ..kernels.paths import whole_flow_path
from ..kernels.pixel_network import PixelWeights, pixel_network
from .trial import trusted

#: For the trial that new kernels are put to: how far their numbers may be from those of plain PyTorch, and their
#: gradients, those of parameters together; in rough ones, a unit next to zero is active or not as rounding has it.
_TRIAL_IMAGES, _TOLERANCE, _OF_GRADIENTS, _OF_ROUGH_GRADIENTS = 3, 1e-4, 1e-3, 3e-2
#: The same for the fine kernels: units are rounded, and then the same both ways.
_OF_FINE_UNITS, _OF_FINE_SUMS = 1e-6, 1e-8
#: Generations whose tensor cores multiply doubles about as fast as others multiply single numbers.
_FAST_DOUBLES = ((8, 0), (9, 0), (10, 0))


def to_images(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Feature-major (D, B) as (B, C, H, W)."""
    return x.mT.reshape(-1, *shape)


def from_images(images: Tensor) -> Tensor:
    """(B, C, H, W) as feature-major (D, B)."""
    return images.flatten(1).mT


def pixel_shift(network: PixelCNN, x: Tensor, context: Tensor | None, reverse: bool) -> Tensor:
    """z = x + c(x) for a feature-major batch (D, B); with ``reverse``, c sees everything from the end."""
    program = kernels_for(network, x)
    if program is None:
        return plain_shift(x, context, network.numbers(), network.shape, reverse)
    return fused_shift(program, network, x, context, reverse)


def plain_shift(
    x: Tensor, context: Tensor | None, numbers: PixelWeights, shape: Sequence[int], reverse: bool
) -> Tensor:
    """The definition, in plain PyTorch."""
    seen = to_images(x.flip(0) if reverse else x, shape)
    shift = from_images(pixel_network(seen, None if context is None else context.mT, numbers))
    return x + (shift.flip(0) if reverse else shift)


def fused_shift(program: PixelProgram, network: PixelCNN, x: Tensor, context: Tensor | None, reverse: bool) -> Tensor:
    """The same by kernels."""
    layers = network.layers
    numbers = [*(layer.weight for layer in layers), *(layer.bias for layer in layers), *network.context_maps]
    masks = [layer.mask for layer in layers]
    z: Tensor = _FusedShift.apply(torch.is_grad_enabled(), program, masks, reverse, x, context, *numbers)
    return z


def fused_inverse(
    program: PixelProgram, z: Tensor, context: Tensor | None, numbers: PixelWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """x, given z = x + c(x); what the forward map makes of it; and the largest unit on the way, image by image.

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
        program: PixelProgram,
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
        z, kept = program.learn(packed, x.contiguous(), added, reverse)
        ctx.program, ctx.masks, ctx.reverse, ctx.conditional = program, masks, reverse, context is not None
        ctx.save_for_backward(packed.backward, kept, x, *([] if context is None else [context]), *numbers)
        return z

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor) -> tuple[Any, ...]:
        program, depth = ctx.program, len(ctx.masks)
        weights, kept, x, *saved = ctx.saved_tensors
        context, numbers = (saved[0], saved[1:]) if ctx.conditional else (None, saved)
        if torch.is_grad_enabled():
            return None, None, None, None, *_differentiable(ctx, x, context, numbers, grad_z)
        found = program.backward(weights, x.contiguous(), kept, ctx.reverse, grad_z.contiguous(), ctx.conditional)
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


def added_maps(shape: PixelShape, context: Tensor, given: Sequence[Tensor]) -> Tensor:
    """What the context (K, B) adds to the maps of every image, with zeros for maps that fill a tile."""
    widths = [shape.wide] + [shape.narrow] * shape.blocks
    with torch.autocast(context.device.type, enabled=False):  # kernels take single precision
        parts = [F.pad(F.linear(context.mT, g), (0, width - len(g))) for g, width in zip(given, widths, strict=True)]
    return torch.cat(parts, 1).contiguous()


def _differentiable(
    ctx: Any, x: Tensor, context: Tensor | None, numbers: Sequence[Tensor], grad_z: Tensor
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
    of_x, *rest = reference_backward(run, leaves, (grad_z,))
    return (of_x, *rest) if context is not None else (of_x, None, *rest)


# ---------------------------------------------------------------- which networks the kernels take


def kernels_for(network: PixelCNN, x: Tensor) -> PixelProgram | None:
    """The kernels for a float32 network and a batch, if there are any that fit; those for a float64 batch are fine."""
    if not x.is_cuda or not fused_allowed() or not whole_flow_path(x.device).fused:
        return None
    if x.dtype not in (torch.float32, torch.float64):
        return None
    if any(p.dtype != torch.float32 or p.device != x.device for p in network.parameters()):
        return None
    shape = pixel_shape(network)
    if x.dtype == torch.float64:
        return _fine_program(shape, x.device, network.context)
    return _program(shape, x.device, network.context)


def has_fine_kernels(network: PixelCNN, x: Tensor) -> bool:
    """Whether a batch could as well be float64."""
    return kernels_for(network, x.new_empty((0,), dtype=torch.float64)) is not None


def pixel_shape(network: PixelCNN) -> PixelShape:
    """A network as the kernels see it.

    While it is trained, they are as rough as PyTorch's convolutions may be; without gradients, they are exact anyway.
    """
    rough = (network.training or not torch.is_grad_enabled()) and _tf32_allowed()
    return PixelShape(*network.shape, maps=network.channels, blocks=len(network.blocks), rough=rough)


def _tf32_allowed() -> bool:
    """For convolutions, by either of the two ways in which PyTorch is told."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # it was told in the new way
        told: Any = torch.backends.cudnn
        return bool(told.conv.fp32_precision == "tf32")


@lru_cache(maxsize=32)
def _program(shape: PixelShape, device: torch.device, context: int) -> PixelProgram | None:
    return tried(shape, device, context, CudaLauncher(shape, device))


@lru_cache(maxsize=32)
def _fine_program(shape: PixelShape, device: torch.device, context: int) -> PixelProgram | None:
    if torch.cuda.get_device_capability(device) not in _FAST_DOUBLES:
        return None
    program = _program(shape, device, context)
    return program if program is not None and fine_too(program, context) else None


def tried(shape: PixelShape, device: torch.device, context: int, launcher: Launcher) -> PixelProgram | None:
    """The kernels for networks of a shape, if they fit and do what they should with one that is drawn."""
    with _undisturbed(device):
        sample = _drawn_network(shape, context)
        program = PixelProgram(shape, [layer.mask for layer in sample.layers], device, launcher)
        told = "for images gave other numbers than plain PyTorch, and are not used"
        good = program.fits() and trusted(lambda: agrees(program, sample.to(device)), told)
        return program if good else None


def fine_too(program: PixelProgram, context: int) -> bool:
    """Whether the fine kernels fit and do what they should, too."""
    if not program.fits_finely():
        return False
    told = "for images in double precision gave other numbers than plain PyTorch, and are not used"
    with _undisturbed(program.device):
        sample = _drawn_network(program.shape, context)
        return trusted(lambda: agrees_finely(program, sample.to(program.device)), told)


@contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Whatever modes the user is in just now, what is done here is always the same, and leaves no trace."""
    with (
        torch.inference_mode(False),
        torch.autocast(device.type, enabled=False),
        torch.device("cpu"),
        torch.random.fork_rng(devices=[]),
    ):
        torch.manual_seed(0)
        yield


def _drawn_network(shape: PixelShape, context: int) -> PixelCNN:
    return PixelCNN((shape.channels, shape.height, shape.width), context, shape.maps, shape.blocks).float()


def _trial(program: PixelProgram, network: PixelCNN) -> tuple[Tensor, Tensor | None]:
    """Images and contexts; and the network's numbers are changed, because the head of a fresh one is zero."""
    shape, device = program.shape, program.device
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float32).to(device)

    x = drawn(shape.channels * shape.pixels, _TRIAL_IMAGES)
    context = drawn(network.context, _TRIAL_IMAGES) if network.context else None
    for parameter in network.parameters():
        parameter.data += 0.05 * drawn(*parameter.shape)
    return x, context


@torch.no_grad()
def agrees_finely(program: PixelProgram, network: PixelCNN) -> bool:
    """Whether the fine kernels find what plain PyTorch finds in double precision, and the way back."""
    x, context = _trial(program, network)
    x = x.double() / 3  # with digits that single numbers do not have
    truth = copy.deepcopy(network).double()
    given = None if context is None else context.double()
    for reverse in (False, True):
        z = fused_shift(program, network, x, context, reverse)
        if not _close(z, plain_shift(x, given, truth.numbers(), truth.shape, reverse), _OF_FINE_UNITS):
            return False
    z = plain_shift(x, given, truth.numbers(), truth.shape, False)
    found, again, _ = fused_inverse(program, z, context, network.numbers())
    return _close(found, x, _OF_FINE_UNITS) and _close(again, z, _OF_FINE_SUMS)


def agrees(program: PixelProgram, network: PixelCNN) -> bool:
    """Whether the kernels do with a few images what plain PyTorch does, gradients and inverse included."""
    shape = program.shape
    x, context = _trial(program, network)
    x.requires_grad_()
    if context is not None:
        context.requires_grad_()
    wanted = [x, *([] if context is None else [context]), *network.parameters()]
    near, gradients_near = _TOLERANCE, _OF_ROUGH_GRADIENTS if shape.rough else _OF_GRADIENTS
    for reverse in (False, True):
        with torch.enable_grad():
            fused = fused_shift(program, network, x, context, reverse)
            plain = plain_shift(x, context, network.numbers(), network.shape, reverse)
            # Without the one, a bias' gradient might happen to be next to nothing, and all of it an error.
            gradients = [torch.autograd.grad((z + 1).square().sum(), wanted) for z in (fused, plain)]
        with torch.no_grad():
            exact = fused_shift(program, network, x, context, reverse)
        (of_x, *ours), (plain_of_x, *theirs) = gradients
        flat, plain_flat = (torch.cat([g.flatten() for g in each]) for each in (ours, theirs))
        compared = [
            (exact, plain, near),
            (fused, plain, max(near, gradients_near / 10)),
            (of_x, plain_of_x, gradients_near),
            (flat, plain_flat, gradients_near),
        ]
        if not all(_close(*each) for each in compared):
            return False
    if not program.inverts():
        return True
    with torch.no_grad():
        z = plain_shift(x, context, network.numbers(), network.shape, False)
        found, again, _ = fused_inverse(program, z, context, network.numbers())
    return _close(found, x, near) and _close(again, z, near)


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return bool((ours - theirs).norm() <= tolerance * (1e-6 + theirs.norm()))
