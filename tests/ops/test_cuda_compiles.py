"""NVRTC compiles every CUDA kernel, which needs no GPU."""

from __future__ import annotations

import ctypes
import glob
import site

import pytest

from sinuflow import SinusoidalFlow
from sinuflow.ops.backends.cuda.compiler import CompilerError, _compile
from sinuflow.ops.backends.cuda.driver import files, source
from sinuflow.ops.backends.cuda.pixels.shape import PixelShape
from sinuflow.ops.backends.cuda.shape import ANY_BLOCK, CompiledShape
from sinuflow.ops.flow_program import layout

IMAGES = {
    "images with TF32": PixelShape(channels=3, height=32, width=32, maps=16, blocks=2, tf32=True),
    "images in float32, with log-scales": PixelShape(channels=1, height=28, width=28, maps=12, blocks=2, outputs=2),
}
FLOWS = {
    "shifts": {"features": 6, "hidden": (64, 64), "waves": 4},
    "waves, context": {"features": 6, "hidden": (64, 64), "conditioning": "full", "context": 2},
}


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    # PyTorch's GPU builds bring it along; the extra `dev` installs it beside a CPU build.
    folders = [f for packages in site.getsitepackages() for f in glob.glob(f"{packages}/nvidia/*/lib")]
    found = [glob.glob(f"{folder}/{name}.so.*") for folder in folders for name in ("libnvrtc-builtins", "libnvrtc")]
    loaded = [ctypes.CDLL(path) for paths in found for path in paths]  # the compiler opens the first one by its name
    if not loaded:
        pytest.skip("NVRTC is not installed")
    return loaded[-1]


@pytest.mark.parametrize("name", [*IMAGES, *FLOWS])
def test_all_kernels_compile(name: str, nvrtc: ctypes.CDLL):
    shape: CompiledShape = IMAGES[name] if name in IMAGES else flow_shape(name)
    kernels = {file for file in files().values() if file.startswith("pixels/") == (name in IMAGES)}
    for file in sorted(kernels):
        assert compile_for("sm_90", file, shape, nvrtc)


def test_an_error_is_reported(nvrtc: ctypes.CDLL):
    with pytest.raises(CompilerError, match="error"):
        _compile(nvrtc, "__global__ void kernel() { undeclared(); }", ["--gpu-architecture=sm_90"])


def flow_shape(name: str) -> CompiledShape:
    flow = SinusoidalFlow(**FLOWS[name])  # type: ignore[arg-type]
    found = layout(flow.bijection.spec(), flow.bijection.named_parameters())
    assert found is not None
    return found.shape


def compile_for(architecture: str, file: str, shape: CompiledShape, library: ctypes.CDLL) -> bytes:
    defines = [f"-D{name}={value}" for name, value in shape.defines(ANY_BLOCK).items()]
    return _compile(library, source(file), [f"--gpu-architecture={architecture}", "--std=c++17", *defines])
