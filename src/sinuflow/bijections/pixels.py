"""The logit map of images: dequantized bytes to real numbers, and back, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ArgumentError, DataError

#: A byte has this many values.
LEVELS = 256


class Mapped(NamedTuple):
    """Mapped values of a batch, and the log-determinant of every row."""

    value: Tensor
    ladj: Tensor


@dataclass(frozen=True)
class PixelMap:
    r"""The logit of pixels in [0, 1], :math:`x = \operatorname{logit}(\alpha + (1 - 2 \alpha) u)`.

    A byte y is dequantized, :math:`u = (y + U) / 256` with uniform noise U in [0, 1) (:func:`dequantize`), which turns
    a density of u into a lower bound of the byte's probability. The logit maps [0, 1] to the real numbers, and α > 0
    keeps them finite. As in Papamakarios et al. (2017), α is 1e-6 for MNIST and 0.05 for CIFAR-10.

    Example:
        >>> pixels = PixelMap(alpha=0.05)
        >>> images = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
        >>> x, ladj = pixels.to_logits(dequantize(images, dtype=torch.float64))
        >>> bool((pixels.to_bytes(x) == images).all())
        True
    """

    alpha: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < 0.5:
            raise ArgumentError(f"alpha must be at least 0 and below 0.5; got {self.alpha}")

    def to_logits(self, u: Tensor) -> Mapped:
        """x of the shape of ``u`` (B, ...), whose values are in [0, 1], and the log-determinant dx/du of shape (B,)."""
        if not u.is_floating_point():
            raise ArgumentError(f"u must be numbers between 0 and 1, as of dequantize; got dtype {u.dtype}")
        if u.numel() and not bool(((u >= 0) & (u <= 1)).all()):
            raise ArgumentError("u must have values between 0 and 1: dequantize images of bytes first")
        x = self._logit(u)
        return Mapped(x, self.ladj(x))

    def from_bytes(
        self, images: Tensor, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """x of images of bytes (N, C, H, W): dequantization and logit, without host synchronization.

        Example:
            >>> images = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
            >>> x = PixelMap(alpha=0.05).from_bytes(images, dtype=torch.float64)
            >>> bool((PixelMap(alpha=0.05).to_bytes(x) == images).all())
            True
        """
        return self._logit(dequantize(images, generator, dtype))

    def to_unit(self, x: Tensor) -> Mapped:
        """The inverse: u, and the log-determinant du/dx. Where ``x`` is outside of the map's range, u leaves [0, 1]."""
        u = (torch.sigmoid(x) - self.alpha) / (1 - 2 * self.alpha)
        return Mapped(u, -self.ladj(x))

    def to_bytes(self, x: Tensor) -> Tensor:
        """The bytes in whose cells ``x`` lies, of the same shape; values outside of all cells are clamped."""
        return (LEVELS * self.to_unit(x).value).floor().clamp(0, LEVELS - 1).to(torch.uint8)

    def bits_per_dimension(self, log_density: Tensor, x: Tensor) -> Tensor:
        r"""Bits per dimension of bytes, from the log-density (B,) of ``x`` (B, ...) in nats.

        .. math:: -\frac{\log p(x) + \log |dx/du| - D \log 256}{D \log 2}

        This is the density of pixels from 0 to 256, whose cells have size 1, with the log-determinant at every image.

        Example:
            >>> x, ladj = PixelMap().to_logits(torch.rand(5, 784))
            >>> uniform = -ladj  # the density of x if that of u is uniform
            >>> PixelMap().bits_per_dimension(uniform, x).round(decimals=4).tolist()
            [8.0, 8.0, 8.0, 8.0, 8.0]
        """
        if log_density.shape != x.shape[:1]:
            raise ArgumentError(
                f"log_density must have one number for each of the {len(x)} images of x; "
                f"got shape {tuple(log_density.shape)}"
            )
        size = x[0].numel() if len(x) else 1
        return -((log_density + self.ladj(x)) / size - math.log(LEVELS)) / math.log(2)

    def ladj(self, x: Tensor) -> Tensor:
        """The log-determinant dx/du at ``x`` (B, ...), of shape (B,)."""
        # dx/ds = 1 / (s (1 - s)) with s = sigmoid(x): as a function of x it is accurate near 0 and 1.
        log_derivative = F.softplus(x) + F.softplus(-x) + math.log1p(-2 * self.alpha)
        return log_derivative.flatten(1).sum(1)

    def _logit(self, u: Tensor) -> Tensor:
        s = self.alpha + (1 - 2 * self.alpha) * u
        # 1 - s as a sum of its own: with a small alpha, subtraction would cancel near u = 1.
        rest = self.alpha + (1 - 2 * self.alpha) * (1 - u)
        return s.log() - rest.log()


def dequantize(images: Tensor, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""Dequantize images of bytes (N, C, H, W): :math:`u = (y + U) / 256` in [0, 1), with uniform noise U.

    The noise is drawn on the generator's device, so that one of the CPU gives the same noise for any device.

    Example:
        >>> u = dequantize(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8))
        >>> bool(((u >= 255 / 256) & (u < 1)).all())
        True
    """
    check_images(images)
    place = images.device if generator is None else generator.device
    noise = torch.rand(images.shape, generator=generator, dtype=dtype, device=place).to(images.device)
    # Rounding must not move a pixel into the next cell.
    inside = noise.clamp_(max=1 - LEVELS * torch.finfo(dtype).eps)
    return (images + inside) / LEVELS


def flip_horizontally(images: Tensor) -> Tensor:
    """The images (..., C, H, W), flipped horizontally.

    Example:
        >>> flip_horizontally(torch.arange(3).view(1, 1, 1, 3)).flatten().tolist()
        [2, 1, 0]
    """
    return images.flip(-1)


def check_images(images: Tensor) -> None:
    """Refuse anything but a batch of images of bytes."""
    if not isinstance(images, Tensor):
        raise DataError(f"images must be a tensor of shape (N, C, H, W) and dtype uint8; got {type(images).__name__}")
    if images.dtype != torch.uint8:
        raise DataError(
            f"images must have dtype uint8, with values from 0 to 255; got {images.dtype}: "
            "multiply values from 0 to 1 by 255, round them, and convert them with .to(torch.uint8)"
        )
    if images.dim() != 4 or 0 in images.shape[1:]:
        raise DataError(f"images must have shape (N, C, H, W); got {tuple(images.shape)}")
