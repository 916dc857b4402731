"""The C++ kernels as a shared library."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch

from .. import cache
from . import compiler
from .compiler import CppError

SOURCE = Path(__file__).with_name("waves.cpp")
#: The C++ types of the dtypes that have kernels.
TYPES = {torch.float32: "float", torch.float64: "double"}
FUNCTIONS = [
    f"{kind}_{dtype}_{name}"
    for kind in ("shared", "row", "conditional")
    for dtype in TYPES.values()
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
