"""Selection of an op's implementation: its reference in PyTorch, or the fused kernels of a backend.

On a CPU, waves have C++ kernels. On a GPU, a float32 flow that fits on chip runs as one CUDA flow program, a PixelCNN
has CUDA and Triton kernels, and other ops have Triton kernels. The reference runs where no backend is available, under
``torch.compile``, tracing and function transforms, and where a kernel fails its self-test.
``SINUFLOW_KERNELS=reference`` (or ``plain``) selects the reference everywhere, ``triton`` excludes CUDA C++.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import KernelWarning
from .backends.cpp.compiler import CppError, NoCompilerError
from .backends.cpp.library import library
from .backends.cuda.compiler import CompilerError, find_compiler

#: Compute capabilities whose tensor cores multiply float64 about as fast as others multiply float32.
_FAST_FLOAT64 = ((8, 0), (9, 0), (10, 0))


class Backend(NamedTuple):
    """Whether a backend is available, and why or why not."""

    available: bool
    reason: str


def fused_allowed() -> bool:
    """Whether fused kernels may run in the current context.

    The reference runs under ``torch.compile``, which fuses it better, and under tracing, dispatch modes, function
    transforms and forward-mode differentiation, which need PyTorch operations.
    """
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    return forward_ad._current_level < 0


def use_triton(x: Tensor, tensor_cores: bool = False) -> bool:
    """Whether Triton kernels run for a tensor; with ``tensor_cores``, kernels that multiply in TF32."""
    allowed = x.is_cuda and fused_allowed() and triton_backend(x.device).available
    return allowed and (not tensor_cores or _has_tensor_cores(x.device))


def use_cuda(x: Tensor, *parameters: Tensor) -> bool:
    """Whether CUDA kernels run for a batch: float32, or float64 where that is fast; parameters are float32."""
    if not x.is_cuda or not fused_allowed() or x.dtype not in (torch.float32, torch.float64):
        return False
    if any(p.dtype != torch.float32 or p.device != x.device for p in parameters):
        return False
    fast = x.dtype == torch.float32 or torch.cuda.get_device_capability(x.device) in _FAST_FLOAT64
    return fast and cuda_backend(x.device).available


def wave_kernels(x: Tensor, *others: Tensor, mixed: bool = False) -> ModuleType | None:
    """The backend package with fused kernels for the waves of a feature-major batch ``x``, or None.

    Every such package has the modules ``scale_stack`` and ``conditional_waves``, with the same functions. The other
    tensors must have the device and dtype of ``x``, because kernels take pointers. With ``mixed``, the others may be
    float32 for a float64 batch on a GPU; only ``scale_stack`` supports that, without gradients.
    """
    if not fused_allowed() or any(t.device != x.device for t in others):
        return None
    mixed = mixed and x.is_cuda and x.dtype == torch.float64 and all(t.dtype == torch.float32 for t in others)
    if x.dtype not in (torch.float32, torch.float64) or not (mixed or all(t.dtype == x.dtype for t in others)):
        return None
    if x.is_cuda:
        return _wave_package("triton") if triton_backend(x.device).available else None
    return _wave_package("cpp") if x.device.type == "cpu" and cpp_backend().available else None


@lru_cache(maxsize=2)
def _wave_package(name: str) -> ModuleType:
    for module in ("scale_stack", "conditional_waves"):
        import_module(f".backends.{name}.{module}", __package__)
    return import_module(f".backends.{name}", __package__)


def _excluded(*others: str) -> Backend | None:
    """The result for a backend that SINUFLOW_KERNELS excludes by selecting the reference or one of ``others``."""
    requested = os.environ.get("SINUFLOW_KERNELS", "").lower()
    if requested not in ("plain", "reference", *others):
        return None
    selected = requested if requested in others else "the reference implementation"
    return Backend(False, f"SINUFLOW_KERNELS={requested} selects {selected}")


@lru_cache(maxsize=1)
def cpp_backend() -> Backend:
    """The C++ kernels on the CPU, compiled once; a compiler that fails is a warning."""
    if excluded := _excluded():
        return excluded
    try:
        library()
    except CppError as error:
        if not isinstance(error, NoCompilerError):
            slower = f"the reference implementation is used on the CPU, which is slower: {error}"
            warnings.warn(slower, KernelWarning, stacklevel=2)
        return Backend(False, str(error))
    return Backend(True, "waves compiled for this processor")


@lru_cache(maxsize=64)
def triton_backend(device: torch.device) -> Backend:
    """The Triton kernels on a GPU, after a self-test of one of them."""
    if excluded := _excluded():
        return excluded
    if find_spec("triton") is None:
        return Backend(False, "Triton is not installed")
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < (7, 0):
        return Backend(False, f"compute capability {capability[0]}.{capability[1]} is too old for Triton")
    try:
        from .backends.triton import constrain

        with torch.cuda.device(device):
            zeros = torch.zeros((1, 1, 1), device=device)
            a, _, _ = constrain.forward(zeros, zeros, zeros, zeros[0])
            if not 0.69 < float(a) < 0.70:
                raise RuntimeError(f"a kernel returned {float(a)} for log 2")
    except Exception as error:  # no C compiler, an incompatible driver, or anything else: fall back
        return Backend(False, f"Triton does not work here: {_first_line(error)[:120]}")
    return Backend(True, "fused Triton kernels")


@lru_cache(maxsize=64)
def cuda_backend(device: torch.device) -> Backend:
    """The CUDA kernels for whole flows and for PixelCNNs, if the device and the compiler support them."""
    if excluded := _excluded("triton"):
        return excluded
    if device.type != "cuda" or torch.version.cuda is None:
        return Backend(False, "they need an NVIDIA GPU")
    if not _has_tensor_cores(device):
        major, minor = torch.cuda.get_device_capability(device)
        return Backend(False, f"compute capability {major}.{minor} has no tensor cores for them")
    try:
        find_compiler()
    except CompilerError as error:
        return Backend(False, str(error))
    return Backend(True, "fused CUDA kernels for whole flows and PixelCNNs")


def _has_tensor_cores(device: torch.device) -> bool:
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)  # TF32


def tf32_allowed() -> bool:
    """Whether PyTorch's convolutions may round to TF32, by either of its two settings."""
    cudnn = torch.backends.cudnn
    try:
        return bool(cudnn.allow_tf32)
    except RuntimeError:  # set by the newer setting, which the older one refuses to read
        return bool(cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]


def passes_selftest(agrees: Callable[[], bool], kernels: str, *failures: type[Exception]) -> bool:
    """Whether kernels compile, run and agree with their reference; a warning otherwise.

    ``failures`` are the exceptions, besides :class:`~sinuflow.ops.backends.cuda.compiler.CompilerError`, that kernels
    raise if they cannot be compiled or launched.
    """
    caught: tuple[type[Exception], ...] = (CompilerError, *failures)
    try:
        passed = agrees()
    except torch.OutOfMemoryError:  # not the kernels' fault
        raise
    except caught as error:
        message = f"{kernels} cannot be used, and a fallback runs instead: {_first_line(error)}"
        warnings.warn(message, KernelWarning, stacklevel=3)
        return False
    if not passed:
        warnings.warn(
            f"{kernels} disagree with the reference implementation, and are not used: please report this, with the "
            "output of `sinuflow info --devices`",
            KernelWarning,
            stacklevel=3,
        )
    return passed


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
