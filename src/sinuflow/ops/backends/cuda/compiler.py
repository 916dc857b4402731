"""Compilation of CUDA C++ by NVRTC, which comes with PyTorch's GPU builds; binaries are cached for later processes."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import os
import site
import sys
from functools import lru_cache
from pathlib import Path

import torch

from .. import cache


class CompilerError(RuntimeError):
    """No compiler was found, or compilation failed."""


def compiled(source: str, defines: dict[str, str], architecture: str) -> bytes:
    """The machine code of a source, from the cache if possible."""
    options = [f"--gpu-architecture={architecture}", "--std=c++17", *(f"-D{k}={v}" for k, v in defines.items())]
    library = find_compiler()
    key = "\n".join([source, *options, _version(library)])
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    return cache.kernels(name, lambda: _compile(library, source, options), lambda code: code)


def _compile(library: ctypes.CDLL, source: str, options: list[str]) -> bytes:
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"sinuflow.cu", 0, None, None)
    if created:
        raise CompilerError(f"the run-time compiler of CUDA cannot start (error {created})")
    try:
        encoded = [option.encode() for option in options]
        failed = library.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        if failed:
            log = _text(library, program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
            raise CompilerError(log.decode(errors="replace").strip() or f"error {failed}")
        return _text(library, program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, size_of: str, get: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, size_of)(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, get)(program, text)
    return text.raw


def _version(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


@lru_cache(maxsize=1)
def find_compiler() -> ctypes.CDLL:
    """The compiler, as a library; or a :class:`CompilerError` that says why there is none."""
    if sys.platform != "linux" or torch.version.cuda is None:
        raise CompilerError("the CUDA kernels need Linux and a PyTorch that was built for CUDA")
    name = f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    paths = [name, *(f"{home}/lib64/{name}" for home in homes if home)]
    for packages in [*site.getsitepackages(), str(Path(torch.__file__).parents[1])]:
        paths += glob.glob(f"{packages}/nvidia/*/lib/{name}")
    for path in paths:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path)
    raise CompilerError(f"{name}, the run-time compiler of CUDA, was not found")
