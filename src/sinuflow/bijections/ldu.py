"""The LDU block of the paper's flow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..registry import register
from .base import Chain
from .shift import LowerShift, UpperShift
from .sinusoidal import SinusoidalLayer


@register
class LDUBlock(Chain):
    r"""The paper's :math:`T_l^{-1} = L_l^{-1} \circ D_l^{-1} \circ U_l^{-1}`.

    An upper shift, a :class:`SinusoidalLayer`, a lower shift: the Jacobian is dense, and its
    determinant is that of the diagonal factor alone (Table "ldu").

    Example:
        >>> import torch
        >>> block = LDUBlock(features=3, hidden=(16,))
        >>> z, ladj = block(torch.randn(7, 3))
        >>> x, _ = block.inverse(z)
    """

    def __init__(self, features: int, context: int = 0, scales: int = 4, waves: int = 4, **options: Any) -> None:
        super().__init__(
            [
                UpperShift(features, context, **options),
                SinusoidalLayer(features, scales, waves, context),
                LowerShift(features, context, **options),
            ]
        )

    def layer_names(self) -> Iterator[str]:
        yield from ("lower", "scale", "upper")
