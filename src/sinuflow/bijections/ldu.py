"""L, U and the LDU block of the paper's flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ..conditioners import MADE
from ..registry import register
from ..transformers import Shift
from .autoregressive import Autoregressive, Order
from .base import Chain
from .sinusoidal import SinusoidalLayer


class _MaskedShift(Autoregressive):
    """A shift by a masked network."""

    _order: ClassVar[Order]

    def __init__(
        self,
        features: int,
        context: int = 0,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: str = "relu",
        residual: bool = False,
        dropout: float = 0.0,
        squash_width: float | None = None,
    ) -> None:
        network = MADE(features, 1, hidden, context, activation, residual, dropout, squash_width)
        super().__init__(Shift(), network, self._order)


@register
class LowerShift(_MaskedShift):
    r"""The paper's :math:`L_l^{-1}`: :math:`z_i = x_i + c_i(x_{<i})`, with a lower unitriangular Jacobian.

    Example:
        >>> import torch
        >>> shift = LowerShift(features=3, hidden=(16,))
        >>> z, ladj = shift(torch.randn(7, 3))
        >>> bool((ladj == 0).all())
        True
    """

    _order = "forward"


@register
class UpperShift(_MaskedShift):
    r"""The paper's :math:`U_l^{-1}`: :math:`z_i = x_i + c_i(x_{>i})`, with an upper unitriangular Jacobian.

    Example:
        >>> import torch
        >>> shift = UpperShift(features=3, hidden=(16,))
        >>> z, ladj = shift(torch.randn(7, 3))
        >>> bool((z[:, 2] == shift.inverse(z)[0][:, 2]).all())
        True
    """

    _order = "reverse"


@register
class LDUBlock(Chain):
    r"""The paper's :math:`T_l^{-1} = L_l^{-1} \circ D_l^{-1} \circ U_l^{-1}`.

    An upper shift, a :class:`SinusoidalLayer`, a lower shift: the Jacobian is dense, and its determinant is that of the
    diagonal factor alone (Table "ldu").

    Example:
        >>> import torch
        >>> block = LDUBlock(features=3, hidden=(16,))
        >>> z, ladj = block(torch.randn(7, 3))
        >>> x, _ = block.inverse(z)
    """

    def __init__(
        self,
        features: int,
        context: int = 0,
        scales: int = 4,
        waves: int = 4,
        *,
        hidden: Sequence[int] = (256, 256),
        activation: str = "relu",
        residual: bool = False,
        dropout: float = 0.0,
        squash_width: float | None = None,
    ) -> None:
        options = dict[str, Any](
            hidden=hidden, activation=activation, residual=residual, dropout=dropout, squash_width=squash_width
        )
        upper = UpperShift(features, context, **options)
        scale = SinusoidalLayer(features, scales, waves, context)
        super().__init__([upper, scale, LowerShift(features, context, **options)])

    def layer_names(self) -> Iterator[str]:
        yield from ("lower", "scale", "upper")
