"""All that the kernels can do for a PixelCNN: what it tells of a batch of images, the gradients, and the inverse.

Numbers of networks are float32. So are images, or float64 for the fine kernels: those have no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ....pixel_affine import MOST_OUTPUTS
from ..arguments import Arguments
from ..blocks import ANY_BLOCK, Launcher
from .arguments import (
    PixelBackwardArguments,
    PixelFineArguments,
    PixelFineInverseArguments,
    PixelForwardArguments,
    PixelInverseArguments,
    PixelPackArguments,
    PixelSumArguments,
)
from .layout import PixelLayout, pixel_layout
from .shape import TURNS, WARPS, PixelShape

_THREADS = 32 * WARPS
#: Threads of the kernels for parameters, and columns that a block adds up.
_FEW_THREADS, _COLUMNS = 256, 32

Purpose = Literal["score", "learn", "invert", "score float64", "invert float64"]


class PackedPixels(NamedTuple):
    """A network's numbers as the kernels want them: those that some purpose needs."""

    biases: Tensor
    columns: Tensor | None = None
    forward: Tensor | None = None
    backward: Tensor | None = None
    matrices: Tensor | None = None


class LearnResult(NamedTuple):
    """Outputs, and the activations for the backward pass."""

    outputs: Tensor
    activations: Tensor


class PixelGradients(NamedTuple):
    """Of x (D, B); of all parameters, one after the other; and of what a context adds to maps, (B, ...)."""

    x: Tensor
    parameters: Tensor
    added: Tensor | None


class _Gather(NamedTuple):
    """Which of all numbers go where, for one purpose."""

    names: tuple[str, ...]
    sizes: list[int]
    where: Tensor

    @classmethod
    def of(cls, layout: PixelLayout, names: tuple[str, ...], device: torch.device) -> _Gather:
        parts = [getattr(layout, name) for name in names]
        return cls(names, [len(part) for part in parts], torch.cat(parts).to(device, torch.int32))


class PixelProgram:
    """The kernels of networks of one shape, and the tables that they work with."""

    def __init__(self, shape: PixelShape, masks: Sequence[Tensor], device: torch.device, launcher: Launcher) -> None:
        self.shape, self._launcher, self.device = shape, launcher, device
        self.passes_float64: bool | None = None  # the self-test for float64 images, once it has run
        layout = pixel_layout(shape, masks)
        learning = ("forward" if shape.tf32 else "columns", "backward", "biases")
        wanted = {
            "score": ("columns", "biases"),
            "learn": learning,
            "invert": ("columns", "matrices", "biases"),
            "score float64": ("forward", "biases"),
            "invert float64": ("forward", "matrices", "biases"),
        }
        self._gathers = {purpose: _Gather.of(layout, names, device) for purpose, names in wanted.items()}
        self._parts, self._parameters = layout.parts.to(device, torch.int32), layout.parameters
        first = len(layout.parts) - len(layout.biases)  # the sums of the biases are also those of what is added to them
        of_look = [first + shape.wide + i * (2 * shape.narrow + shape.wide) + shape.narrow for i in range(shape.blocks)]
        added = [torch.arange(shape.wide) + first, *(torch.arange(shape.narrow) + start for start in of_look)]
        self._added = torch.cat(added).to(device)

    def fits(self) -> bool:
        """Whether an image has room in a block's shared memory, and its outputs are known ones."""
        return (
            self.shape.outputs <= MOST_OUTPUTS
            and max(self.shape.forward_shared, self.shape.backward_shared) <= self._launcher.shared_bytes
        )

    def inverts(self) -> bool:
        """Whether it has room for the inverse, too, which keeps maps of all bottlenecks."""
        return self.shape.inverse_shared <= self._launcher.shared_bytes

    def fits_float64(self) -> bool:
        """Whether there is room for the fine kernels."""
        return max(self.shape.fine_shared, self.shape.fine_inverse_shared) <= self._launcher.shared_bytes

    def pack(self, parameters: Sequence[Tensor], purpose: Purpose) -> PackedPixels:
        """What a purpose needs, from all weights and then all biases, in the order of the layers."""
        gather = self._gathers[purpose]
        flat = torch.cat([p.flatten() for p in parameters])
        numbers = flat.new_empty(len(gather.where))
        # Rounded, where tensor cores would only cut them off.
        rough = sum(gather.sizes[:2]) if purpose == "learn" and self.shape.tf32 else 0
        arguments = PixelPackArguments(
            parameters=flat, source=gather.where, packed=numbers, count=len(numbers), rough=rough
        )
        self._launcher.launch("pixel_pack", ANY_BLOCK, (-(-len(numbers) // _FEW_THREADS),), _FEW_THREADS, 0, arguments)
        return PackedPixels(**dict(zip(gather.names, numbers.split(gather.sizes), strict=True)))

    def forward(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> Tensor:
        """What is told of images of shape (D, B); ``added`` (B, ...) is what the context adds to maps."""
        return self._tell("forward", packed, x, added, reverse)

    def learn(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> LearnResult:
        """The same, and all that the gradients need."""
        kept = x.new_empty((x.shape[-1], *self.shape.kept))
        return LearnResult(self._tell("learn", packed, x, added, reverse, kept=kept), kept)

    def check(self, packed: PackedPixels, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is told, and the largest unit of every image on the way, (B,)."""
        largest = packed.biases.new_empty((x.shape[-1], WARPS))
        return self._tell("check", packed, x, added, largest=largest), largest.amax(1)

    def _tell(
        self,
        name: Literal["forward", "learn", "check"],
        packed: PackedPixels,
        x: Tensor,
        added: Tensor | None,
        reverse: bool = False,
        kept: Tensor | None = None,
        largest: Tensor | None = None,
    ) -> Tensor:
        fine = x.dtype == torch.float64
        by_tensor_cores = fine or (name == "learn" and self.shape.tf32)
        weights = packed.forward if by_tensor_cores else packed.columns
        assert weights is not None
        batch = x.shape[-1]
        told = x.new_empty((self.shape.outputs * len(x), batch))
        arguments = (PixelFineArguments if fine else PixelForwardArguments)(
            x=x, weights=weights, biases=packed.biases, added=added, told=told, kept=kept, largest=largest, batch=batch,
            reverse=reverse,
        )  # fmt: skip
        shared = self.shape.fine_shared if fine else self.shape.forward_shared
        self._run(f"pixel_fine_{name}" if fine else f"pixel_{name}", batch, shared, arguments)
        return told

    def backward(
        self, weights: Tensor, x: Tensor, kept: Tensor, reverse: bool, grad: Tensor, conditional: bool
    ) -> PixelGradients:
        """The chain rule through :meth:`learn`."""
        batch = x.shape[-1]
        grad_x, parts = torch.empty_like(x), x.new_empty((batch, TURNS, len(self._parts)))
        arguments = PixelBackwardArguments(
            grad=grad, x=x, kept=kept, weights=weights, grad_x=grad_x, parts=parts, batch=batch,
            reverse=reverse,
        )  # fmt: skip
        self._run("pixel_backward", batch, self.shape.backward_shared, arguments)
        added = parts.index_select(2, self._added).sum(1) if conditional else None
        return PixelGradients(grad_x, self._added_up(parts), added)

    def _added_up(self, parts: Tensor) -> Tensor:
        """The gradient of all parameters."""
        gradient, columns = parts.new_zeros(self._parameters), parts.shape[-1]
        arguments = PixelSumArguments(
            parts=parts, to=self._parts, gradient=gradient, rows=parts.numel() // columns, columns=columns
        )
        blocks, shared = -(-columns // _COLUMNS), 4 * _FEW_THREADS
        self._launcher.launch("pixel_sum", ANY_BLOCK, (blocks,), _FEW_THREADS, shared, arguments)
        return gradient

    def inverse(self, packed: PackedPixels, z: Tensor, added: Tensor | None) -> Tensor:
        """x, given z, both of shape (D, B)."""
        assert packed.matrices is not None
        batch = z.shape[-1]
        x = torch.empty_like(z)
        fine = z.dtype == torch.float64
        arguments = (PixelFineInverseArguments if fine else PixelInverseArguments)(
            z=z, matrices=packed.matrices, biases=packed.biases, added=added, x=x, batch=batch
        )
        shared = self.shape.fine_inverse_shared if fine else self.shape.inverse_shared
        self._run("pixel_fine_inverse" if fine else "pixel_inverse", batch, shared, arguments)
        return x

    def _run(self, name: str, batch: int, shared: int, arguments: Arguments) -> None:
        if batch:
            self._launcher.launch(name, ANY_BLOCK, (batch,), _THREADS, shared, arguments)
