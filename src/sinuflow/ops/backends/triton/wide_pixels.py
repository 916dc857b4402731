"""What Triton's kernels do for a PixelCNN that is too wide for the CUDA kernels: what it tells, gradients, the inverse.

While it learns, maps are in half precision, with as many digits as the tensor cores' rough single numbers have, and
half the bytes: to move them takes most of the time. Sums are in single precision. Gradients are scaled so that the
largest one of an output is in the middle of what half precision can hold. Everything else is in single precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ...conditional_waves import LOG_SCALE_MAX
from ...pixel_affine import MOST_OUTPUTS
from ..cuda.pixels.layout import NONE, matrices_of
from ..cuda.pixels.program import LearnResult, PackedPixels, PixelGradients
from ..cuda.pixels.shape import FAR_PLACES, NEAR_PLACES, SKEW
from . import wide_gradients, wide_inverse, wide_layers
from .launch import device_guard

#: Images to a tile, and its warps, as measured on an H200: to learn, otherwise, and for the inverse.
_TILE = {"ROWS": 64, "num_warps": 4}
_EXACT_TILE = {"ROWS": 64, "num_warps": 4}
_INVERSE_TILE = {"ROWS": 16, "num_warps": 8, "num_stages": 2}
#: Of what the inverse multiplies, columns at a time.
_CHUNK = 32
#: The same where the gradients of matrices are added up, by so many programs for each.
_SPLITS = 66
_SUMS_TILES = {
    "first": {"ROWS": 64, "num_warps": 8, "num_stages": 3},
    "head": {"ROWS": 64, "num_warps": 4, "num_stages": 3},
    "one": {"ROWS": 64, "num_warps": 4, "num_stages": 3},
    "look": {"ROWS": 64, "num_warps": 4, "num_stages": 3},
}
#: Columns of the first convolution to a program there.
_PART = 64
#: The largest gradient of an output.
_LARGEST = 64.0
#: Maps of a bottleneck for which a program has registers, and columns of the first convolution.
_MOST_MAPS, _MOST_COLUMNS = 64, 128
#: How the tensor cores multiply single numbers, each of them the sum of two rough ones: the three largest products.
_EXACT = "tf32x3"


@dataclass(frozen=True)
class WideShape:
    """A PixelCNN, but for its numbers; maps fill powers of two."""

    channels: int
    height: int
    width: int
    maps: int  # of a bottleneck
    blocks: int
    outputs: int = 1
    tf32: ClassVar[bool] = True  # in training

    @property
    def groups(self) -> int:
        """Of the head's rows: every output has its own."""
        return self.outputs

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def narrow(self) -> int:
        """Maps inside a bottleneck."""
        return _power(self.maps)

    @property
    def wide(self) -> int:
        """Maps outside of it."""
        return _power(2 * self.maps)

    @property
    def head(self) -> int:
        """Rows of the last layer for each output."""
        return _power(self.channels)

    @property
    def columns(self) -> int:
        """Of the first convolution: [place][channel].

        At least 64, because a network of grey images failed its trial on an H200 with 32. Why is not known: it may have
        been the race that :mod:`~sinuflow.ops.backends.triton.wide_gradients` tells of.
        """
        return max(64, _power(FAR_PLACES * self.channels))

    @property
    def added(self) -> int:
        """Numbers that a context adds to the maps of an image."""
        return self.wide + self.blocks * self.narrow

    @property
    def heights(self) -> list[int]:
        """Rows of every matrix."""
        return [self.wide, *self.blocks * [self.narrow, self.narrow, self.wide], self.outputs * self.head]

    @property
    def widths(self) -> list[int]:
        """Columns of every matrix."""
        return [self.columns, *self.blocks * [self.wide, NEAR_PLACES * self.narrow, self.narrow], self.wide]


def _power(maps: int) -> int:
    return int(max(16, triton.next_power_of_2(maps)))


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

    def fits(self) -> bool:
        """Whether a program has registers for all maps of a tile, and knows what to do with all outputs."""
        shape = self.shape
        return (
            shape.blocks > 0
            and shape.outputs <= MOST_OUTPUTS
            and shape.maps <= _MOST_MAPS
            and shape.columns <= _MOST_COLUMNS
        )

    def inverts(self) -> bool:
        """Whether there is an inverse."""
        return True

    def pack(self, parameters: Sequence[Tensor], purpose: str) -> PackedPixels:
        """All matrices, in half precision if they are to learn, and all biases.

        Both ways go by the same matrices: to learn, they are with what is saved for the way back.
        """
        flat = torch.cat([p.flatten() for p in parameters])
        numbers = flat.index_select(0, self._where).masked_fill(self._nothing, 0.0)
        weights, biases = numbers.split([self._weights, len(numbers) - self._weights])
        return PackedPixels(biases, backward=weights.half()) if purpose == "learn" else PackedPixels(biases, weights)

    def forward(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> Tensor:
        """What is told of images of shape (D, B); ``added`` (B, ...) is what the context adds to maps."""
        return self._score(packed, x, added, reverse, None)

    def check(self, packed: PackedPixels, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is told, and the largest unit of every image on the way, (B,)."""
        largest = x.new_zeros(x.shape[-1])
        return self._score(packed, x, added, False, largest), largest

    @device_guard
    def learn(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> LearnResult:
        """The same as :meth:`forward`, roughly, and all that the gradients need."""
        assert packed.backward is not None
        kept = x.new_empty(self._maps_of(x.shape[-1]), dtype=torch.float16)
        maps = self._stacks(kept, x.shape[-1])
        return LearnResult(self._run(packed.backward, packed.biases, x, added, reverse, maps, None), kept)

    @device_guard
    def _score(
        self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool, largest: Tensor | None
    ) -> Tensor:
        assert packed.columns is not None
        shape, places = self.shape, self.shape.pixels * x.shape[-1]
        wide, shrunk = x.new_empty(places * shape.wide), x.new_empty((2, places * shape.narrow))
        turns = [shrunk[k % 2] for k in range(shape.blocks)]  # who writes one of them reads the other
        maps = [x, [wide] * (shape.blocks + 1), turns, turns]
        return self._run(packed.columns, packed.biases, x, added, reverse, maps, largest)

    def _run(
        self,
        weights: Tensor,
        biases: Tensor,
        x: Tensor,
        added: Tensor | None,
        reverse: bool,
        maps: Sequence[Any],
        largest: Tensor | None,
    ) -> Tensor:
        """What is told, and the maps on the way; with weights in half precision, also those only for the gradients."""
        shape, batch, learn = self.shape, x.shape[-1], weights.dtype == torch.float16
        told = x.new_empty((shape.outputs * len(x), batch))
        if not batch:
            return told
        seen, wide, shrunk, inner = maps
        first, *inside, head = self._matrices(weights)
        first_bias, *inside_biases, head_bias = biases.split(shape.heights)
        tile = _TILE if learn else _EXACT_TILE
        grid = (shape.pixels, triton.cdiv(batch, tile["ROWS"]))
        given, most = x if added is None else added, x if largest is None else largest
        more = {
            **self._size(), **tile, "NARROW": shape.narrow, "ADDED": 0 if added is None else shape.added,
            "LEARN": learn, "CHECK": largest is not None, "PRECISION": _EXACT,
        }  # fmt: skip
        wide_layers.begin[grid](
            x, first, first_bias, given, inside[0], inside_biases[0], seen, wide[0], shrunk[0], most, batch,
            int(reverse), COLUMNS=shape.columns, **more,
        )  # fmt: skip
        for k in range(shape.blocks):
            last = k == shape.blocks - 1
            after = (head, head_bias) if last else (inside[3 * k + 3], inside_biases[3 * k + 3])
            of_look = given if added is None else added[:, shape.wide + k * shape.narrow :]
            wide_layers.bottleneck[grid](
                shrunk[k], wide[k], inside[3 * k + 1], inside_biases[3 * k + 1], of_look, inside[3 * k + 2],
                inside_biases[3 * k + 2], *after, x, inner[k], wide[k + 1], told if last else shrunk[k + 1], most,
                batch, int(reverse),
                HEAD=shape.head, OUTPUTS=shape.outputs, LAST=last, **more,
            )  # fmt: skip
        return told

    @device_guard
    def inverse(self, packed: PackedPixels, z: Tensor, added: Tensor | None) -> Tensor:
        """x, given z, both of shape (D, B)."""
        assert packed.columns is not None
        shape, batch, x = self.shape, z.shape[-1], torch.empty_like(z)
        if not batch:
            return x
        tall = -(-shape.width // SKEW)  # pixels of a front, at most
        narrow, blocks = shape.narrow, shape.blocks
        sizes = [tall * shape.wide, blocks * shape.pixels * narrow, tall * narrow, blocks * tall * narrow]
        maps = [x.new_empty(size * batch) for size in sizes]
        for front in range(shape.width + SKEW * (shape.height - 1)):
            top = max(0, -((shape.width - 1 - front) // SKEW))
            rows = min(shape.height - 1, front // SKEW) - top + 1
            if rows < 1:
                continue
            wide_inverse.solve_front[(rows, triton.cdiv(batch, _INVERSE_TILE["ROWS"]))](
                z, x, packed.columns, packed.biases, z if added is None else added, *maps, front, top, batch,
                **self._size(), COLUMNS=shape.columns, NARROW=shape.narrow, HEAD=shape.head, BLOCKS=shape.blocks,
                ADDED=0 if added is None else shape.added, PRECISION=_EXACT, SKEW=SKEW, SCALED=shape.outputs == 2,
                MOST=LOG_SCALE_MAX,
                CHUNK=min(_CHUNK, shape.narrow), **_INVERSE_TILE,
            )  # fmt: skip
        return x

    @device_guard
    def backward(
        self, weights: Tensor, x: Tensor, kept: Tensor, reverse: bool, grad: Tensor, conditional: bool
    ) -> PixelGradients:
        """The chain rule through :meth:`learn`."""
        shape, batch = self.shape, x.shape[-1]
        if not batch:
            nothing = x.new_zeros((0, shape.added)) if conditional else None
            return PixelGradients(grad[: len(x)], x.new_zeros(self._parameters), nothing)
        scale = _LARGEST / grad.abs().amax().clamp(min=torch.finfo(x.dtype).tiny * _LARGEST)
        maps, gradients = self._stacks(kept, batch), self._stacks(torch.empty_like(kept), batch)
        (_, wide, shrunk, inner), (parts, grad_wide, grad_shrunk, grad_inner) = maps, gradients
        first, *inside, head = self._matrices(weights)
        size, grid = self._size(), (shape.pixels, triton.cdiv(batch, _TILE["ROWS"]))
        wide_layers.begin_back[grid](
            grad, scale, head, wide[-1], inside[-1], inner[-1], grad_wide[-1], grad_inner[-1], batch, int(reverse),
            **size, NARROW=shape.narrow, HEAD=shape.head, OUTPUTS=shape.outputs, **_TILE,
        )  # fmt: skip
        for k in range(shape.blocks - 1, -1, -1):
            before = inside[3 * k - 1] if k else first
            wide_layers.bottleneck_back[grid](
                grad_inner[k], inside[3 * k + 1], shrunk[k], inside[3 * k], wide[k], grad_wide[k + 1], before,
                inner[k - 1], grad_shrunk[k], grad_wide[k], grad_inner[k - 1] if k else parts, batch,
                **size, COLUMNS=shape.columns, NARROW=shape.narrow, FIRST=not k, **_TILE,
            )  # fmt: skip
        grad_x = torch.empty_like(x)
        wide_layers.end_back[(shape.pixels, triton.cdiv(batch, 128), shape.channels)](
            parts, grad, scale, grad_x, batch, int(reverse),
            CHANNELS=shape.channels, HEIGHT=shape.height, WIDTH=shape.width, ROWS=128,
        )  # fmt: skip
        sums = x.new_empty((_SPLITS, len(self._where)))
        self._add_up(sums, grad, scale, maps, gradients, reverse)
        of_parameters = F.pad(sums.sum(0) / scale, (0, 1)).index_select(0, self._back)
        added = None
        if conditional:
            added = torch.cat([t.sum(0, dtype=x.dtype) for t in (grad_wide[0], *grad_inner)], 1) / scale
        return PixelGradients(grad_x, of_parameters, added)

    def _add_up(
        self,
        sums: Tensor,
        grad: Tensor,
        scale: Tensor,
        maps: Sequence[Tensor],
        gradients: Sequence[Tensor],
        reverse: bool,
    ) -> None:
        """What every part of the places contributes to the gradients of matrices and biases."""
        shape, (splits, size), batch = self.shape, sums.shape, grad.shape[-1]
        (seen, wide, shrunk, inner), (_, grad_wide, grad_shrunk, grad_inner) = maps, gradients
        first, block = shape.wide * shape.columns, 2 * shape.narrow * shape.wide + NEAR_PLACES * shape.narrow**2
        starts = {"FIRST": first, "BLOCK": block, "BIASES": self._weights + shape.wide}
        wide_gradients.of_first[(splits, shape.columns // _PART)](
            seen, grad_wide, sums, size, batch,
            PIXELS=shape.pixels, COLUMNS=shape.columns, WIDE=shape.wide, WEIGHTS=self._weights, PART=_PART,
            **_SUMS_TILES["first"],
        )  # fmt: skip
        rows = shape.outputs * shape.head
        wide_gradients.of_head[(splits, shape.outputs)](
            grad, scale, wide[-1], sums, size, batch, int(reverse),
            CHANNELS=shape.channels, PIXELS=shape.pixels, WIDE=shape.wide, HEAD=shape.head,
            MATRIX=self._weights - rows * shape.wide, BIAS=size - rows,
            **_SUMS_TILES["head"],
        )  # fmt: skip
        wide_gradients.of_shrink_and_grow[(splits, 2 * shape.blocks)](
            wide, inner, grad_wide, grad_shrunk, sums, size, batch,
            PIXELS=shape.pixels, WIDE=shape.wide, NARROW=shape.narrow, **starts, **_SUMS_TILES["one"],
        )  # fmt: skip
        wide_gradients.of_look[(splits, shape.blocks)](
            shrunk, grad_inner, sums, size, batch,
            HEIGHT=shape.height, WIDTH=shape.width, WIDE=shape.wide, NARROW=shape.narrow, **starts,
            **_SUMS_TILES["look"],
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
        sizes = [h * w for h, w in zip(self.shape.heights, self.shape.widths, strict=True)]
        return tuple(torch.split(weights, sizes))

    def _size(self) -> dict[str, int]:
        shape = self.shape
        return {"CHANNELS": shape.channels, "HEIGHT": shape.height, "WIDTH": shape.width, "WIDE": shape.wide}
