"""Flows: densities made of a bijection and a base."""

from . import image  # SinusoidalFlow.image, wherever SinusoidalFlow is imported from
from .bases import Base, StandardNormal, StudentT

__all__ = ["Base", "StandardNormal", "StudentT", "image"]
