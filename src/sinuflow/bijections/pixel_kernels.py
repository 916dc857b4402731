"""Which kernels the PixelCNN of a shift gets: those that fit it, and have passed a trial."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..conditioners.pixelcnn import PixelCNN
from ..kernels.cuda.blocks import Launcher
from ..kernels.cuda.driver import CudaLauncher
from ..kernels.cuda.pixels.program import PixelProgram
from ..kernels.cuda.pixels.shape import PixelShape
from ..kernels.dispatch import fused_allowed
from ..kernels.paths import use_triton, whole_flow_path
from .pixel_shift import Kernels, fused_inverse, fused_shift, plain_shift
from .trial import trusted

#: For the trial that new kernels are put to: how far their numbers may be from those of plain PyTorch, and their
#: gradients, those of parameters together; in rough ones, a unit next to zero is active or not as rounding has it.
_TRIAL_IMAGES, _TOLERANCE, _OF_GRADIENTS, _OF_ROUGH_GRADIENTS = 3, 1e-4, 1e-3, 3e-2
#: The same for the fine kernels: units are rounded, and then the same both ways.
_OF_FINE_UNITS, _OF_FINE_SUMS = 1e-6, 1e-8
#: Generations whose tensor cores multiply doubles about as fast as others multiply single numbers.
_FAST_DOUBLES = ((8, 0), (9, 0), (10, 0))


def pixel_shift(network: PixelCNN, x: Tensor, context: Tensor | None, reverse: bool) -> Tensor:
    """z = x + c(x) for a feature-major batch (D, B); with ``reverse``, c sees everything from the end."""
    program = kernels_for(network, x)
    if program is None:
        return plain_shift(x, context, network.numbers(), network.shape, reverse)
    return fused_shift(program, network, x, context, reverse)


def kernels_for(network: PixelCNN, x: Tensor) -> Kernels | None:
    """The kernels for a float32 network and a batch, if there are any that fit; those for a float64 batch are fine.

    Those in CUDA C++, or Triton's if the network has too many maps for them.
    """
    if not _may_have_kernels(network, x):
        return None
    exact_gradients = torch.is_grad_enabled() and not pixel_shape(network).rough  # which Triton's do not have
    return _cuda_kernels(network, x) or (None if exact_gradients else _triton_kernels(network, x))


def inverting_kernels_for(network: PixelCNN, z: Tensor) -> Kernels | None:
    """The same for the inverse, for which those in CUDA C++ need more room."""
    if not _may_have_kernels(network, z):
        return None
    program = _cuda_kernels(network, z)
    return program if program is not None and program.inverts() else _triton_kernels(network, z)


def _may_have_kernels(network: PixelCNN, x: Tensor) -> bool:
    if not x.is_cuda or not fused_allowed() or x.dtype not in (torch.float32, torch.float64):
        return False
    return all(p.dtype == torch.float32 and p.device == x.device for p in network.parameters())


def _cuda_kernels(network: PixelCNN, x: Tensor) -> PixelProgram | None:
    if not whole_flow_path(x.device).fused:
        return None
    kind = _fine_program if x.dtype == torch.float64 else _program
    return kind(pixel_shape(network), x.device, network.context)


def _triton_kernels(network: PixelCNN, x: Tensor) -> Kernels | None:
    if x.dtype != torch.float32 or not use_triton(x):
        return None
    return _wide_program(replace(pixel_shape(network), rough=True), x.device, network.context)


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


@lru_cache(maxsize=32)
def _wide_program(shape: PixelShape, device: torch.device, context: int) -> Kernels | None:
    from triton.runtime.errors import TritonError

    from ..kernels.triton.wide_pixels import WideProgram, WideShape

    wide = WideShape(shape.channels, shape.height, shape.width, shape.maps, shape.blocks)
    with _undisturbed(device):
        sample = _drawn_network(shape, context)
        program = WideProgram(wide, [layer.mask for layer in sample.layers], device)
        told = "for wide networks of images gave other numbers than plain PyTorch, and are not used"
        good = program.fits() and trusted(lambda: agrees(program, sample.to(device)), told, TritonError)
        return program if good else None


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
    z = plain_shift(x, given, truth.numbers(), truth.shape, False)
    found, again, _ = fused_inverse(program, z, context, network.numbers())
    return _close(found, x, _OF_FINE_UNITS) and _close(again, z, _OF_FINE_SUMS)


def learns(program: Kernels, network: PixelCNN, tolerance: float = _OF_ROUGH_GRADIENTS) -> bool:
    """Whether the kernels find the same as plain PyTorch for a few images, but for a tenth of this; and gradients."""
    x, context = _trial(program, network)
    x.requires_grad_()
    if context is not None:
        context.requires_grad_()
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
    if not learns(program, network, _OF_ROUGH_GRADIENTS if program.shape.rough else _OF_GRADIENTS):
        return False
    x, context = _trial(program, network)
    with torch.no_grad():
        for reverse in (False, True):
            exact = fused_shift(program, network, x, context, reverse)
            if not _close(exact, plain_shift(x, context, network.numbers(), network.shape, reverse), _TOLERANCE):
                return False
        if not program.inverts():
            return True
        z = plain_shift(x, context, network.numbers(), network.shape, False)
        found, again, _ = fused_inverse(program, z, context, network.numbers())
    return _close(found, x, _TOLERANCE) and _close(again, z, _TOLERANCE)


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    return bool((ours - theirs).norm() <= tolerance * (1e-6 + theirs.norm()))
