"""Calls of the kernels in waves.cpp, on as many threads as PyTorch would use for so much work."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache

import torch
from torch import Tensor

from .library import TYPES, library

#: Rows of a tile, as in waves.cpp.
_LANES = 64
#: Elements per thread below which more threads are not worth waking.
_WORTH_A_THREAD = 16_384


def forward(kind: str, shape: tuple[int, int], parameters: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The value (D, B) and the log-determinant (B,)."""
    x = x.contiguous()
    z, ladj = torch.empty_like(x), x.new_empty(x.shape[-1])
    _call(kind, "forward", 2 if kind == "conditional" else 1, shape, parameters, x, z, ladj)
    return z, ladj


def backward(
    kind: str, shape: tuple[int, int], parameters: Sequence[Tensor], gradients: Tensor, x: Tensor, *grads: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x and, in ``gradients``, of the parameters; ``grads`` are those of the value and log-determinant."""
    x = x.contiguous()
    grad_x = torch.empty_like(x)
    # All rows are accumulated into the gradients of shared waves, so they are on one thread.
    effort = 0 if kind == "shared" else 4
    _call(kind, "backward", effort, shape, parameters, x, *(t.contiguous() for t in grads), grad_x, gradients)
    return grad_x, gradients


def inverse(
    kind: str, shape: tuple[int, int], parameters: Sequence[Tensor], z: Tensor, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x; the slope of a conditional layer, or a stack's log-determinant; iterations, residual and convergence."""
    z = z.contiguous()
    x, slope = torch.empty_like(z), torch.empty_like(z) if kind == "conditional" else z.new_empty(z.shape[-1])
    iterations, converged = torch.empty_like(slope, dtype=torch.int32), torch.empty_like(slope, dtype=torch.bool)
    outputs = (x, slope, iterations, torch.empty_like(slope), converged)
    _call(kind, "inverse", 8, shape, parameters, z, *outputs, last=(max_iterations,))
    return outputs


def _call(
    kind: str,
    name: str,
    effort: int,
    shape: tuple[int, int],
    parameters: Sequence[Tensor],
    x: Tensor,
    *others: Tensor,
    last: tuple[int, ...] = (),
) -> None:
    """Call a kernel on all rows of ``x``; ``shape`` has the numbers of transformers and of waves in each.

    ``effort`` is the work per transformer and element, in multiples of that of the forward map; 0 means one thread. All
    tensors but the parameters are contiguous.
    """
    function: Callable[..., None] = getattr(library(), f"{kind}_{TYPES[x.dtype]}_{name}")
    features, rows = x.shape
    parameters = [t.contiguous() for t in parameters]
    pointers = (ctypes.c_void_p * len(parameters))(*[t.data_ptr() for t in parameters])
    first, *rest = [ctypes.c_void_p(t.data_ptr()) for t in (x, *others)]
    arguments = (first, pointers, *rest, features, ctypes.c_int64(rows), *shape, *last)
    work = effort * shape[0] * x.numel()
    threads = max(1, min(torch.get_num_threads(), work // _WORTH_A_THREAD, -(-rows // _LANES)))
    if threads == 1:
        function(*arguments, ctypes.c_int64(0), ctypes.c_int64(rows))
        return
    share = -(-rows // threads // _LANES) * _LANES
    parts = [(start, min(start + share, rows)) for start in range(0, rows, share)]
    jobs = [_pool().submit(function, *arguments, ctypes.c_int64(a), ctypes.c_int64(b)) for a, b in parts]
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
