"""A PixelCNN by Triton kernels, for networks too wide for the CUDA kernels: outputs, gradients and the inverse.

In training, maps are float16, which has as many digits as TF32 and half the bytes; moving them takes most of the time.
Sums are float32, and gradients are scaled to the middle of the range of float16. Everything else is float32.
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
from . import pixelcnn_gradients, pixelcnn_inverse, pixelcnn_layers
from .launch import device_guard

#: Launch configurations, tuned on an H200: for training, for scoring, and for the inverse.
_TILE = {"ROWS": 64, "num_warps": 4}
_SCORE_TILE = {"ROWS": 64, "num_warps": 4}
_INVERSE_TILE = {"ROWS": 16, "num_warps": 8, "num_stages": 2}
#: Columns of a product in the inverse, at a time.
_CHUNK = 32
#: Programs that accumulate the gradient of a matrix, and their launch configurations.
_SPLITS = 66
_SUMS_TILES = {
    "first": {"ROWS": 64, "num_warps": 8, "num_stages": 3},
    "head": {"ROWS": 64, "num_warps": 4, "num_stages": 3},
    "pointwise": {"ROWS": 64, "num_warps": 4, "num_stages": 3},
    "conv": {"ROWS": 64, "num_warps": 4, "num_stages": 3},
}
#: Columns of the first convolution per program there.
_PART = 64
#: The largest scaled gradient of an output.
_GRADIENT_SCALE = 64.0
#: The most maps of a bottleneck, and columns of the first convolution, that registers hold.
_MOST_MAPS, _MOST_COLUMNS = 64, 128
#: float32 products on tensor cores: each number is the sum of two TF32 numbers, and three products are added.
_PRECISION = "tf32x3"


@dataclass(frozen=True)
class TritonShape:
    """The shape of a PixelCNN; numbers of maps are rounded up to powers of two."""

    channels: int
    height: int
    width: int
    maps: int  # of a bottleneck
    blocks: int
    outputs: int = 1
    tf32: ClassVar[bool] = True  # in training

    @property
    def groups(self) -> int:
        """Groups of the head's rows, one per output."""
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
        """Columns of the first convolution: [tap][channel].

        At least 64: with 32, a network of grey images failed its self-test on an H200, possibly by the race described
        in :mod:`~sinuflow.ops.backends.triton.pixelcnn_gradients`.
        """
        return max(64, _power(FAR_PLACES * self.channels))

    @property
    def added(self) -> int:
        """Maps of an image to which a context adds."""
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


class TritonProgram:
    """The kernels for networks of one shape."""

    def __init__(self, shape: TritonShape, masks: Sequence[Tensor], device: torch.device) -> None:
        self.shape, self.device = shape, device
        matrices, biases, self._parameters = matrices_of(shape, masks)
        where = torch.cat([m.flatten() for m in (*matrices, *biases)])
        self._weights = sum(m.numel() for m in matrices)
        self._where = where.clamp(min=0).to(device)
        self._masked = (where == NONE).to(device)
        back = torch.full((self._parameters + 1,), len(where))  # masked parameters get the last gradient, a zero
        back[where] = torch.arange(len(where))
        self._back = back[:-1].to(device)

    def fits(self) -> bool:
        """Whether registers hold all maps of a tile, and all outputs are supported."""
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
        """All matrices, float16 for training, and all biases. Forward and backward share the matrices."""
        flat = torch.cat([p.flatten() for p in parameters])
        packed = flat.index_select(0, self._where).masked_fill(self._masked, 0.0)
        weights, biases = packed.split([self._weights, len(packed) - self._weights])
        return PackedPixels(biases, backward=weights.half()) if purpose == "learn" else PackedPixels(biases, weights)

    def forward(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> Tensor:
        """The outputs for images (D, B); ``added`` (B, ...) is what the context adds to maps."""
        return self._score(packed, x, added, reverse, None)

    def check(self, packed: PackedPixels, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs, and the largest hidden unit of every image, (B,)."""
        largest = x.new_zeros(x.shape[-1])
        return self._score(packed, x, added, False, largest), largest

    @device_guard
    def learn(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> LearnResult:
        """The outputs in mixed precision, and the activations for :meth:`backward`."""
        assert packed.backward is not None
        activations = x.new_empty(self._maps_of(x.shape[-1]), dtype=torch.float16)
        maps = self._stacks(activations, x.shape[-1])
        return LearnResult(self._run(packed.backward, packed.biases, x, added, reverse, maps, None), activations)

    @device_guard
    def _score(
        self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool, largest: Tensor | None
    ) -> Tensor:
        assert packed.columns is not None
        shape, pixels = self.shape, self.shape.pixels * x.shape[-1]
        wide, reduced = x.new_empty(pixels * shape.wide), x.new_empty((2, pixels * shape.narrow))
        alternating = [reduced[k % 2] for k in range(shape.blocks)]  # a kernel reads one and writes the other
        maps = [x, [wide] * (shape.blocks + 1), alternating, alternating]
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
        """The outputs; maps are stored in ``maps``, with float16 weights also those that only gradients need."""
        shape, batch, learn = self.shape, x.shape[-1], weights.dtype == torch.float16
        outputs = x.new_empty((shape.outputs * len(x), batch))
        if not batch:
            return outputs
        patches, wide, reduced, hidden = maps
        first, *inside, head = self._matrices(weights)
        first_bias, *inside_biases, head_bias = biases.split(shape.heights)
        tile = _TILE if learn else _SCORE_TILE
        grid = (shape.pixels, triton.cdiv(batch, tile["ROWS"]))
        added_maps, most = x if added is None else added, x if largest is None else largest
        constants = {
            **self._size(), **tile, "NARROW": shape.narrow, "ADDED": 0 if added is None else shape.added,
            "LEARN": learn, "CHECK": largest is not None, "PRECISION": _PRECISION,
        }  # fmt: skip
        pixelcnn_layers.first_layers[grid](
            x, first, first_bias, added_maps, inside[0], inside_biases[0], patches, wide[0], reduced[0], most, batch,
            int(reverse), COLUMNS=shape.columns, **constants,
        )  # fmt: skip
        for k in range(shape.blocks):
            last = k == shape.blocks - 1
            after = (head, head_bias) if last else (inside[3 * k + 3], inside_biases[3 * k + 3])
            added_hidden = added_maps if added is None else added[:, shape.wide + k * shape.narrow :]
            pixelcnn_layers.bottleneck[grid](
                reduced[k], wide[k], inside[3 * k + 1], inside_biases[3 * k + 1], added_hidden, inside[3 * k + 2],
                inside_biases[3 * k + 2], *after, x, hidden[k], wide[k + 1], outputs if last else reduced[k + 1], most,
                batch, int(reverse),
                HEAD=shape.head, OUTPUTS=shape.outputs, LAST=last, **constants,
            )  # fmt: skip
        return outputs

    @device_guard
    def inverse(self, packed: PackedPixels, z: Tensor, added: Tensor | None) -> Tensor:
        """x for z, both of shape (D, B)."""
        assert packed.columns is not None
        shape, batch, x = self.shape, z.shape[-1], torch.empty_like(z)
        if not batch:
            return x
        tall = -(-shape.width // SKEW)  # the most pixels of a front
        narrow, blocks = shape.narrow, shape.blocks
        sizes = [tall * shape.wide, blocks * shape.pixels * narrow, tall * narrow, blocks * tall * narrow]
        maps = [x.new_empty(size * batch) for size in sizes]
        for front in range(shape.width + SKEW * (shape.height - 1)):
            top = max(0, -((shape.width - 1 - front) // SKEW))
            rows = min(shape.height - 1, front // SKEW) - top + 1
            if rows < 1:
                continue
            pixelcnn_inverse.solve_front[(rows, triton.cdiv(batch, _INVERSE_TILE["ROWS"]))](
                z, x, packed.columns, packed.biases, z if added is None else added, *maps, front, top, batch,
                **self._size(), COLUMNS=shape.columns, NARROW=shape.narrow, HEAD=shape.head, BLOCKS=shape.blocks,
                ADDED=0 if added is None else shape.added, PRECISION=_PRECISION, SKEW=SKEW, SCALED=shape.outputs == 2,
                MOST=LOG_SCALE_MAX,
                CHUNK=min(_CHUNK, shape.narrow), **_INVERSE_TILE,
            )  # fmt: skip
        return x

    @device_guard
    def backward(
        self, weights: Tensor, x: Tensor, activations: Tensor, reverse: bool, grad: Tensor, conditional: bool
    ) -> PixelGradients:
        """The gradients of :meth:`learn`."""
        shape, batch = self.shape, x.shape[-1]
        if not batch:
            nothing = x.new_zeros((0, shape.added)) if conditional else None
            return PixelGradients(grad[: len(x)], x.new_zeros(self._parameters), nothing)
        scale = _GRADIENT_SCALE / grad.abs().amax().clamp(min=torch.finfo(x.dtype).tiny * _GRADIENT_SCALE)
        maps, gradients = self._stacks(activations, batch), self._stacks(torch.empty_like(activations), batch)
        (_, wide, reduced, hidden), (grad_patch, grad_wide, grad_reduced, grad_hidden) = maps, gradients
        first, *inside, head = self._matrices(weights)
        size, grid = self._size(), (shape.pixels, triton.cdiv(batch, _TILE["ROWS"]))
        pixelcnn_layers.head_backward[grid](
            grad, scale, head, wide[-1], inside[-1], hidden[-1], grad_wide[-1], grad_hidden[-1], batch, int(reverse),
            **size, NARROW=shape.narrow, HEAD=shape.head, OUTPUTS=shape.outputs, **_TILE,
        )  # fmt: skip
        for k in range(shape.blocks - 1, -1, -1):
            before = inside[3 * k - 1] if k else first
            pixelcnn_layers.bottleneck_backward[grid](
                grad_hidden[k], inside[3 * k + 1], reduced[k], inside[3 * k], wide[k], grad_wide[k + 1], before,
                hidden[k - 1], grad_reduced[k], grad_wide[k], grad_hidden[k - 1] if k else grad_patch, batch,
                **size, COLUMNS=shape.columns, NARROW=shape.narrow, FIRST=not k, **_TILE,
            )  # fmt: skip
        grad_x = torch.empty_like(x)
        pixelcnn_layers.input_gradient[(shape.pixels, triton.cdiv(batch, 128), shape.channels)](
            grad_patch, grad, scale, grad_x, batch, int(reverse),
            CHANNELS=shape.channels, HEIGHT=shape.height, WIDTH=shape.width, ROWS=128,
        )  # fmt: skip
        sums = x.new_empty((_SPLITS, len(self._where)))
        self._accumulate(sums, grad, scale, maps, gradients, reverse)
        of_parameters = F.pad(sums.sum(0) / scale, (0, 1)).index_select(0, self._back)
        added = None
        if conditional:
            added = torch.cat([t.sum(0, dtype=x.dtype) for t in (grad_wide[0], *grad_hidden)], 1) / scale
        return PixelGradients(grad_x, of_parameters, added)

    def _accumulate(
        self,
        sums: Tensor,
        grad: Tensor,
        scale: Tensor,
        maps: Sequence[Tensor],
        gradients: Sequence[Tensor],
        reverse: bool,
    ) -> None:
        """Partial sums of the gradients of matrices and biases."""
        shape, (splits, size), batch = self.shape, sums.shape, grad.shape[-1]
        (patches, wide, reduced, hidden), (_, grad_wide, grad_reduced, grad_hidden) = maps, gradients
        first, block = shape.wide * shape.columns, 2 * shape.narrow * shape.wide + NEAR_PLACES * shape.narrow**2
        starts = {"FIRST": first, "BLOCK": block, "BIASES": self._weights + shape.wide}
        pixelcnn_gradients.first_gradients[(splits, shape.columns // _PART)](
            patches, grad_wide, sums, size, batch,
            PIXELS=shape.pixels, COLUMNS=shape.columns, WIDE=shape.wide, WEIGHTS=self._weights, PART=_PART,
            **_SUMS_TILES["first"],
        )  # fmt: skip
        rows = shape.outputs * shape.head
        pixelcnn_gradients.head_gradients[(splits, shape.outputs)](
            grad, scale, wide[-1], sums, size, batch, int(reverse),
            CHANNELS=shape.channels, PIXELS=shape.pixels, WIDE=shape.wide, HEAD=shape.head,
            MATRIX=self._weights - rows * shape.wide, BIAS=size - rows,
            **_SUMS_TILES["head"],
        )  # fmt: skip
        pixelcnn_gradients.pointwise_gradients[(splits, 2 * shape.blocks)](
            wide, hidden, grad_wide, grad_reduced, sums, size, batch,
            PIXELS=shape.pixels, WIDE=shape.wide, NARROW=shape.narrow, **starts, **_SUMS_TILES["pointwise"],
        )  # fmt: skip
        pixelcnn_gradients.conv_gradients[(splits, shape.blocks)](
            reduced, grad_hidden, sums, size, batch,
            HEIGHT=shape.height, WIDTH=shape.width, WIDE=shape.wide, NARROW=shape.narrow, **starts,
            **_SUMS_TILES["conv"],
        )  # fmt: skip

    # ---------------------------------------------------------------- memory

    def _maps_of(self, batch: int) -> int:
        """The number of activations of a batch."""
        return self.shape.pixels * batch * sum(count * maps for count, maps in self._counts)

    def _stacks(self, activations: Tensor, batch: int) -> list[Tensor]:
        """Patches, maps outside of bottlenecks, and maps after their first and second convolutions.

        Each of shape (n, pixel, image, map).
        """
        parts = activations.split([count * self.shape.pixels * batch * maps for count, maps in self._counts])
        return [p.view(n, self.shape.pixels, batch, m) for p, (n, m) in zip(parts, self._counts, strict=True)]

    @property
    def _counts(self) -> list[tuple[int, int]]:
        """How many layers and maps each of :meth:`_stacks` has."""
        shape = self.shape
        narrow = (shape.blocks, shape.narrow)
        return [(1, shape.columns), (shape.blocks + 1, shape.wide), narrow, narrow]

    def _matrices(self, weights: Tensor) -> tuple[Tensor, ...]:
        sizes = [h * w for h, w in zip(self.shape.heights, self.shape.widths, strict=True)]
        return tuple(torch.split(weights, sizes))

    def _size(self) -> dict[str, int]:
        shape = self.shape
        return {"CHANNELS": shape.channels, "HEIGHT": shape.height, "WIDTH": shape.width, "WIDE": shape.wide}
