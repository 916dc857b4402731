"""Alias of :mod:`sinuflow.bijections.pixels`, under the name that version 0.1 documents."""

from .bijections.pixels import LEVELS, Mapped, PixelMap, check_images, dequantize, flip_horizontally

__all__ = ["LEVELS", "Mapped", "PixelMap", "check_images", "dequantize", "flip_horizontally"]
