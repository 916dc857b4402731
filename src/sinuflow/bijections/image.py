"""The LDU block of images: shifts by a PixelCNN, or shifts and scales."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..conditioners.pixelcnn import PixelCNN
from ..flow_config import check_image_conditioning, image_shape
from ..ops.pixel_affine import scaled
from ..ops.pixelcnn_fused import has_float64_kernels, pixelcnn_outputs
from ..ops.select import fused_allowed
from ..registry import register
from ..solvers import SolverOptions
from .affine import ElementwiseAffine
from .base import Bijection, Chain, LayerInverse, log_normal
from .batch_splitting import split_if_out_of_memory
from .image_inverse import image_inverse
from .sinusoidal import SinusoidalScale


class ImageLayer(Bijection):
    """A map of an image by a :class:`~sinuflow.conditioners.pixelcnn.PixelCNN`, with so many ``outputs`` of it.

    Images are vectors here as everywhere, flattened as (C, H, W): ``x.flatten(-3)``.

    Args:
        shape: (C, H, W).
        context: the dimension of the context; 0 for none.
        reverse: whether the last pixel comes first: the network sees the image upside down, all of channels, rows and
            columns reversed.
        options: ``channels`` and ``residual_blocks`` of the network.
    """

    outputs: int

    def __init__(self, shape: Sequence[int], context: int = 0, reverse: bool = False, **options: Any) -> None:
        channels, height, width = image_shape(shape)
        super().__init__(channels * height * width, context)
        self.reverse = reverse
        self.conditioner = PixelCNN((channels, height, width), context, outputs=self.outputs, **options)

    def told(self, x: Tensor, context: Tensor | None) -> Tensor:
        """What the network says of x, as :mod:`sinuflow.ops.pixel_affine` has it."""
        return pixelcnn_outputs(self.conditioner.network(), x, context, self.reverse)

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        return scaled(self.told(x, context), len(x))

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> list[LayerInverse]:
        z = z.flip(0) if self.reverse else z
        answer = image_inverse(self.conditioner, z, context, options)
        return [answer._replace(x=answer.x.flip(0)) if self.reverse else answer]


@register
class ImageShift(ImageLayer):
    r"""The map :math:`z = x + c(x)` of an image, in which c sees only the pixels before, in raster order.

    The paper's :math:`L_l^{-1}` for images; with ``reverse`` it is :math:`U_l^{-1}`. In raster order (the channels of a
    pixel together) the Jacobian is unitriangular, so that the log-determinant is 0. Arguments are those of
    :class:`ImageLayer`.

    Example:
        >>> shift = ImageShift(shape=(1, 8, 8))
        >>> x = torch.randn(5, 1, 8, 8)
        >>> z, ladj = shift(x.flatten(-3))
        >>> back, _ = shift.inverse(z)
        >>> bool((ladj == 0).all()), back.view(x.shape).allclose(x)
        (True, True)
    """

    outputs = 1


@register
class ImageAffine(ImageLayer):
    r"""The map :math:`z = e^{s(x)} (x + c(x))` of an image, in which c and s see only the pixels before.

    A shift alone says where a pixel is expected; s says how surely, which in images differs from place to place: a sky
    is smooth, and a meadow is not. It is bounded, :math:`s = 2 \tanh(r/2)`. In raster order the Jacobian is triangular,
    and the log-determinant is :math:`\sum_i s_i`. The inverse is ordered substitution, as for a shift. Arguments are
    those of :class:`ImageLayer`.

    Example:
        >>> affine = ImageAffine(shape=(1, 8, 8))
        >>> x = torch.randn(5, 64)
        >>> z, ladj = affine(x)
        >>> back, _ = affine.inverse(z)
        >>> back.allclose(x)
        True
    """

    outputs = 2


#: What the networks of a block compute, and the layer that it makes.
CONDITIONINGS: dict[str, type[ImageLayer]] = {"shift": ImageShift, "affine": ImageAffine}


@register
class ImageLDUBlock(Chain):
    r"""The paper's :math:`T_l^{-1} = L_l^{-1} \circ D_l^{-1} \circ U_l^{-1}` for images.

    With ``conditioning="affine"``, the networks compute a bounded log-scale beside each shift, and the triangular maps
    have the diagonals :math:`e^s`. The networks see the context, and the scales of D do not: what a context would say
    to every wave of every pixel takes millions of weights.

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
        **options: Any,
    ) -> None:
        check_image_conditioning(conditioning)
        kind = CONDITIONINGS[conditioning]
        upper = kind(shape, context, reverse=True, **options)
        lower = kind(shape, context, reverse=False, **options)
        super().__init__([upper, SinusoidalScale(upper.features, scales, waves), lower])

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        upper, scale, lower = self
        if not (isinstance(upper, ImageShift) and isinstance(lower, ImageShift)):
            return self.layer_by_layer(x, context)
        z, ladj = scale.transform(upper.told(x, context), None)
        return lower.told(z, context), ladj  # no zeros are added up

    def layer_names(self) -> Iterator[str]:
        yield from ("lower", "scale", "upper")


class ImageChain(Chain):
    """A flow of images: LDU blocks, and an elementwise affine map at the end.

    What is rounded between two layers, inverses may magnify. So where a GPU's kernels take doubles, float32 images
    pass from layer to layer as float64, and only what comes out is rounded: if nobody wants gradients, because
    training does not need it.
    """

    @split_if_out_of_memory
    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        if not self._finely(x, context):
            return super().transform(x, context)
        z, ladj = self.layer_by_layer(x.double(), context)
        return z.to(x.dtype), ladj.to(x.dtype)

    @split_if_out_of_memory
    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        if not self._finely(x, context):
            return super().log_density(x, context)
        z, ladj = self.layer_by_layer(x.double(), context)
        return (log_normal(z) + ladj).to(x.dtype)

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> list[LayerInverse]:
        if options.method != "certified" or not self._finely(z, context):
            return super().invert(z, context, options)
        layers: list[LayerInverse] = []
        x = z.double()
        for bijection in reversed(list(self)):
            fine = bijection.invert(x, context if bijection.context else None, options)
            x = fine[-1].x
            layers += [layer.to(z.dtype) for layer in fine]
        return layers

    def _finely(self, x: Tensor, context: Tensor | None) -> bool:
        if x.dtype != torch.float32 or not fused_allowed() or self._needs_gradients(x, context):
            return False
        first = next(layer for layer in self.modules() if isinstance(layer, ImageLayer))  # all are alike
        return has_float64_kernels(first.conditioner.network(), x)


def image_chain(shape: Sequence[int], context: int, blocks: int, scales: int, waves: int, **options: Any) -> Chain:
    """A flow of images with so many LDU blocks."""
    layers: list[Bijection] = [ImageLDUBlock(shape, context, scales, waves, **options) for _ in range(blocks)]
    return ImageChain([*layers, ElementwiseAffine(layers[0].features)])
