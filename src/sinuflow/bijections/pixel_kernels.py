"""Which kernels the PixelCNN of a layer gets: those that fit it, and have passed a trial."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..conditioners.pixelcnn import PixelCNN
from ..ops.backends.cuda.blocks import Launcher
from ..ops.backends.cuda.driver import CudaLauncher
from ..ops.backends.cuda.pixels.program import PixelProgram
from ..ops.backends.cuda.pixels.shape import PixelShape
from ..ops.dispatch import fused_allowed
from ..ops.select import has_tensor_cores, use_triton, whole_flow_path
from ..ops.selftest import trusted
from .pixel_shift import Kernels, fused_shift, plain_shift
from .pixel_trial import agrees, agrees_finely, drawn_network, undisturbed

#: Generations whose tensor cores multiply doubles about as fast as others multiply single numbers.
_FAST_DOUBLES = ((8, 0), (9, 0), (10, 0))


def pixel_shift(network: PixelCNN, x: Tensor, context: Tensor | None, reverse: bool) -> Tensor:
    """What is told of a feature-major batch (D, B); with ``reverse``, the network sees everything from the end."""
    program = kernels_for(network, x)
    if program is None:
        return plain_shift(x, context, network.numbers(), network.shape, reverse)
    return fused_shift(program, network, x, context, reverse)


def kernels_for(network: PixelCNN, x: Tensor) -> Kernels | None:
    """The kernels for a float32 network and a batch, if there are any that fit; those for a float64 batch are fine.

    Those in CUDA C++; or Triton's, if there are none, as for a network with too many maps.
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
    if x.dtype != torch.float32 or not use_triton(x) or not has_tensor_cores(x.device):
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
    return PixelShape(
        *network.shape, maps=network.channels, blocks=len(network.blocks), rough=rough, outputs=network.outputs
    )


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

    from ..ops.backends.triton.wide_pixels import WideProgram, WideShape

    wide = WideShape(shape.channels, shape.height, shape.width, shape.maps, shape.blocks, shape.outputs)
    with undisturbed(device):
        sample = drawn_network(shape, context)
        program = WideProgram(wide, [layer.mask for layer in sample.layers], device)
        told = "for wide networks of images gave other numbers than plain PyTorch, and are not used"
        good = program.fits() and trusted(lambda: agrees(program, sample.to(device)), told, TritonError, RuntimeError)
        return program if good else None


def tried(shape: PixelShape, device: torch.device, context: int, launcher: Launcher) -> PixelProgram | None:
    """The kernels for networks of a shape, if they fit and do what they should with one that is drawn."""
    with undisturbed(device):
        sample = drawn_network(shape, context)
        program = PixelProgram(shape, [layer.mask for layer in sample.layers], device, launcher)
        told = "for images gave other numbers than plain PyTorch, and are not used"
        good = program.fits() and trusted(lambda: agrees(program, sample.to(device)), told)
        return program if good else None


def fine_too(program: PixelProgram, context: int) -> bool:
    """Whether the fine kernels fit and do what they should, too."""
    if not program.fits_finely():
        return False
    told = "for images in double precision gave other numbers than plain PyTorch, and are not used"
    with undisturbed(program.device):
        sample = drawn_network(program.shape, context)
        return trusted(lambda: agrees_finely(program, sample.to(program.device)), told)
