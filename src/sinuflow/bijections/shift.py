"""L and U: autoregressive shifts."""

from __future__ import annotations

from typing import Any

from ..registry import register
from .autoregressive import AutoregressiveLayer


@register
class LowerShift(AutoregressiveLayer):
    r"""The paper's :math:`L_l^{-1}`: :math:`z_i = x_i + c_i(x_{<i})`, with a lower unitriangular Jacobian.

    Example:
        >>> import torch
        >>> shift = LowerShift(features=3, hidden=(16,))
        >>> z, ladj = shift(torch.randn(7, 3))
        >>> bool((ladj == 0).all())
        True
    """

    def __init__(self, features: int, context: int = 0, **options: Any) -> None:
        super().__init__(features, context, scales=0, waves=0, reverse=False, **options)


@register
class UpperShift(AutoregressiveLayer):
    r"""The paper's :math:`U_l^{-1}`: :math:`z_i = x_i + c_i(x_{>i})`, with an upper unitriangular Jacobian.

    Example:
        >>> import torch
        >>> shift = UpperShift(features=3, hidden=(16,))
        >>> z, ladj = shift(torch.randn(7, 3))
        >>> bool((z[:, 2] == shift.inverse(z)[0][:, 2]).all())
        True
    """

    def __init__(self, features: int, context: int = 0, **options: Any) -> None:
        super().__init__(features, context, scales=0, waves=0, reverse=True, **options)
