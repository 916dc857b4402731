"""The CUDA program of PixelCNNs of one shape: outputs, gradients and inverse.

Parameters are float32. Images are feature-major (D, B) and float32, or float64, for which there are no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ....pixel_affine import MOST_OUTPUTS
from ..driver import CudaLauncher
from .layout import pixel_layout
from .shape import TURNS, WARPS, PixelShape

_THREADS = 32 * WARPS
#: Threads of the kernels for parameters, and columns that a thread block adds up.
_PARAMETER_THREADS, _COLUMNS = 256, 32

Purpose = Literal["score", "learn", "invert", "score float64", "invert float64"]


class PackedPixels(NamedTuple):
    """The parameters in the layouts that some purpose needs."""

    biases: Tensor
    columns: Tensor | None = None
    forward: Tensor | None = None
    backward: Tensor | None = None
    matrices: Tensor | None = None


class PixelGradients(NamedTuple):
    """Of x (D, B); of all parameters, one after the other; and of what a context adds to feature maps, (B, ...)."""

    x: Tensor
    parameters: Tensor
    added: Tensor | None


class PixelProgram:
    """The kernels of networks of one shape, and their index tables."""

    def __init__(
        self, shape: PixelShape, masks: Sequence[Tensor], device: torch.device, launcher: CudaLauncher
    ) -> None:
        self.shape, self._launcher, self.device = shape, launcher, device
        self.passes_float64: bool | None = None  # the self-test for float64 images, once it has run
        layout = pixel_layout(shape, masks)
        weights: dict[Purpose, tuple[str, ...]] = {
            "score": ("columns",),
            "learn": ("forward" if shape.tf32 else "columns", "backward"),
            "invert": ("columns", "matrices"),
            "score float64": ("forward",),
            "invert float64": ("forward", "matrices"),
        }
        parts = {purpose: {n: layout[n] for n in (*names, "biases")} for purpose, names in weights.items()}
        self._sizes = {purpose: {name: len(part) for name, part in each.items()} for purpose, each in parts.items()}
        self._indices = {purpose: torch.cat([*p.values()]).to(device, torch.int32) for purpose, p in parts.items()}
        # An image contributes to the gradients of matrices, and of biases: also those of what a context adds.
        self._parts = torch.cat([layout["matrices"], layout["biases"]]).to(device, torch.int32)
        self._parameters, first = sum(m.numel() + len(m) for m in masks), len(layout["matrices"])
        looks = [first + shape.wide + i * (2 * shape.narrow + shape.wide) + shape.narrow for i in range(shape.blocks)]
        added = [torch.arange(shape.wide) + first, *(torch.arange(shape.narrow) + start for start in looks)]
        self._added = torch.cat(added).to(device)

    def fits(self) -> bool:
        """Whether an image fits in the shared memory of a thread block, and the outputs are supported."""
        shared = max(self.shape.forward_shared, self.shape.backward_shared)
        return self.shape.outputs <= MOST_OUTPUTS and shared <= self._launcher.shared_bytes

    def inverts(self) -> bool:
        """Whether the inverse fits, which also holds the feature maps of all residual blocks."""
        return self.shape.inverse_shared <= self._launcher.shared_bytes

    def fits_float64(self) -> bool:
        """Whether the kernels for float64 images fit."""
        return max(self.shape.float64_shared, self.shape.float64_inverse_shared) <= self._launcher.shared_bytes

    def pack(self, parameters: Sequence[Tensor], purpose: Purpose) -> PackedPixels:
        """All weights and then all biases, in the order of the layers, in the layouts that a purpose needs."""
        index, sizes = self._indices[purpose], self._sizes[purpose]
        flat = torch.cat([p.flatten() for p in parameters])
        packed = flat.new_empty(len(index))
        rounded = len(index) - sizes["biases"] if purpose == "learn" and self.shape.tf32 else 0
        values = {"parameters": flat, "source": index, "packed": packed, "count": len(index), "tf32": rounded}
        self._launcher.launch("pixel_pack", (-(-len(index) // _PARAMETER_THREADS),), _PARAMETER_THREADS, values)
        return PackedPixels(**dict(zip(sizes, packed.split([*sizes.values()]), strict=True)))

    def forward(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> Tensor:
        """The outputs for images (D, B); ``added`` (B, ...) is what the context adds to feature maps."""
        return self._outputs("forward", packed, x, added, reverse)

    def learn(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
        """The outputs, and the activations for the backward pass."""
        saved = x.new_empty((x.shape[-1], *self.shape.saved))
        return self._outputs("learn", packed, x, added, reverse, saved=saved), saved

    def check(self, packed: PackedPixels, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs, and the largest hidden unit of every image, (B,)."""
        largest = packed.biases.new_empty((x.shape[-1], WARPS))
        return self._outputs("check", packed, x, added, False, largest=largest), largest.amax(1)

    def _outputs(
        self, name: str, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool, **others: Tensor
    ) -> Tensor:
        float64, outputs = x.dtype == torch.float64, x.new_empty((self.shape.outputs * len(x), x.shape[-1]))
        weights = packed.columns if packed.forward is None else packed.forward  # tensor cores take these
        values = {"x": x, "weights": weights, "biases": packed.biases, "added": added, "reverse": reverse}
        shared = self.shape.float64_shared if float64 else self.shape.forward_shared
        values |= {"outputs": outputs, "saved": None, "largest": None, **others}
        self._run(f"pixel_float64_{name}" if float64 else f"pixel_{name}", x.shape[-1], shared, values)
        return outputs

    def backward(
        self, weights: Tensor, x: Tensor, activations: Tensor, reverse: bool, grad: Tensor, conditional: bool
    ) -> PixelGradients:
        """The chain rule through :meth:`learn`."""
        batch, columns = x.shape[-1], len(self._parts)
        grad_x, parts = torch.empty_like(x), x.new_empty((batch, TURNS, columns))
        values = {"grad": grad, "x": x, "saved": activations, "weights": weights, "reverse": reverse}
        values |= {"grad_x": grad_x, "parts": parts}
        self._run("pixel_backward", batch, self.shape.backward_shared, values)
        gradient, blocks = parts.new_zeros(self._parameters), -(-columns // _COLUMNS)
        values = {"parts": parts, "to": self._parts, "gradient": gradient, "rows": batch * TURNS, "columns": columns}
        self._launcher.launch("pixel_sum", (blocks,), _PARAMETER_THREADS, values, 4 * _PARAMETER_THREADS)
        return PixelGradients(grad_x, gradient, parts.index_select(2, self._added).sum(1) if conditional else None)

    def inverse(self, packed: PackedPixels, z: Tensor, added: Tensor | None) -> Tensor:
        """x, given z, both of shape (D, B)."""
        x, float64 = torch.empty_like(z), z.dtype == torch.float64
        values = {"z": z, "matrices": packed.matrices, "biases": packed.biases, "added": added, "x": x}
        shared = self.shape.float64_inverse_shared if float64 else self.shape.inverse_shared
        self._run("pixel_float64_inverse" if float64 else "pixel_inverse", z.shape[-1], shared, values)
        return x

    def _run(self, name: str, batch: int, shared: int, values: dict[str, Any]) -> None:
        if batch:
            self._launcher.launch(name, (batch,), _THREADS, {"batch": batch, **values}, shared)
