"""Context managers that select a backend of the inverse, for those that run without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from unittest.mock import patch

import torch

from sinuflow import SinusoidalFlow
from sinuflow.conditioners import pixelcnn
from sinuflow.conditioners.pixelcnn import PixelCNN
from sinuflow.ops import conditional_waves, pixelcnn_fused, scale_stack, select
from sinuflow.ops.backends.cuda.pixels.program import PixelProgram
from sinuflow.ops.backends.cuda.program import Program
from sinuflow.ops.flow_program import FlowProgram, layout
from tests.ops.emulator import EmulatorLauncher


@contextmanager
def native(flow: SinusoidalFlow) -> Iterator[None]:
    """The C++ kernels, wherever they apply."""
    yield


@contextmanager
def reference(flow: SinusoidalFlow) -> Iterator[None]:
    """The PyTorch reference implementation."""
    with patch.object(select, "cpp_backend", lambda: select.Backend(False, "selected by the test")):
        yield


@contextmanager
def triton(flow: SinusoidalFlow) -> Iterator[None]:
    """The Triton kernels, in Triton's interpreter."""
    package = import_module("sinuflow.ops.backends.triton")
    for module in ("scale_stack", "conditional_waves"):
        import_module(f"sinuflow.ops.backends.triton.{module}")
    with ExitStack() as stack:
        for module in (scale_stack, conditional_waves):
            stack.enter_context(patch.object(module, "wave_kernels", lambda *_, **__: package))
        yield


@contextmanager
def cuda(flow: SinusoidalFlow) -> Iterator[None]:
    """The CUDA kernels of whole flows or of image networks, in an emulator."""
    if "image" in flow.config:
        network = next(m for m in flow.modules() if isinstance(m, PixelCNN))
        shape = network.network().shape()
        program = PixelProgram(shape, network.network().masks, torch.device("cpu"), EmulatorLauncher(shape))
        with (
            patch.object(pixelcnn_fused, "forward_kernels", lambda *_: program),
            patch.object(pixelcnn, "inverse_kernels", lambda *_: program),
        ):
            yield
        return
    found = layout(flow.bijection.spec(), flow.bijection.named_parameters())
    assert found is not None
    kernels = Program(found, torch.device("cpu"), EmulatorLauncher(found.shape))
    whole = FlowProgram(flow.bijection, kernels)
    with patch.object(flow.bijection, "_program", lambda _: whole):
        yield
