"""Loading compiled kernels and starting them, through NVIDIA's driver."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import torch

from .arguments import Arguments
from .compiler import CompilerError, compiled
from .shape import Block

#: Which file has which kernel; every one is compiled with what all share.
FILES = {
    "flow_forward": "forward.cu",
    "flow_backward": "backward.cu",
    "flow_inverse": "inverse.cu",
    "weight_gradients": "parameters.cu",
    "wave_gradients": "parameters.cu",
    "prepare": "parameters.cu",
    "pixel_forward": "pixels/forward.cu",
    "pixel_check": "pixels/forward.cu",
    "pixel_learn": "pixels/learn.cu",
    "pixel_backward": "pixels/backward.cu",
    "pixel_inverse": "pixels/inverse.cu",
    "pixel_fine_forward": "pixels/fine.cu",
    "pixel_fine_check": "pixels/fine.cu",
    "pixel_fine_inverse": "pixels/fine_inverse.cu",
    "pixel_pack": "pixels/parameters.cu",
    "pixel_sum": "pixels/parameters.cu",
}
_COMMON = ("basics.cuh", "common.cuh", "products.cuh", "waves.cuh")
#: What only some of them need besides.
_PARTS = {
    "inverse.cu": ("search.cuh", "groups.cuh"),
    "pixels/forward.cu": ("pixels/exact.cuh",),
    "pixels/learn.cu": ("pixels/exact.cuh", "pixels/walk.cuh"),
    "pixels/fine.cu": ("pixels/walk.cuh",),
    "pixels/inverse.cu": ("pixels/inverse.cuh",),
    "pixels/fine_inverse.cu": ("pixels/inverse.cuh",),
}
#: What those of images need instead.
_PIXELS = ("basics.cuh", "pixels/network.cuh")
#: The driver's number for "most bytes of dynamic shared memory".
_SHARED_LIMIT = 8


class Shape(Protocol):
    """What is compiled into kernels."""

    def defines(self, block: Block) -> dict[str, str]:
        """As the preprocessor takes it."""

    def __hash__(self) -> int: ...


class CudaLauncher:
    """Starts the kernels of one flow, or network, on one GPU; compiles them when they are first wanted."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._shape, self._device = shape, device
        self._functions: dict[tuple[str, Block], ctypes.c_void_p] = {}
        properties = torch.cuda.get_device_properties(device)
        self.processors = properties.multi_processor_count
        # What every kind that these kernels run on has, if PyTorch does not say.
        self.shared_bytes = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)

    def launch(
        self, name: str, block: Block, grid: tuple[int, ...], threads: int, shared: int, arguments: Arguments
    ) -> None:
        """Start a kernel on the current stream."""
        with torch.cuda.device(self._device):
            function = self._functions.get((name, block))
            if function is None:
                function = self._load(name, block, shared)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
            sizes = [*grid, 1, 1][:3]
            _check(_driver().cuLaunchKernel(function, *sizes, threads, 1, 1, shared, stream, pointers, None), name)

    def _load(self, name: str, block: Block, shared: int) -> ctypes.c_void_p:
        torch.zeros(1, device=self._device)  # now there is a context
        module = _module(self._shape, block, FILES[name], torch.cuda.current_device())
        function = ctypes.c_void_p()
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name)
        _check(_driver().cuFuncSetAttribute(function, _SHARED_LIMIT, shared), name)
        self._functions[name, block] = function
        return function


@lru_cache(maxsize=256)
def _module(shape: Shape, block: Block, file: str, device: int) -> ctypes.c_void_p:
    capability = torch.cuda.get_device_capability(device)
    code = compiled(source(file), shape.defines(block), f"sm_{capability[0]}{capability[1]}")
    module = ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), code), "loading")
    return module


@lru_cache(maxsize=16)
def source(file: str) -> str:
    """A file of kernels with all that it needs, as one text."""
    folder = Path(__file__).parent
    needed = _PIXELS if file.startswith("pixels/") else _COMMON
    return "\n".join((folder / name).read_text() for name in (*needed, *_PARTS.get(file, ()), file))


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CompilerError("libcuda.so.1, NVIDIA's driver, was not found") from error


def _check(result: int, what: str) -> None:
    if result:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(text))
        said = (text.value or b"unknown error").decode()
        raise CompilerError(f"{what}: {said} (CUDA error {result})")
