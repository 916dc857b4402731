"""Images of bytes as training rows, with dequantization noise drawn per batch on the training device."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..bijections.pixels import LEVELS, PixelMap, check_images, flip_horizontally
from ..errors import ArgumentError
from .sources import Batch, ResidentRows, Taker, seeded

#: The most images to initialize from, and the most pixel values in a validation batch, to bound memory.
_HEAD, _VALUES = 1024, 2**21


class ImageRows(ResidentRows):
    """Images of bytes, dequantized and mapped to logits batch by batch.

    In training, the noise of every pixel is fresh in every epoch. For validation, the noise is always the same, on any
    device, and nothing is flipped. Only the bytes are stored, on the device too.

    Args:
        images: bytes of shape (N, C, H, W).
        pixels: the map from bytes to logits.
        labels: the flow's context, of shape (N, context), such as one-hot classes.
        flips: whether training flips half of the images, chosen at random, horizontally.
        dtype: of the flow.

    Example:
        >>> import sinuflow
        >>> images = torch.randint(256, (40, 1, 4, 4), dtype=torch.uint8)
        >>> train, held_out = (ImageRows(part, PixelMap()) for part in images.split(30))
        >>> flow = sinuflow.SinusoidalFlow.image((1, 4, 4), blocks=1, channels=4)
        >>> result = sinuflow.fit(flow, train, held_out, steps=3, progress=False)
        >>> 0 < held_out.bits_per_dimension(result.best_nll) < 20
        True
    """

    def __init__(
        self,
        images: Tensor,
        pixels: PixelMap,
        labels: Tensor | None = None,
        flips: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_images(images)
        if not len(images):
            raise ArgumentError("there are no images")
        if labels is not None and (labels.dim() != 2 or len(labels) != len(images)):
            raise ArgumentError(
                f"labels must be the flow's context, of shape ({len(images)}, context); got {tuple(labels.shape)}"
            )
        super().__init__(Batch(images, None if labels is None else labels.to(images.device, dtype)), images.device)
        self._pixels, self._flips, self._dtype = pixels, flips, dtype
        self._ladj: float | None = None

    def taker(self) -> Taker:
        """Makes batches on the device: noise, flips and logit are part of a captured step."""
        return lambda rows: self._batch(rows, None, training=True).map(lambda t: t.mT)

    def head(self, rows: int) -> Batch:
        count = min(rows, _HEAD, self.rows)
        # Spread over all images, which are often sorted by class.
        return self._batch(torch.arange(count) * self.rows // count, seeded(0))

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        return super().in_order(max(1, min(batch_size, _VALUES // self._raw.x[0].numel())))

    def raw(self) -> Iterator[Tensor]:
        """The encoding, as bytes, then the images and the labels."""
        encoding = f"{tuple(self._raw.x.shape)} alpha {self._pixels.alpha} flips {self._flips} {self._dtype}"
        yield torch.tensor(list(encoding.encode()), dtype=torch.uint8)
        yield from super().raw()

    def to(self, device: torch.device) -> ImageRows:
        images, labels = self._raw.map(lambda t: t.to(device))
        return ImageRows(images, self._pixels, labels, self._flips, self._dtype)

    def bits_per_dimension(self, nll: float) -> float:
        """Bits per dimension of the bytes, from the mean negative log-density of the batches of :meth:`in_order`."""
        if self._ladj is None:  # a constant, because the noise of those batches is always the same
            parts = [self._pixels.ladj(batch.x).double().sum() for batch in self.in_order(self.rows)]
            self._ladj = float(torch.stack(parts).sum()) / self.rows
        size = self._raw.x[0].numel()
        return ((nll - self._ladj) / size + math.log(LEVELS)) / math.log(2)

    def _batch(self, rows: Tensor, generator: torch.Generator | None, training: bool = False) -> Batch:
        rows = rows.to(self.device)
        images, labels = self._raw.map(lambda t: t.index_select(0, rows))
        if training and self._flips:
            chance = torch.rand((len(rows), 1, 1, 1), generator=generator, device=images.device)
            images = torch.where(chance < 0.5, flip_horizontally(images), images)
        return Batch(self._pixels.from_bytes(images, generator, self._dtype).flatten(1), labels)
