"""Reusable buffers for hand-written forward and backward passes.

Large blocks go back to the system when freed, and mapping their pages again costs about as much as filling them.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor


class Workspace(threading.local):
    """Named buffers of each thread; a buffer is replaced when another shape, dtype or device is requested."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, slot: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """An uninitialized buffer, valid until its slot is taken again."""
        buffer = self._buffers.get(slot)
        if buffer is None or buffer.shape != shape or buffer.dtype != like.dtype or buffer.device != like.device:
            with torch.inference_mode(False):  # buffers are used in other modes as well
                buffer = torch.empty(shape, dtype=like.dtype, device=like.device)
            self._buffers[slot] = buffer
        return buffer

    def remove(self, slot: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A buffer as of :meth:`take` that nothing else uses until :meth:`put` returns it."""
        buffer = self.take(slot, shape, like)
        del self._buffers[slot]
        return buffer

    def put(self, slot: str, buffer: Tensor) -> None:
        """Return a removed buffer for reuse."""
        self._buffers[slot] = buffer


WORKSPACE = Workspace()
