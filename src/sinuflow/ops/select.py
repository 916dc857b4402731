"""Which version of a kernel runs where, and why.

On a GPU, a whole float32 flow goes through CUDA kernels if they fit it, and so does every network of a flow of images;
otherwise layers, and networks of images, go through Triton kernels; and where neither works, through plain PyTorch:
slower, same results.
On a CPU, float32 waves are compiled for the processor if there is a C++ compiler.
``SINUFLOW_KERNELS=plain`` (or ``triton``) in the environment asks for less than there is.
"""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import KernelWarning
from .backends.cpp.compiler import NativeError, NoCompilerError
from .backends.cpp.library import MOST_WAVES, library
from .backends.cuda.compiler import CompilerError, find_compiler
from .dispatch import fused_allowed

#: Before this generation, Triton's kernels do not run.
_OLDEST = (7, 0)
#: The first generation whose tensor cores multiply tf32 numbers.
_TENSOR_CORES = (8, 0)


class Path(NamedTuple):
    """Whether the fused kernels are used, and why or why not."""

    fused: bool
    reason: str


def use_triton(x: Tensor) -> bool:
    """Whether a tensor is for the Triton kernels."""
    return x.is_cuda and fused_allowed() and gpu_path(x.device).fused


def wave_kernels(waves: int, x: Tensor, *others: Tensor, fine: bool = False) -> ModuleType | None:
    """The package that has fused kernels for a feature-major batch ``x`` and so many waves, if any has.

    Both have the modules ``scale_stack`` and ``conditional_waves``, with the same functions. The ``others``
    are what they will be given besides: it must be of the same kind, because kernels take bare memory. ``fine``: on
    a GPU, they may also be float32 beside a float64 batch; only ``scale_stack`` knows that, and without gradients.
    """
    if not fused_allowed() or any(t.device != x.device for t in others):
        return None
    if x.dtype not in (torch.float32, torch.float64):
        return None
    finer = fine and x.is_cuda and x.dtype == torch.float64 and all(t.dtype == torch.float32 for t in others)
    if not finer and any(t.dtype != x.dtype for t in others):
        return None
    if x.is_cuda:
        return _backend("triton") if gpu_path(x.device).fused else None
    if x.device.type != "cpu" or x.dtype != torch.float32 or waves > MOST_WAVES or not cpu_path().fused:
        return None
    return _backend("cpp")


@lru_cache(maxsize=2)
def _backend(name: str) -> ModuleType:
    for module in ("scale_stack", "conditional_waves"):
        import_module(f".backends.{name}.{module}", __package__)
    return import_module(f".backends.{name}", __package__)


@lru_cache(maxsize=1)
def cpu_path() -> Path:
    """What runs on the CPU; found out once, by trying it, with a warning if a compiler is there and fails."""
    if os.environ.get("SINUFLOW_KERNELS", "").lower() == "plain":
        return Path(False, "SINUFLOW_KERNELS=plain asks for plain PyTorch")
    try:
        library()
    except NativeError as error:
        if not isinstance(error, NoCompilerError):
            warnings.warn(f"plain PyTorch is used on the CPU, which is slower: {error}", KernelWarning, stacklevel=2)
        return Path(False, str(error))
    return Path(True, "waves compiled for this processor")


@lru_cache(maxsize=64)
def gpu_path(device: torch.device) -> Path:
    """What runs on a GPU; found out once, by trying it."""
    if os.environ.get("SINUFLOW_KERNELS", "").lower() == "plain":
        return Path(False, "SINUFLOW_KERNELS=plain asks for plain PyTorch")
    if find_spec("triton") is None:
        return Path(False, "Triton is not installed")
    capability = torch.cuda.get_device_capability(device)
    if torch.version.hip is None and capability < _OLDEST:
        return Path(False, f"compute capability {capability[0]}.{capability[1]} is too old for Triton")
    try:
        _try_triton(device)
    except Exception as error:  # a missing C compiler, a driver that does not fit: whatever it is, go on without
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Path(False, f"Triton does not work here: {said[:120]}")
    return Path(True, "fused Triton kernels")


@lru_cache(maxsize=64)
def whole_flow_path(device: torch.device) -> Path:
    """Whether a GPU can take a whole flow, or a network of images, at once, by kernels in CUDA C++."""
    if os.environ.get("SINUFLOW_KERNELS", "").lower() in ("plain", "triton"):
        return Path(False, f"SINUFLOW_KERNELS={os.environ['SINUFLOW_KERNELS']} asks for others")
    if device.type != "cuda" or torch.version.cuda is None:
        return Path(False, "they need a GPU by NVIDIA")
    if not has_tensor_cores(device):
        major, minor = torch.cuda.get_device_capability(device)
        return Path(False, f"compute capability {major}.{minor} has no tensor cores for them")
    try:
        find_compiler()
    except CompilerError as error:
        return Path(False, str(error))
    return Path(True, "fused CUDA kernels for whole flows, and for networks of images")


def has_tensor_cores(device: torch.device) -> bool:
    """Whether a GPU has tensor cores for rough single numbers."""
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= _TENSOR_CORES


def _try_triton(device: torch.device) -> None:
    from .backends.triton import constrain

    with torch.cuda.device(device):
        zeros = torch.zeros((1, 1, 1), device=device)
        a, _, _ = constrain.forward(zeros, zeros, zeros, zeros[0])
        if not 0.69 < float(a) < 0.70:
            raise RuntimeError(f"a kernel gave {float(a)} for log 2")
