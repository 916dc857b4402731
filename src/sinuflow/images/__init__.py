"""Fitted images: from bytes to a model that scores them in bits and draws new ones."""

from .fitting import fit_images
from .model import ImageModel
from .pictures import Pictures, open_pictures

__all__ = ["ImageModel", "Pictures", "fit_images", "open_pictures"]
