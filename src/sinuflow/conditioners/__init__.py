"""Networks that compute a transformer's parameters from the features before it."""

from .base import Conditioner, Local
from .made import MADE
from .pixelcnn import PixelCNN

__all__ = ["MADE", "Conditioner", "Local", "PixelCNN"]
