"""The trial that kernels for PixelCNNs are put to: a few images through a network that is drawn."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..conditioners.pixelcnn import PixelCNN
from ..ops.backends.cuda.pixels.program import PixelProgram
from ..ops.backends.cuda.pixels.shape import PixelShape
from ..ops.pixel_affine import reference, unscaled
from .pixel_shift import Kernels, fused_inverse, fused_shift, plain_shift

#: For the trial that new kernels are put to: how far their numbers may be from those of plain PyTorch, and their
#: gradients, those of parameters together; in rough ones, a unit next to zero is active or not as rounding has it.
_TRIAL_IMAGES, _TOLERANCE, _OF_GRADIENTS, _OF_ROUGH_GRADIENTS = 3, 1e-4, 1e-3, 3e-2
#: The same for the fine kernels: units are rounded, and then the same both ways.
_OF_FINE_UNITS, _OF_FINE_SUMS = 1e-6, 1e-8


@contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Whatever modes the user is in just now, what is done here is always the same, and leaves no trace."""
    with (
        torch.inference_mode(False),
        torch.autocast(device.type, enabled=False),
        torch.device("cpu"),
        torch.random.fork_rng(devices=[]),
    ):
        torch.manual_seed(0)
        yield


def drawn_network(shape: PixelShape, context: int) -> PixelCNN:
    """A network of a shape."""
    size = (shape.channels, shape.height, shape.width)
    return PixelCNN(size, context, shape.maps, shape.blocks, shape.outputs).float()


def _trial(program: Kernels, network: PixelCNN) -> tuple[Tensor, Tensor | None]:
    """Images and contexts; and the network's numbers are changed, because the head of a fresh one is zero."""
    device = program.device
    generator = torch.Generator().manual_seed(0)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float32).to(device)

    x = drawn(math.prod(network.shape), _TRIAL_IMAGES)
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
    z = reference(plain_shift(x, given, truth.numbers(), truth.shape, False), len(x)).z
    found, again, _ = fused_inverse(program, z, context, network.numbers())
    return _close(found, x, _OF_FINE_UNITS) and _close(again[: len(x)], unscaled(z, again).z, _OF_FINE_SUMS)


def _learns(program: Kernels, network: PixelCNN, x: Tensor, context: Tensor | None, tolerance: float) -> bool:
    """Whether the kernels find the same as plain PyTorch for a few images, but for a tenth of this; and gradients."""
    x = x.clone().requires_grad_()
    if context is not None:
        context = context.clone().requires_grad_()
    wanted = [x, *([] if context is None else [context]), *network.parameters()]
    for reverse in (False, True):
        with torch.enable_grad():
            fused = fused_shift(program, network, x, context, reverse)
            plain = plain_shift(x, context, network.numbers(), network.shape, reverse)
            # Without the one, a bias' gradient might happen to be next to nothing, and all of it an error.
            gradients = [torch.autograd.grad((z + 1).square().sum(), wanted) for z in (fused, plain)]
        (of_x, *ours), (plain_of_x, *theirs) = gradients
        flat, plain_flat = (torch.cat([g.flatten() for g in each]) for each in (ours, theirs))
        compared = [(fused, plain, tolerance / 10), (of_x, plain_of_x, tolerance), (flat, plain_flat, tolerance)]
        if not all(_close(*each) for each in compared):
            return False
    return True


def agrees(program: Kernels, network: PixelCNN) -> bool:
    """Whether the kernels do with a few images what plain PyTorch does, gradients and inverse included."""
    x, context = _trial(program, network)
    if not _learns(program, network, x, context, _OF_ROUGH_GRADIENTS if program.shape.rough else _OF_GRADIENTS):
        return False
    with torch.no_grad():
        for reverse in (False, True):
            exact = fused_shift(program, network, x, context, reverse)
            if not _close(exact, plain_shift(x, context, network.numbers(), network.shape, reverse), _TOLERANCE):
                return False
        if not program.inverts():
            return True
        units: list[Tensor] = []
        told = plain_shift(x, context, network.numbers(), network.shape, False, units)
        found, again, largest = fused_inverse(program, reference(told, len(x)).z, context, network.numbers())
        expected = torch.stack([unit.amax((1, 2, 3)) for unit in units]).amax(0)
    pairs = ((found, x), (again, told), (largest, expected))
    return all(_close(ours, theirs, _TOLERANCE) for ours, theirs in pairs)


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return bool((ours - theirs).norm() <= tolerance * (1e-6 + theirs.norm()))
