"""Running the CUDA kernels on a CPU."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from sinuflow.ops.backends.cuda.driver import arguments_of, files, source
from sinuflow.ops.backends.cuda.shape import ANY_BLOCK, Block, CompiledShape

#: Little optimization: most kernels run for less time than it takes to compile them. Jumps between stacks are meant.
OPTIONS = ["-Og", "-std=c++17", "-U_FORTIFY_SOURCE", "-fPIC", "-w"]


class EmulatorLauncher:
    """Runs the kernels of a flow by ``emulator.h``; few ``processors`` make for blocks of many rows."""

    def __init__(self, shape: CompiledShape, processors: int = 132) -> None:
        self._shape, self.processors = shape, processors
        self.shared_bytes = 227 * 1024

    def launch(
        self,
        name: str,
        grid: tuple[int, ...],
        threads: int,
        values: dict[str, Any],
        shared: int = 0,
        block: Block = ANY_BLOCK,
    ) -> None:
        arguments = arguments_of(name)(values)
        library = _library(self._shape, block, files()[name])
        sizes = [*grid, 1, 1][:3]
        getattr(library, f"emulate_{name}")(ctypes.byref(arguments), *sizes, threads, ctypes.c_long(shared))


@lru_cache(maxsize=64)
def _library(shape: CompiledShape, block: Block, file: str) -> ctypes.CDLL:
    defines = "\n".join(f"#define {name} {value}" for name, value in shape.defines(block).items())
    wrappers = "\n".join(_wrapper(name) for name, where in files().items() if where == file)
    text = f"{defines}\n{source(file)}\n{wrappers}\n"
    header = _header()
    library = header.parent / f"{_digest(text)}.so"
    _make(library, text, ["-shared", "-include", str(header)])
    return ctypes.CDLL(str(library))


@lru_cache(maxsize=1)
def _header() -> Path:
    """A copy of the emulator with its precompiled form beside it; compiling it takes half of the time of a kernel."""
    text = Path(__file__).with_name("emulator.h").read_text()
    folder = Path(tempfile.gettempdir()) / "sinuflow-emulator" / _digest(text)
    folder.mkdir(parents=True, exist_ok=True)
    header = folder / "emulator.h"
    if not header.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            (Path(place) / header.name).write_text(text)
            (Path(place) / header.name).replace(header)
    _make(folder / "emulator.h.gch", text, ["-x", "c++-header"])
    return header


def _make(output: Path, text: str, options: list[str]) -> None:
    """Compile, unless that has been done: workers of one session, and later ones, share what there is."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("the emulator of CUDA needs g++")
    if output.exists():
        return
    with tempfile.TemporaryDirectory(dir=output.parent) as place:
        (Path(place) / "kernels.cpp").write_text(text)
        made = Path(place) / output.name
        command = [compiler, *OPTIONS, *options, "-o", str(made), f"{place}/kernels.cpp"]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(output)


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join([*OPTIONS, text]).encode()).hexdigest()[:20]


def _wrapper(name: str) -> str:
    arguments = arguments_of(name).name
    return (
        f'extern "C" void emulate_{name}(const void* a, int x, int y, int z, int threads, long shared) {{\n'
        f"    emulator::launch([](const void* p) {{ {name}(*static_cast<const {arguments}*>(p)); }},\n"
        f"                     a, {{x, y, z}}, threads, shared);\n}}"
    )
