"""Compiling the C++ source, and calling what comes of it."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cache import cache_folder, demand_private, keep

#: As in waves.cpp.
LANES, MOST_WAVES = 64, 64
#: Numbers, features times rows, below which more threads are not worth waking.
_WORTH_A_THREAD = 16_384

_OPTIONS = ["-O3", "-std=c++17", "-shared", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
#: What compilers differ in; the first that works is taken.
_TUNINGS = [
    ["-march=native", "-mprefer-vector-width=512", "-fopenmp-simd"],
    ["-march=native", "-fopenmp-simd"],
    ["-mcpu=native", "-fopenmp-simd"],
    [],
]
#: Seconds that a compiler may take.
_PATIENCE = 120


class NativeError(RuntimeError):
    """There is no compiler, or it refuses, or there is nowhere to keep what it makes."""


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The compiled kernels; or a :class:`NativeError` that says why there are none."""
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), "c++", "g++", "clang++"])), None)
    if compiler is None or not _has_developer_tools():
        raise NativeError("no C++ compiler was found")
    source = Path(__file__).with_name("waves.cpp")
    try:
        told = [source.read_text(), compiler, _version(compiler), _processor(), str(_OPTIONS), str(_TUNINGS)]
        path = cache_folder() / f"waves-{hashlib.sha256(chr(10).join(told).encode()).hexdigest()[:24]}.so"
        if path.exists():
            with contextlib.suppress(OSError):  # a file that cannot be loaded is made again
                return _loaded(path)
        keep(path, _compiled(compiler, source))
        return _loaded(path)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise NativeError(f"compiled kernels cannot be made or kept: {said}") from error


def _loaded(path: Path) -> ctypes.CDLL:
    demand_private(path.parent)
    demand_private(path)
    return ctypes.CDLL(str(path))


def _has_developer_tools() -> bool:
    """On a Mac without them, calling the compiler would open a window."""
    if platform.system() != "Darwin":
        return True
    return subprocess.run(["xcode-select", "-p"], capture_output=True, check=False).returncode == 0


def _compiled(compiler: str, source: Path) -> bytes:
    said = ""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "waves.so"
        for tuning in _TUNINGS:
            command = [compiler, *_OPTIONS, *tuning, "-o", str(made), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE)
            if done.returncode == 0:
                return made.read_bytes()
            said = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
    raise NativeError(f"{compiler} cannot compile the kernels: {said[:120]}")


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=_PATIENCE)
    return done.stdout


def _processor() -> str:
    """What tells one kind of processor from another: a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def call(name: str, work: int, rows: int, *arguments: Any) -> None:
    """Call a kernel on all rows, on as many threads as PyTorch would use for so much ``work``."""
    function: Callable[..., None] = getattr(library(), name)
    given = [_argument(argument) for argument in arguments]
    threads = max(1, min(torch.get_num_threads(), work // _WORTH_A_THREAD, -(-rows // LANES)))
    if threads == 1:
        function(*given, ctypes.c_int64(0), ctypes.c_int64(rows))
        return
    share = -(-rows // threads // LANES) * LANES
    parts = [(start, min(start + share, rows)) for start in range(0, rows, share)]
    jobs = [_pool().submit(function, *given, ctypes.c_int64(a), ctypes.c_int64(b)) for a, b in parts]
    try:
        for job in jobs:
            job.result()
    finally:
        wait(jobs)  # an interrupt must not free the memory that they write to


def _argument(argument: Any) -> Any:
    if argument is None:
        return ctypes.c_void_p(None)
    return ctypes.c_void_p(argument.data_ptr()) if isinstance(argument, Tensor) else argument


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="sinuflow")


if hasattr(os, "register_at_fork"):  # a child process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
