"""L and U of the paper: autoregressive shifts."""

from __future__ import annotations

from typing import Any

from ..conditioners import MADE
from ..registry import register
from ..transformers import Shift
from .autoregressive import Autoregressive


@register
class LowerShift(Autoregressive):
    r"""The paper's :math:`L_l^{-1}`: :math:`z_i = x_i + c_i(x_{<i})`, with a lower unitriangular Jacobian.

    Example:
        >>> import torch
        >>> shift = LowerShift(features=3, hidden=(16,))
        >>> z, ladj = shift(torch.randn(7, 3))
        >>> bool((ladj == 0).all())
        True
    """

    def __init__(self, features: int, context: int = 0, **options: Any) -> None:
        super().__init__(Shift(), MADE(features, context=context, **options))


@register
class UpperShift(Autoregressive):
    r"""The paper's :math:`U_l^{-1}`: :math:`z_i = x_i + c_i(x_{>i})`, with an upper unitriangular Jacobian.

    Example:
        >>> import torch
        >>> shift = UpperShift(features=3, hidden=(16,))
        >>> z, ladj = shift(torch.randn(7, 3))
        >>> bool((z[:, 2] == shift.inverse(z)[0][:, 2]).all())
        True
    """

    def __init__(self, features: int, context: int = 0, **options: Any) -> None:
        super().__init__(Shift(), MADE(features, context=context, **options), "reverse")
