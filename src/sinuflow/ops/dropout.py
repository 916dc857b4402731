r"""Dropout masks as a function of a seed, so that kernels and layers can compute the same mask.

Unit :math:`u` (counted through the whole flow) of row :math:`n` is dropped if

.. math:: m(m(u \oplus s_1) + m(n \oplus s_2)) < 2^{32} p

where :math:`m` is a 32-bit hash.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


class Dropout(NamedTuple):
    """The probability that a unit is dropped, and a seed of two 32-bit words."""

    rate: float
    seed: Tensor

    @classmethod
    def draw(cls, rate: float, device: torch.device) -> Dropout:
        """With a seed from the device's generator, which CUDA graphs advance at every replay."""
        return cls(rate, torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device=device))

    @property
    def threshold(self) -> int:
        """Units with a hash below it are dropped."""
        return min(_WORD, int(self.rate * 2**32))

    @property
    def scale(self) -> float:
        """The factor of the other units."""
        return 1 / (1 - self.rate)

    def factors(self, units: Tensor, rows: int) -> Tensor:
        """Zero or ``scale`` for these units and so many rows, of shape (units, rows).

        Example:
            >>> dropout = Dropout(0.25, torch.tensor([1, 2], dtype=torch.int32))
            >>> dropout.factors(torch.arange(1000), 100).mean().item()
            1.0...
        """
        first, second = (int(word) & _WORD for word in self.seed)
        indices = torch.arange(rows, device=units.device)
        hashed = _hash((_hash(units ^ first).unsqueeze(-1) + _hash(indices ^ second)) & _WORD)
        return torch.where(hashed < self.threshold, 0.0, self.scale)


def _hash(x: Tensor) -> Tensor:
    """Of 32-bit words, stored as int64."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & _WORD
    x = (x ^ (x >> 15)) * 0x846CA68B & _WORD
    return x ^ (x >> 16)
