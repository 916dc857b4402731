"""The LDU block of images, with a PixelCNN as conditioner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..checks import choice, image_shape
from ..conditioners import PixelCNN
from ..ops.pixelcnn_fused import has_float64_kernels
from ..ops.select import fused_allowed
from ..registry import register
from ..solvers import Inversion, SolverOptions
from ..transformers import Affine, Shift, Transformer
from .affine import ElementwiseAffine
from .autoregressive import Autoregressive
from .base import Bijection, Chain
from .sinusoidal import SinusoidalLayer


class ImageLayer(Autoregressive):
    """An autoregressive bijection of images, flattened as (C, H, W), whose conditioner is a PixelCNN.

    With ``reverse`` the last pixel comes first: channels, rows and columns are all reversed. ``channels`` and
    ``residual_blocks`` are those of :class:`~sinuflow.conditioners.PixelCNN`.
    """

    kind: type[Transformer]

    def __init__(
        self,
        shape: Sequence[int],
        context: int = 0,
        reverse: bool = False,
        *,
        channels: int = 16,
        residual_blocks: int = 2,
    ) -> None:
        transformer = self.kind()
        outputs = transformer.num_parameters
        conditioner = PixelCNN(image_shape(shape), context, channels, residual_blocks, outputs)
        super().__init__(transformer, conditioner, "reverse" if reverse else "forward")


@register
class ImageShift(ImageLayer):
    r"""The map :math:`z = x + c(x)` of an image, in which c depends on the preceding pixels alone, in raster order.

    The paper's :math:`L_l^{-1}` for images; with ``reverse`` it is :math:`U_l^{-1}`. The log-determinant is 0.
    Arguments are those of :class:`ImageLayer`.

    Example:
        >>> shift = ImageShift(shape=(1, 8, 8))
        >>> x = torch.randn(5, 1, 8, 8)
        >>> z, ladj = shift(x.flatten(-3))
        >>> y, _ = shift.inverse(z)
        >>> bool((ladj == 0).all()), y.view(x.shape).allclose(x)
        (True, True)
    """

    kind = Shift


@register
class ImageAffine(ImageLayer):
    r"""The map :math:`z = e^{s(x)} (x + c(x))` of an image, in which c and s depend on the preceding pixels alone.

    The log-scale is bounded, :math:`s = 2 \tanh(r/2)`, and the log-determinant is :math:`\sum_i s_i`. Arguments are
    those of :class:`ImageLayer`.

    Example:
        >>> affine = ImageAffine(shape=(1, 8, 8))
        >>> x = torch.randn(5, 64)
        >>> z, ladj = affine(x)
        >>> affine.inverse(z)[0].allclose(x)
        True
    """

    kind = Affine


ImageConditioning = Literal["shift", "affine"]
CONDITIONINGS: dict[str, type[ImageLayer]] = {"shift": ImageShift, "affine": ImageAffine}


@register
class ImageLDUBlock(Chain):
    r"""The paper's :math:`T_l^{-1} = L_l^{-1} \circ D_l^{-1} \circ U_l^{-1}` for images.

    With ``conditioning="affine"``, the networks also compute a bounded log-scale for each pixel, and the triangular
    Jacobians have the diagonals :math:`e^s`. Only the networks depend on the context: parameters of all waves of all
    pixels as functions of the context would take millions of weights.

    Example:
        >>> block = ImageLDUBlock(shape=(1, 8, 8))
        >>> z, ladj = block(torch.randn(5, 64))
        >>> x, _ = block.inverse(z)
    """

    def __init__(
        self,
        shape: Sequence[int],
        context: int = 0,
        scales: int = 4,
        waves: int = 4,
        conditioning: str = "shift",
        *,
        channels: int = 16,
        residual_blocks: int = 2,
    ) -> None:
        choice("conditioning of images", conditioning, CONDITIONINGS)
        kind = CONDITIONINGS[conditioning]
        upper = kind(shape, context, reverse=True, channels=channels, residual_blocks=residual_blocks)
        lower = kind(shape, context, reverse=False, channels=channels, residual_blocks=residual_blocks)
        super().__init__([upper, SinusoidalLayer(upper.features, scales, waves), lower])

    def layer_names(self) -> Iterator[str]:
        yield from ("lower", "scale", "upper")


@register
class ImageChain(Chain):
    """The bijection of an image flow: LDU blocks, and an elementwise affine map at the end.

    Inverses may magnify what is rounded between two layers. So where a GPU has float64 kernels and no gradients are
    needed, float32 images pass from layer to layer as float64, and only the result is rounded.
    """

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        z, ladj = super().transform(self._widened(x, context), context)
        return z.to(x.dtype), ladj.to(x.dtype)

    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        return super().log_density(self._widened(x, context), context).to(x.dtype)

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        wide = self._widened(z, context) if options.method == "certified" else z
        result = super().invert(wide, context, options)
        return result if wide is z else result.to(z.dtype)

    def _widened(self, x: Tensor, context: Tensor | None) -> Tensor:
        if x.dtype != torch.float32 or not fused_allowed() or self._needs_gradients(x, context):
            return x
        network = next(m for m in self.modules() if isinstance(m, PixelCNN))  # all have the same shape
        return x.double() if has_float64_kernels(network.network(), x) else x


def image_chain(shape: Sequence[int], context: int, blocks: int, scales: int, waves: int, **options: Any) -> Chain:
    """The bijection of an image flow."""
    layers: list[Bijection] = [ImageLDUBlock(shape, context, scales, waves, **options) for _ in range(blocks)]
    return ImageChain([*layers, ElementwiseAffine(layers[0].features)])
