"""What Triton's kernels do for a PixelCNN that learns, and is too wide for the CUDA kernels: its shift, and gradients.

Maps are in half precision, with as many digits as the tensor cores' rough single numbers have, and half the bytes:
to move them takes most of the time. Sums are in single precision. Gradients are scaled so that the largest one of an
output is in the middle of what half precision can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ..cuda.pixels.layout import NONE, matrices_of
from ..cuda.pixels.program import Learnt, PackedPixels, PixelGradients
from ..cuda.pixels.shape import FAR_PLACES, NEAR_PLACES
from . import wide_gradients, wide_layers
from .tiles import on_its_device

#: Images to a tile, at least and at most; and programs that share a matrix' gradient.
_FEW, _MANY, _SPLITS = 16, 64, 66
#: The largest gradient of an output.
_LARGEST = 64.0
#: Maps of a bottleneck for which a tile has room.
MOST_MAPS = 64


@dataclass(frozen=True)
class WideShape:
    """A PixelCNN, but for its numbers; maps fill powers of two."""

    channels: int
    height: int
    width: int
    maps: int  # of a bottleneck
    blocks: int

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def narrow(self) -> int:
        """Maps inside a bottleneck."""
        return max(16, triton.next_power_of_2(self.maps))

    @property
    def wide(self) -> int:
        """Maps outside of it."""
        return max(16, triton.next_power_of_2(2 * self.maps))

    @property
    def head(self) -> int:
        """Rows of the last layer."""
        return max(16, triton.next_power_of_2(self.channels))

    @property
    def columns(self) -> int:
        """Of the first convolution: [place][channel]."""
        return max(16, triton.next_power_of_2(FAR_PLACES * self.channels))

    @property
    def added(self) -> int:
        """Numbers that a context adds to the maps of an image."""
        return self.wide + self.blocks * self.narrow

    @property
    def heights(self) -> list[int]:
        """Rows of every matrix."""
        return [self.wide, *self.blocks * [self.narrow, self.narrow, self.wide], self.head]

    @property
    def widths(self) -> list[int]:
        """Columns of every matrix."""
        return [self.columns, *self.blocks * [self.wide, NEAR_PLACES * self.narrow, self.narrow], self.wide]


class WideProgram:
    """The kernels of networks of one shape, and the tables that they work with."""

    def __init__(self, shape: WideShape, masks: Sequence[Tensor], device: torch.device) -> None:
        self.shape, self.device = shape, device
        matrices, biases, self._parameters = matrices_of(shape, masks)
        where = torch.cat([m.flatten() for m in (*matrices, *biases)])
        self._weights = sum(m.numel() for m in matrices)
        self._where = where.clamp(min=0).to(device)
        self._nothing = (where == NONE).to(device)
        back = torch.full((self._parameters + 1,), len(where))  # masked parameters have the gradient that comes last
        back[where] = torch.arange(len(where))
        self._back = back[:-1].to(device)

    def pack(self, parameters: Sequence[Tensor], _: str = "learn") -> PackedPixels:
        """All matrices in half precision, and all biases."""
        flat = torch.cat([p.flatten() for p in parameters])
        numbers = flat.index_select(0, self._where).masked_fill(self._nothing, 0.0)
        return PackedPixels(biases=numbers[self._weights :], backward=numbers[: self._weights].half())

    @on_its_device
    def learn(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> Learnt:
        """z = x + c(x) for images of shape (D, B), and all that the gradients need."""
        assert packed.backward is not None
        shape, batch = self.shape, x.shape[-1]
        z, kept = torch.empty_like(x), x.new_empty(self._maps_of(batch), dtype=torch.float16)
        if not batch:
            return Learnt(z, kept)
        seen, wide, shrunk, inner = self._stacks(kept, batch)
        first, *inside, head = self._matrices(packed.backward)
        first_bias, *inside_biases, head_bias = packed.biases.split(shape.heights)
        size, rows = self._size(), self._rows(batch)
        more = {"NARROW": shape.narrow, "ADDED": 0 if added is None else shape.added, "REVERSE": reverse, **rows}
        grid = (shape.pixels, triton.cdiv(batch, rows["ROWS"]))
        nothing = x if added is None else added
        wide_layers.begin[grid](
            x, first, first_bias, nothing, inside[0], inside_biases[0], seen, wide[0], shrunk[0], batch,
            **size, COLUMNS=shape.columns, **more,
        )  # fmt: skip
        for k in range(shape.blocks):
            last = k == shape.blocks - 1
            after = (head, head_bias) if last else (inside[3 * k + 3], inside_biases[3 * k + 3])
            context = nothing if added is None else added[:, shape.wide + k * shape.narrow :]
            wide_layers.bottleneck[grid](
                shrunk[k], wide[k], inside[3 * k + 1], inside_biases[3 * k + 1], context, inside[3 * k + 2],
                inside_biases[3 * k + 2], *after, x, inner[k], wide[k + 1], z if last else shrunk[k + 1], batch,
                **size, HEAD=shape.head, LAST=last, **more,
            )  # fmt: skip
        return Learnt(z, kept)

    @on_its_device
    def backward(
        self, weights: Tensor, x: Tensor, kept: Tensor, reverse: bool, grad_z: Tensor, conditional: bool
    ) -> PixelGradients:
        """The chain rule through :meth:`learn`."""
        shape, batch = self.shape, x.shape[-1]
        if not batch:
            nothing = x.new_zeros((0, shape.added)) if conditional else None
            return PixelGradients(grad_z, x.new_zeros(self._parameters), nothing)
        scale = _LARGEST / grad_z.abs().amax().clamp(min=torch.finfo(x.dtype).tiny * _LARGEST)
        maps, gradients = self._stacks(kept, batch), self._stacks(torch.empty_like(kept), batch)
        (_, wide, shrunk, inner), (parts, grad_wide, grad_shrunk, grad_inner) = maps, gradients
        first, *inside, head = self._matrices(weights)
        size, rows = self._size(), self._rows(batch)
        grid = (shape.pixels, triton.cdiv(batch, rows["ROWS"]))
        wide_layers.begin_back[grid](
            grad_z, scale, head, wide[-1], inside[-1], inner[-1], grad_wide[-1], grad_inner[-1], batch,
            **size, NARROW=shape.narrow, HEAD=shape.head, REVERSE=reverse, **rows,
        )  # fmt: skip
        for k in range(shape.blocks - 1, -1, -1):
            before = inside[3 * k - 1] if k else first
            wide_layers.bottleneck_back[grid](
                grad_inner[k], inside[3 * k + 1], shrunk[k], inside[3 * k], wide[k], grad_wide[k + 1], before,
                inner[k - 1], grad_shrunk[k], grad_wide[k], grad_inner[k - 1] if k else parts, batch,
                **size, COLUMNS=shape.columns, NARROW=shape.narrow, FIRST=not k, **rows,
            )  # fmt: skip
        grad_x = torch.empty_like(x)
        wide_layers.end_back[(shape.pixels, triton.cdiv(batch, _MANY), shape.channels)](
            parts, grad_z, scale, grad_x, batch,
            CHANNELS=shape.channels, HEIGHT=shape.height, WIDTH=shape.width, REVERSE=reverse, ROWS=_MANY,
        )  # fmt: skip
        sums = x.new_empty((_SPLITS, len(self._where)))
        self._add_up(sums, grad_z, scale, maps, gradients, reverse)
        of_parameters = F.pad(sums.sum(0) / scale, (0, 1)).index_select(0, self._back)
        added = None
        if conditional:
            added = torch.cat([t.sum(0, dtype=x.dtype) for t in (grad_wide[0], *grad_inner)], 1) / scale
        return PixelGradients(grad_x, of_parameters, added)

    def _add_up(
        self,
        sums: Tensor,
        grad_z: Tensor,
        scale: Tensor,
        maps: Sequence[Tensor],
        gradients: Sequence[Tensor],
        reverse: bool,
    ) -> None:
        """What every part of the places contributes to the gradients of matrices and biases."""
        shape, (splits, size), batch = self.shape, sums.shape, grad_z.shape[-1]
        (seen, wide, shrunk, inner), (_, grad_wide, grad_shrunk, grad_inner) = maps, gradients
        first, block = shape.wide * shape.columns, 2 * shape.narrow * shape.wide + NEAR_PLACES * shape.narrow**2
        starts = {"FIRST": first, "BLOCK": block, "BIASES": self._weights + shape.wide}
        part = min(64, shape.columns)
        wide_gradients.of_first[(splits, shape.columns // part)](
            seen, grad_wide, sums, size, batch,
            PIXELS=shape.pixels, COLUMNS=shape.columns, WIDE=shape.wide, WEIGHTS=self._weights, PART=part,
            **self._tuning("first", batch),
        )  # fmt: skip
        wide_gradients.of_head[(splits,)](
            grad_z, scale, wide[-1], sums, size, batch,
            CHANNELS=shape.channels, PIXELS=shape.pixels, WIDE=shape.wide, HEAD=shape.head,
            MATRIX=self._weights - shape.head * shape.wide, BIAS=size - shape.head, REVERSE=reverse,
            **self._tuning("head", batch),
        )  # fmt: skip
        wide_gradients.of_shrink_and_grow[(splits, 2 * shape.blocks)](
            wide, inner, grad_wide, grad_shrunk, sums, size, batch,
            PIXELS=shape.pixels, WIDE=shape.wide, NARROW=shape.narrow, **starts, **self._tuning("one", batch),
        )  # fmt: skip
        wide_gradients.of_look[(splits, shape.blocks)](
            shrunk, grad_inner, sums, size, batch,
            HEIGHT=shape.height, WIDTH=shape.width, WIDE=shape.wide, NARROW=shape.narrow, **starts,
            **self._tuning("look", batch),
        )  # fmt: skip

    # ---------------------------------------------------------------- memory

    def _maps_of(self, batch: int) -> int:
        """Numbers that are kept of a batch."""
        return self.shape.pixels * batch * sum(count * maps for count, maps in self._counts)

    def _stacks(self, kept: Tensor, batch: int) -> list[Tensor]:
        """What the first convolution sees; maps outside of bottlenecks; after their first convolutions, and the second.

        Each of shape (n, place, image, map).
        """
        parts = kept.split([count * self.shape.pixels * batch * maps for count, maps in self._counts])
        return [p.view(n, self.shape.pixels, batch, m) for p, (n, m) in zip(parts, self._counts, strict=True)]

    @property
    def _counts(self) -> list[tuple[int, int]]:
        """How many of each there are, and of how many maps."""
        shape = self.shape
        narrow = (shape.blocks, shape.narrow)
        return [(1, shape.columns), (shape.blocks + 1, shape.wide), narrow, narrow]

    def _matrices(self, weights: Tensor) -> tuple[Tensor, ...]:
        return weights.split([h * w for h, w in zip(self.shape.heights, self.shape.widths, strict=True)])

    def _size(self) -> dict[str, int]:
        shape = self.shape
        return {"CHANNELS": shape.channels, "HEIGHT": shape.height, "WIDTH": shape.width, "WIDE": shape.wide}

    def _rows(self, batch: int) -> dict[str, int]:
        """Images to a tile, and its warps."""
        return {"ROWS": max(_FEW, min(_MANY, triton.next_power_of_2(batch))), "num_warps": 4}

    def _tuning(self, kernel: str, batch: int) -> dict[str, int]:
        """The same where matrices are added up."""
        warps = {"first": 8, "head": 4, "one": 4, "look": 4}
        return {**self._rows(batch), "num_warps": warps[kernel], "num_stages": 3}
