"""The C++ kernels as a shared library, and calls of them on as many threads as PyTorch would use."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .. import cache
from . import compiler
from .compiler import CppError

#: Rows of a tile, as in waves.cpp.
_LANES = 64
#: Elements per thread below which more threads are not worth waking.
_WORTH_A_THREAD = 16_384

SOURCE = Path(__file__).with_name("waves.cpp")
#: The C++ types of the dtypes that have kernels.
_TYPES = {torch.float32: "float", torch.float64: "double"}
FUNCTIONS = [
    f"{kind}_{dtype}_{name}"
    for kind in ("shared", "row", "conditional")
    for dtype in _TYPES.values()
    for name in ("forward", "backward", "inverse")
]


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The compiled kernels. Raises :class:`CppError` if there are none."""
    try:
        program, processor = compiler.find_compiler(), compiler.processor()
        tunings = [[]] if processor is None else compiler.TUNINGS
        _, version = compiler.run([program, "--version"], compiler.VERSION_SECONDS)
        key = [SOURCE.read_text("utf-8"), program, version, platform.machine(), str(processor)]
        key += [str(compiler.OPTIONS), str(tunings)]
        name = f"waves-{hashlib.sha256(os.fsencode(chr(10).join(key))).hexdigest()[:24]}.so"
        return cache.kernels(name, lambda: compiler.compile_library(program, SOURCE, tunings), load)
    except OSError as error:
        raise CppError(f"kernels cannot be compiled or loaded: {cache.one_line(error)}") from error


def load(content: bytes) -> ctypes.CDLL:
    """Load a library from verified bytes. May raise OSError."""
    loaded = None
    if hasattr(os, "memfd_create"):
        with suppress(OSError):  # some systems forbid it
            loaded = _load_from_memory(content)
    if loaded is None:
        with cache.temporary_folder() as folder:
            path = folder / "waves.so"
            path.write_bytes(content)
            loaded = ctypes.CDLL(str(path))
    missing = [name for name in FUNCTIONS if not hasattr(loaded, name)]
    if missing:
        raise OSError(f"the compiled library has no function {missing[0]}")
    return loaded


def _load_from_memory(content: bytes) -> ctypes.CDLL:
    """Through a sealed anonymous file, which cannot be changed or truncated while it is mapped."""
    import fcntl

    # Never closed: the dynamic loader identifies libraries by path, so the descriptor must not be reused.
    descriptor = os.memfd_create("sinuflow-waves", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return ctypes.CDLL(f"/proc/{os.getpid()}/fd/{descriptor}")
    except BaseException:
        os.close(descriptor)
        raise


# ---------------------------------------------------------------- calls

Shape = tuple[int, int]  # the numbers of transformers, and of waves in each


class Sizes(ctypes.Structure):
    """Sizes of a call, as in waves.cpp."""

    _fields_ = [(name, ctypes.c_int64) for name in ("features", "rows", "scales", "waves", "limit", "begin", "end")]


def forward(kind: str, shape: Shape, parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The value (D, B) and the log-determinant (B,)."""
    x = x.contiguous()
    z, ladj = torch.empty_like(x), x.new_empty(x.shape[-1])
    _call(f"{kind}_forward", 2 if kind == "conditional" else 1, shape, parameters, x, z, ladj)
    return z, ladj


def backward(
    kind: str, shape: Shape, parameters: Sequence[Tensor], gradients: Tensor, x: Tensor, *grads: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x and, in ``gradients``, of the parameters; ``grads`` are those of the value and log-determinant."""
    x = x.contiguous()
    grad_x = torch.empty_like(x)
    # All rows are accumulated into the gradients of shared waves, so they are on one thread.
    effort = 0 if kind == "shared" else 4
    _call(f"{kind}_backward", effort, shape, parameters, x, *(t.contiguous() for t in grads), grad_x, gradients)
    return grad_x, gradients


def inverse(
    kind: str, shape: Shape, parameters: Sequence[Tensor], z: Tensor, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x; the slope of a conditional layer, or a stack's log-determinant; iterations, residual and convergence."""
    z = z.contiguous()
    x, slope = torch.empty_like(z), torch.empty_like(z) if kind == "conditional" else z.new_empty(z.shape[-1])
    iterations, converged = torch.empty_like(slope, dtype=torch.int32), torch.empty_like(slope, dtype=torch.bool)
    outputs = (x, slope, iterations, torch.empty_like(slope), converged)
    _call(f"{kind}_inverse", 8, shape, parameters, z, *outputs, limit=max_iterations)
    return outputs


def _call(name: str, effort: int, shape: Shape, parameters: Sequence[Tensor], *tensors: Tensor, limit: int = 0) -> None:
    """Call a kernel on all rows of the first tensor; all tensors but the parameters are contiguous.

    ``effort`` is the work per transformer and element, in multiples of that of the forward map; 0 means one thread.
    """
    x = tensors[0]
    function: Callable[..., None] = getattr(library(), name.replace("_", f"_{_TYPES[x.dtype]}_"))
    features, rows = x.shape
    parameters = [t.contiguous() for t in parameters]
    pointers = (ctypes.c_void_p * len(parameters))(*[t.data_ptr() for t in parameters])
    first, *rest = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    work = effort * shape[0] * x.numel()
    threads = max(1, min(torch.get_num_threads(), work // _WORTH_A_THREAD, -(-rows // _LANES)))
    if threads == 1:
        function(first, pointers, *rest, ctypes.byref(Sizes(features, rows, *shape, limit, 0, rows)))
        return
    share = -(-rows // threads // _LANES) * _LANES
    parts = [Sizes(features, rows, *shape, limit, i, min(i + share, rows)) for i in range(0, rows, share)]
    jobs = [_pool().submit(function, first, pointers, *rest, ctypes.byref(part)) for part in parts]
    try:
        for job in jobs:
            job.result()
    finally:
        wait(jobs)  # an interrupt must not free the memory that they write to


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="sinuflow")


if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
