"""Flows: densities made of a bijection and a base."""

from .bases import Base, StandardNormal, StudentT

__all__ = ["Base", "StandardNormal", "StudentT"]
