"""Images of bytes, among the data; the maps themselves are in :mod:`sinuflow.pixels`, where training finds them."""

from ..pixels import LEVELS, Mapped, PixelMap, check_images, dequantize, flip_horizontally

__all__ = ["LEVELS", "Mapped", "PixelMap", "check_images", "dequantize", "flip_horizontally"]
