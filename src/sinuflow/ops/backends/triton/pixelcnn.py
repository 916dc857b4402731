"""A PixelCNN by Triton kernels, for networks too wide for the CUDA kernels: outputs, gradients and the inverse.

In training, maps are float16, which has as many digits as TF32 and half the bytes; moving them takes most of the time.
Sums are float32, and gradients are scaled to the middle of the range of float16. Everything else is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ...pixel_affine import MOST_OUTPUTS
from ...pixelcnn_inverse import SKEW
from ..cuda.pixels.layout import NONE, matrices_of
from ..cuda.pixels.program import PackedPixels, PixelGradients
from ..cuda.pixels.shape import FAR_PLACES, PixelShape
from . import pixelcnn_gradients, pixelcnn_inverse, pixelcnn_layers
from .launch import device_guard

#: Launch configurations, tuned on an H200: of the layers, and of the inverse with columns of a product at a time.
_TILE = {"ROWS": 64, "num_warps": 4}
_INVERSE_TILE, _CHUNK = {"ROWS": 16, "num_warps": 8, "num_stages": 2}, 32
#: Programs that accumulate the gradient of a matrix, and their launch configurations; those of the first convolution
#: have so many of its columns.
_SPLITS, _PART = 66, 64
_SUMS_TILE = {"ROWS": 64, "num_warps": 4, "num_stages": 3}
_FIRST_SUMS_TILE = _SUMS_TILE | {"num_warps": 8}
#: The largest scaled gradient of an output.
_GRADIENT_SCALE = 64.0
#: The most maps of a bottleneck, and columns of the first convolution, that registers hold.
_MOST_MAPS, _MOST_COLUMNS = 64, 128


class TritonShape:
    """The shape of a PixelCNN, with numbers of maps rounded up to powers of two."""

    tf32 = True  # in training

    def __init__(self, shape: PixelShape) -> None:
        self.channels, self.height, self.width, self.pixels = shape.channels, shape.height, shape.width, shape.pixels
        self.maps, self.blocks, self.outputs = shape.maps, shape.blocks, shape.outputs
        self.narrow, self.wide = _power(shape.maps), _power(2 * shape.maps)  # maps inside and outside of a bottleneck
        self.groups, self.head = shape.outputs, _power(shape.channels)  # groups of the head's rows, one per output
        # Of the first convolution, [tap][channel]. With 32, a network of grey images failed its self-test on an H200,
        # possibly by the race described in pixelcnn_gradients.
        self.columns = max(64, _power(FAR_PLACES * shape.channels))


def _power(maps: int) -> int:
    return int(max(16, triton.next_power_of_2(maps)))


class TritonProgram:
    """The kernels for networks of one shape."""

    def __init__(self, shape: TritonShape, masks: Sequence[Tensor], device: torch.device) -> None:
        self.shape, self.device = shape, device
        matrices, biases, self._parameters = matrices_of(shape, masks)
        self._matrix_sizes, self._bias_sizes = ([m.numel() for m in each] for each in (matrices, biases))
        self._weights = sum(self._matrix_sizes)
        where = torch.cat([m.flatten() for m in (*matrices, *biases)])
        where[where == NONE] = self._parameters  # a zero after the parameters
        back = torch.full((self._parameters + 1,), len(where))  # masked parameters get the last gradient, a zero
        back[where] = torch.arange(len(where))
        self._where, self._back = where.to(device), back[:-1].to(device)
        self._size = {
            "CHANNELS": shape.channels, "HEIGHT": shape.height, "WIDTH": shape.width, "WIDE": shape.wide,
            "NARROW": shape.narrow,
        }  # fmt: skip
        self._added = shape.wide + shape.blocks * shape.narrow  # maps of an image to which a context adds
        narrow = shape.blocks, shape.narrow  # layers, and maps of each
        self._counts = [(1, shape.columns), (shape.blocks + 1, shape.wide), narrow, narrow]

    def fits(self) -> bool:
        """Whether registers hold all maps of a tile, and all outputs are supported."""
        shape = self.shape
        supported = shape.blocks > 0 and shape.outputs <= MOST_OUTPUTS
        return supported and shape.maps <= _MOST_MAPS and shape.columns <= _MOST_COLUMNS

    def inverts(self) -> bool:
        return True

    def pack(self, parameters: Sequence[Tensor], purpose: str) -> PackedPixels:
        """All matrices, float16 for training, and all biases. Forward and backward share the matrices."""
        flat = torch.cat([*(p.flatten() for p in parameters), parameters[0].new_zeros(1)])
        weights, biases = flat.index_select(0, self._where).tensor_split([self._weights])
        return PackedPixels(biases, backward=weights.half()) if purpose == "learn" else PackedPixels(biases, weights)

    def check(self, packed: PackedPixels, x: Tensor, added: Tensor | None) -> tuple[Tensor, Tensor]:
        """The outputs, and the largest hidden unit of every image, (B,)."""
        largest = x.new_zeros(x.shape[-1])
        return self.forward(packed, x, added, False, largest), largest

    def learn(self, packed: PackedPixels, x: Tensor, added: Tensor | None, reverse: bool) -> tuple[Tensor, Tensor]:
        """The outputs in mixed precision, and the activations for :meth:`backward`."""
        maps = sum(layers * maps for layers, maps in self._counts)
        activations = x.new_empty(self.shape.pixels * x.shape[-1] * maps, dtype=torch.float16)
        return self.forward(packed, x, added, reverse, None, activations), activations

    @device_guard
    def forward(
        self,
        packed: PackedPixels,
        x: Tensor,
        added: Tensor | None,
        reverse: bool,
        largest: Tensor | None = None,
        activations: Tensor | None = None,
    ) -> Tensor:
        """The outputs for images (D, B); ``added`` (B, ...) is what the context adds to maps."""
        shape, batch = self.shape, x.shape[-1]
        outputs = x.new_empty((shape.outputs * len(x), batch))
        if not batch:
            return outputs
        maps: Sequence[Any]
        if activations is not None:
            weights, maps = packed.backward, self._stacks(activations, batch)
        else:
            same = [x.new_empty(shape.pixels * batch * shape.wide)] * (shape.blocks + 1)
            alternating = [*x.new_empty((2, shape.pixels * batch * shape.narrow))] * shape.blocks
            weights, maps = packed.columns, [x, same, alternating, alternating]
        patches, wide, reduced, hidden = maps
        assert weights is not None
        first, *inside, head = weights.split(self._matrix_sizes)
        first_bias, *inside_biases, head_bias = packed.biases.split(self._bias_sizes)
        grid = (shape.pixels, triton.cdiv(batch, _TILE["ROWS"]))
        added_maps, most = x if added is None else added, x if largest is None else largest
        constants = {
            **self._size, **_TILE, "ADDED": 0 if added is None else self._added,
            "LEARN": activations is not None, "CHECK": largest is not None,
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
                batch, int(reverse), HEAD=shape.head, OUTPUTS=shape.outputs, LAST=last, **constants,
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
                COLUMNS=shape.columns, HEAD=shape.head, BLOCKS=blocks, ADDED=0 if added is None else self._added,
                SCALED=shape.outputs == 2, CHUNK=min(_CHUNK, narrow), **self._size, **_INVERSE_TILE,
            )  # fmt: skip
        return x

    @device_guard
    def backward(
        self, weights: Tensor, x: Tensor, activations: Tensor, reverse: bool, grad: Tensor, conditional: bool
    ) -> PixelGradients:
        """The gradients of :meth:`learn`."""
        shape, batch = self.shape, x.shape[-1]
        if not batch:
            nothing = x.new_zeros((0, self._added)) if conditional else None
            return PixelGradients(grad[: len(x)], x.new_zeros(self._parameters), nothing)
        scale = _GRADIENT_SCALE / grad.abs().amax().clamp(min=torch.finfo(x.dtype).tiny * _GRADIENT_SCALE)
        maps, gradients = self._stacks(activations, batch), self._stacks(torch.empty_like(activations), batch)
        (_, wide, reduced, hidden), (grad_patch, grad_wide, grad_reduced, grad_hidden) = maps, gradients
        first, *inside, head = weights.split(self._matrix_sizes)
        grid = (shape.pixels, triton.cdiv(batch, _TILE["ROWS"]))
        pixelcnn_layers.head_backward[grid](
            grad, scale, head, wide[-1], inside[-1], hidden[-1], grad_wide[-1], grad_hidden[-1], batch, int(reverse),
            HEAD=shape.head, OUTPUTS=shape.outputs, **self._size, **_TILE,
        )  # fmt: skip
        for k in range(shape.blocks - 1, -1, -1):
            before = inside[3 * k - 1] if k else first
            pixelcnn_layers.bottleneck_backward[grid](
                grad_hidden[k], inside[3 * k + 1], reduced[k], inside[3 * k], wide[k], grad_wide[k + 1], before,
                hidden[k - 1], grad_reduced[k], grad_wide[k], grad_hidden[k - 1] if k else grad_patch, batch,
                COLUMNS=shape.columns, FIRST=not k, **self._size, **_TILE,
            )  # fmt: skip
        grad_x = torch.empty_like(x)
        pixelcnn_layers.input_gradient[(shape.pixels, triton.cdiv(batch, 128), shape.channels)](
            grad_patch, grad, scale, grad_x, batch, int(reverse),
            CHANNELS=shape.channels, HEIGHT=shape.height, WIDTH=shape.width, ROWS=128,
        )  # fmt: skip
        sums = self._sums(grad, scale, maps, gradients, reverse)
        of_parameters = F.pad(sums.sum(0) / scale, (0, 1)).index_select(0, self._back)
        added = None
        if conditional:
            added = torch.cat([t.sum(0, dtype=x.dtype) for t in (grad_wide[0], *grad_hidden)], 1) / scale
        return PixelGradients(grad_x, of_parameters, added)

    def _sums(
        self, grad: Tensor, scale: Tensor, maps: Sequence[Tensor], gradients: Sequence[Tensor], reverse: bool
    ) -> Tensor:
        """Partial sums of the gradients of matrices and biases."""
        shape, batch = self.shape, grad.shape[-1]
        (patches, wide, reduced, hidden), (_, grad_wide, grad_reduced, grad_hidden) = maps, gradients
        sums = grad.new_empty((_SPLITS, len(self._where)))
        splits, size = sums.shape
        biases = sums[:, self._weights :]
        inside, inside_biases = sums[:, self._matrix_sizes[0] :], biases[:, shape.wide :]
        heads = sums[:, self._weights - self._matrix_sizes[-1] :], sums[:, size - self._bias_sizes[-1] :]
        widths = {"WIDE": shape.wide, "NARROW": shape.narrow}
        pixelcnn_gradients.first_gradients[(splits, shape.columns // _PART)](
            patches, grad_wide, sums, biases, size, batch,
            PIXELS=shape.pixels, COLUMNS=shape.columns, WIDE=shape.wide, PART=_PART, **_FIRST_SUMS_TILE,
        )  # fmt: skip
        pixelcnn_gradients.head_gradients[(splits, shape.outputs)](
            grad, scale, wide[-1], *heads, size, batch, int(reverse),
            CHANNELS=shape.channels, PIXELS=shape.pixels, WIDE=shape.wide, HEAD=shape.head, **_SUMS_TILE,
        )  # fmt: skip
        pixelcnn_gradients.pointwise_gradients[(splits, 2 * shape.blocks)](
            wide, hidden, grad_wide, grad_reduced, inside, inside_biases, size, batch,
            PIXELS=shape.pixels, **widths, **_SUMS_TILE,
        )  # fmt: skip
        pixelcnn_gradients.conv_gradients[(splits, shape.blocks)](
            reduced, grad_hidden, inside, inside_biases, size, batch,
            HEIGHT=shape.height, WIDTH=shape.width, **widths, **_SUMS_TILE,
        )  # fmt: skip
        return sums

    def _stacks(self, activations: Tensor, batch: int) -> list[Tensor]:
        """Patches, maps outside of bottlenecks, and maps after their first and second convolutions.

        Each of shape (n, pixel, image, map).
        """
        shape = self.shape
        parts = activations.split([n * shape.pixels * batch * maps for n, maps in self._counts])
        return [p.view(n, shape.pixels, batch, m) for p, (n, m) in zip(parts, self._counts, strict=True)]
