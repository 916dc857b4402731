"""Launching compiled kernels through NVIDIA's driver, with arguments declared in the CUDA sources alone."""

from __future__ import annotations

import ctypes
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from .compiler import CompilerError, compiled
from .shape import ANY_BLOCK, Block, CompiledShape

_FOLDER = Path(__file__).parent
#: Headers of all kernels for flows, and of all for PixelCNN.
_FLOWS = ("basics", "common", "products", "waves", "search", "groups")
_PIXELS = ("basics", "pixels/network", "pixels/float32", "pixels/tensor_cores", "pixels/inverse")
#: CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_LIMIT = 8

#: What a field of an arguments structure may point to. Addresses are int64; activations are float32 or packed TF32.
_DTYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "int": torch.int32,
    "unsigned": torch.int32,
    "unsigned char": torch.bool,
    "float* const": torch.int64,
    "Activation": torch.float32,
}
_SCALARS = {"int": ctypes.c_int, "unsigned": ctypes.c_uint, "float": ctypes.c_float}


class Arguments(ctypes.Structure):
    """A kernel's only parameter, made of the values that it declares; tensors are passed by address, None as null."""

    name: ClassVar[str]  # of the structure
    dtypes: ClassVar[dict[str, torch.dtype]]

    def __init__(self, values: dict[str, Any]) -> None:
        declared = {field[0]: values[field[0]] for field in self._fields_}
        self.tensors = {name: value for name, value in declared.items() if isinstance(value, Tensor)}  # kept alive
        for name, tensor in self.tensors.items():
            assert tensor.is_contiguous(), name  # kernels take bare memory
            assert tensor.dtype == self.dtypes[name], (name, tensor.dtype)
            declared[name] = tensor.data_ptr()
        super().__init__(**declared)


@lru_cache(maxsize=64)
def arguments_of(kernel: str) -> type[Arguments]:
    """The structure that a kernel takes, as its source declares it."""
    text = source(files()[kernel])
    name, number = _match(rf"\b{kernel}\(const (\w+)(?:<(\w+)>)? p\)", text).groups()
    body = _match(rf"struct {name} {{(.*?)\n}};", text)[1]
    fields: list[tuple[str, Any]] = []
    dtypes: dict[str, torch.dtype] = {}
    for declaration in re.sub(r"//[^\n]*", "", body).split(";")[:-1]:
        kind, pointer, names = _match(r"^\s*(?:const )?(.+?)(\*?) ([\w, ]+)$", declaration).groups()
        kind = number if kind == "Number" else kind
        fields += [(field, ctypes.c_void_p if pointer else _SCALARS[kind]) for field in names.split(", ")]
        if pointer:
            dtypes |= dict.fromkeys(names.split(", "), _DTYPES[kind])
    name = f"{name}<{number}>" if number else name
    return type(name, (Arguments,), {"name": name, "dtypes": dtypes, "_fields_": fields})


def _match(pattern: str, text: str) -> re.Match[str]:
    match = re.search(pattern, text, re.DOTALL)
    assert match is not None, pattern
    return match


class CudaLauncher:
    """Runs the kernels of one shape on one GPU, and compiles them at first use."""

    def __init__(self, shape: CompiledShape, device: torch.device) -> None:
        self._shape, self._device = shape, device
        self._functions: dict[tuple[str, Block], ctypes.c_void_p] = {}
        properties = torch.cuda.get_device_properties(device)
        self.processors = properties.multi_processor_count
        # Of a thread block, at most. The default is what every GPU with these tensor cores has.
        self.shared_bytes = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)

    def launch(
        self,
        name: str,
        grid: tuple[int, ...],
        threads: int,
        values: dict[str, Any],
        shared: int = 0,
        block: Block = ANY_BLOCK,
    ) -> None:
        """Run a kernel on the current stream; ``values`` has its arguments, and may have others."""
        arguments = arguments_of(name)(values)
        with torch.cuda.device(self._device):
            function = self._functions.get((name, block))
            if function is None:
                function = self._functions[name, block] = self._load(name, block, shared)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
            sizes = [*grid, 1, 1][:3]
            _check(_driver().cuLaunchKernel(function, *sizes, threads, 1, 1, shared, stream, pointers, None), name)

    def _load(self, name: str, block: Block, shared: int) -> ctypes.c_void_p:
        torch.zeros(1, device=self._device)  # creates the CUDA context
        module = _module(self._shape, block, files()[name], torch.cuda.current_device())
        function = ctypes.c_void_p()
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name)
        _check(_driver().cuFuncSetAttribute(function, _SHARED_LIMIT, shared), name)
        return function


@lru_cache(maxsize=256)
def _module(shape: CompiledShape, block: Block, file: str, device: int) -> ctypes.c_void_p:
    capability = torch.cuda.get_device_capability(device)
    code = compiled(source(file), shape.defines(block), f"sm_{capability[0]}{capability[1]}")
    module = ctypes.c_void_p()
    _check(_driver().cuModuleLoadData(ctypes.byref(module), code), "loading")
    return module


@lru_cache(maxsize=1)
def files() -> dict[str, str]:
    """The file that defines each kernel."""
    kernel = re.compile(r"__global__ [^;{]*?(\w+)\(const [\w<>]+ p\)")
    paths = sorted(_FOLDER.glob("**/*.cu"))
    return {name: path.relative_to(_FOLDER).as_posix() for path in paths for name in kernel.findall(path.read_text())}


@lru_cache(maxsize=16)
def source(file: str) -> str:
    """A file of kernels after its headers, as one text."""
    headers = [f"{name}.cuh" for name in (_PIXELS if file.startswith("pixels/") else _FLOWS)]
    return "\n".join((_FOLDER / name).read_text() for name in (*headers, file))


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
        message = (text.value or b"unknown error").decode()
        raise CompilerError(f"{what}: {message} (CUDA error {result})")
