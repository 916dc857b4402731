"""The networks that compute a transformer's parameters from the features before it."""

from .made import MADE

__all__ = ["MADE"]
