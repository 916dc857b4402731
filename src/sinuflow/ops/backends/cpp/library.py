"""The C++ kernels as a shared library, and calls of its functions."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable
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
LANES = 64
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
        key = [SOURCE.read_text("utf-8"), program, compiler.version(program), platform.machine(), str(processor)]
        key += [str(compiler.OPTIONS), str(tunings)]
        name = f"waves-{hashlib.sha256(os.fsencode(chr(10).join(key))).hexdigest()[:24]}.so"
        with suppress(OSError):  # the cache is not private, or its library cannot be loaded: compile
            stored = cache.read(name)
            if stored is not None:
                return load(stored)
        with cache.temporary_folder() as folder:
            compiled = compiler.compile_library(program, SOURCE, tunings, folder)
        loaded = load(compiled)
    except OSError as error:
        raise CppError(f"kernels cannot be compiled or loaded: {cache.one_line(error)}") from error
    cache.keep(name, compiled)
    return loaded


def load(content: bytes) -> ctypes.CDLL:
    """Load a library from verified bytes. May raise OSError."""
    loaded = None
    if hasattr(os, "memfd_create"):
        with suppress(OSError):  # some systems forbid it
            loaded = _load_from_memory(content)
    loaded = loaded or _load_from_copy(content)
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


def _load_from_copy(content: bytes) -> ctypes.CDLL:
    """Through a temporary file, which is deleted after loading."""
    with cache.temporary_folder() as folder:
        path = folder / "waves.so"
        path.write_bytes(content)
        return ctypes.CDLL(str(path))


def call(
    name: str, effort: int, x: Tensor, scales: int, waves: int, *tensors: Tensor, last: tuple[int, ...] = ()
) -> None:
    """Call a kernel on all rows of ``x``, on as many threads as PyTorch would use for so much work.

    ``effort`` is the work per transformer and element, in multiples of that of the forward map; 0 means one thread.
    """
    function: Callable[..., None] = getattr(library(), name.replace("_", f"_{_TYPES[x.dtype]}_"))
    features, rows = x.shape
    contiguous = [t.contiguous() for t in tensors]  # outputs are already
    arguments = [ctypes.c_void_p(t.data_ptr()) for t in contiguous]
    arguments += [features, ctypes.c_int64(rows), scales, waves, *last]  # type: ignore[list-item]
    work = effort * scales * x.numel()
    threads = max(1, min(torch.get_num_threads(), work // _WORTH_A_THREAD, -(-rows // LANES)))
    if threads == 1:
        function(*arguments, ctypes.c_int64(0), ctypes.c_int64(rows))
        return
    share = -(-rows // threads // LANES) * LANES
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
