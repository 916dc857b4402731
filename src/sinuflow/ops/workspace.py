"""Memory that hand-written passes use again and again.

A large block goes back to the system when it is freed, and mapping its pages anew costs about as
much as filling it. A flow's networks have the same shape, so a few buffers serve all of them.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor


class Workspace(threading.local):
    """A few buffers for each thread; a buffer is replaced when another shape is asked for."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, slot: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """The buffer in a slot, with whatever it holds; valid until the slot is taken again."""
        found = self._buffers.get(slot)
        if found is None or found.shape != shape or found.dtype != like.dtype or found.device != like.device:
            # Not an inference tensor, whatever the mode: it will be used in other modes as well.
            with torch.inference_mode(False):
                found = torch.empty(shape, dtype=like.dtype, device=like.device)
            self._buffers[slot] = found
        return found


WORKSPACE = Workspace()
