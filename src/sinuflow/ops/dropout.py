r"""Which hidden units are dropped, told from a seed: so that kernels and layers can drop the same ones.

Unit :math:`u` (counted through the whole flow) of row :math:`n` is dropped if

.. math:: m(m(u \oplus s_1) + m(n \oplus s_2)) < 2^{32} p

where :math:`m` mixes the bits of a 32-bit number so well that its values pass for random ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


class Dropout(NamedTuple):
    """The probability that a unit is dropped, and two 32-bit numbers."""

    rate: float
    seed: Tensor

    @classmethod
    def draw(cls, rate: float, device: torch.device) -> Dropout:
        """With a fresh seed, from the generator of the device: so that recorded steps get another one each time."""
        return cls(rate, torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device=device))

    @property
    def threshold(self) -> int:
        """Below which a unit's number means that it is dropped."""
        return min(_WORD, int(self.rate * 2**32))

    @property
    def scale(self) -> float:
        """What the others are multiplied with."""
        return 1 / (1 - self.rate)

    def factors(self, units: Tensor, rows: int) -> Tensor:
        """Zero or ``scale`` for these units and so many rows, of shape (units, rows).

        Example:
            >>> dropout = Dropout(0.25, torch.tensor([1, 2], dtype=torch.int32))
            >>> dropout.factors(torch.arange(1000), 100).mean().item()
            1.0...
        """
        first, second = (int(number) & _WORD for number in self.seed)
        numbers = torch.arange(rows, device=units.device)
        mixed = _mix((_mix(units ^ first).unsqueeze(-1) + _mix(numbers ^ second)) & _WORD)
        return torch.where(mixed < self.threshold, 0.0, self.scale)


def _mix(x: Tensor) -> Tensor:
    """Of 32-bit numbers in 64 bits."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D & _WORD
    x = x ^ (x >> 15)
    x = x * 0x846CA68B & _WORD
    return x ^ (x >> 16)
