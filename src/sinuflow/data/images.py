"""Alias of :mod:`sinuflow.bijections.pixels`."""

from ..bijections.pixels import LEVELS, Mapped, PixelMap, check_images, dequantize, flip_horizontally

__all__ = ["LEVELS", "Mapped", "PixelMap", "check_images", "dequantize", "flip_horizontally"]
