"""Flows of other libraries for :func:`sinuflow.fit`."""

from ..flows.zuko import ZukoFlow

__all__ = ["ZukoFlow"]
