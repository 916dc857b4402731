"""What ``flow.invert`` answers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Inversion:
    r"""An inverse with the evidence for it, sample by sample.

    ``residual`` is measured end to end: :math:`\max_i |T^{-1}(x)_i - z_i|`. ``iterations`` is the
    largest number that any layer took. ``converged`` says whether every layer met its tolerance,
    and, for the certified solver, whether the residual is within
    :math:`\text{atol} + \text{rtol} \max_i |z_i|`.
    """

    x: Tensor
    ladj: Tensor
    iterations: Tensor
    residual: Tensor
    converged: Tensor
