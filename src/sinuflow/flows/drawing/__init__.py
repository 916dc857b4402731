"""A flow as a picture, with the numbers of the object that it is made from."""

from .anatomy import Anatomy, Part, anatomy
from .picture import Drawing, svg_of

__all__ = ["Anatomy", "Drawing", "Part", "anatomy", "svg_of"]
