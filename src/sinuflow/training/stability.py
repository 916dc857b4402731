r"""A penalty that keeps errors from growing on the way back from noise to images.

A shift of an image, :math:`s(x) = x + c(x)`, is inverted by a recursion along the raster, in which every pixel follows
from the ones before. Where c says too much about a pixel, with a gain above one for each of the next, an error grows
exponentially along a stroke. Likelihood does not mind, because the log-determinant of a shift is 0 whatever c is; so
flows of images learn such shifts, and bring a few of their images back badly.

Let δ be a small error of :math:`s(x)`, and :math:`u = s^{-1}(s(x) + \delta) - x` what becomes of it. The quotient

.. math:: q = \frac{\sum_i u_i^3 \, [s(x + u) - s(x)]_i}{\sum_i u_i^4}

is 1 if u is δ, and about the reciprocal of the growth where a few pixels' errors have grown, because the fourth powers
leave the others out. The penalty is :math:`\max(0, \rho - q)`, with gradients for the network alone, x and u being
given: it makes s tell x + u from x. Images whose errors do not grow are left alone.

What counts is how errors grow through all layers. On the way they become smooth: what one layer has magnified is much
the same along a stroke, and the next one magnifies that far more than noise that is independent from pixel to pixel. So
δ is the same over squares of pixels, of another size from image to image.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..bijections.base import Chain
from ..bijections.image import ImageLayer, ImageLDUBlock, ImageShift
from ..conditioners import PixelCNN
from ..conditioners.pixelcnn import Shape
from ..errors import ArgumentError
from ..solvers import SolverOptions

#: The standard deviation of δ: far above rounding, far below what matters in an image.
_ERROR = 0.05
#: Sizes of squares over which δ is the same, one after the other.
_SQUARES = (1, 2, 4, 8)
#: ρ: the largest error may be about this one's reciprocal times as large after a shift's inverse.
_QUOTIENT = 0.8
#: An error that has become larger than this is followed in its direction so far only: the flow has not learned from
#: images that are farther away.
_FAR = 10.0


class Stability:
    """The penalty of all shifts of a flow of images, times a weight, which it has at the end of training.

    It is estimated from one block at a time, whose number is called the turn: inverses cost more than the rest of a
    training step.

    Example:
        >>> import sinuflow
        >>> flow = sinuflow.SinusoidalFlow.image((1, 8, 8), blocks=3)
        >>> stability = Stability(flow, weight=500.0)
        >>> stability.turns
        3
        >>> penalty = stability.penalty(torch.randn(64, 5), None, turn=0)  # for 5 images, feature-major
        >>> float(penalty.detach())  # an untrained shift leaves errors as they are
        0.0
    """

    def __init__(self, flow: nn.Module, weight: float) -> None:
        chain = getattr(flow, "bijection", None)
        self._layers = list(chain) if isinstance(chain, Chain) else []
        self._blocks = [i for i, layer in enumerate(self._layers) if isinstance(layer, ImageLDUBlock)]
        self._weight = weight
        if not self._blocks:
            raise ArgumentError("stability is for flows of images, SinusoidalFlow.image(...): leave it out for others")
        layers = [layer for i in self._blocks for layer in self._layers[i].modules() if isinstance(layer, ImageLayer)]
        if not all(isinstance(layer, ImageShift) for layer in layers):
            raise ArgumentError("stability is for shifts alone: leave it out, or choose the conditioning shift")

    @property
    def turns(self) -> int:
        """How many blocks there are."""
        return len(self._blocks)

    def penalty(self, x: Tensor, context: Tensor | None, turn: int) -> Tensor:
        """An estimate of the penalty, from the shifts of one block; x (D, B) and context (K, B) are feature-major."""
        place = self._blocks[turn]
        with torch.no_grad():
            for layer in self._layers[:place]:
                x, _ = layer.transform(x, context if layer.context else None)
        return self._weight * self.turns * _of_block(self._layers[place], x, context)[0]

    @torch.no_grad()
    def judged(self, x: Tensor, context: Tensor | None) -> float:
        """The penalty of all blocks, by errors that are always the same: to compare weights by."""
        cuda = [x.device] if x.is_cuda else []
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(0)
            found = 0.0
            for layer in self._layers:
                if isinstance(layer, ImageLDUBlock):
                    more, x = _of_block(layer, x, context)
                    found += float(more)
                else:
                    x, _ = layer.transform(x, context if layer.context else None)
        return self._weight * found


def _of_block(block: nn.Module, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
    """The penalty of a block's shifts for its input x, without the weight, and what the block makes of x."""
    assert isinstance(block, ImageLDUBlock)
    found = x.new_zeros(())
    for layer in block:
        given = context if layer.context else None
        with torch.no_grad():
            z, _ = layer.transform(x, given)
        if isinstance(layer, ImageShift):
            assert isinstance(layer.conditioner, PixelCNN)
            error = _ERROR * squares_of_noise(z, layer.conditioner.shape)
            found = found + growth_penalty(layer, x, z, given, error)
        x = z
    return found, x


def emphasis(progress: float) -> float:
    """What the penalty is multiplied by when a share of all steps is done: it grows to its weight.

    What counts is where training ends, and before that, a flow learns better with less of it. In short runs on MNIST, a
    weight that grew to 200 in proportion to the steps cost less likelihood than a constant one of 100, and kept errors
    as small. The square, which grows later, and to a larger weight for the same cost, was not compared with that.

    Example:
        >>> emphasis(0.0), emphasis(0.5), emphasis(1.0)
        (0.0, 0.25, 1.0)
    """
    return progress**2


def clip_factor(norm: Tensor, clip: float | None) -> Tensor:
    """What the gradient of the likelihood is multiplied by, lest its norm be above ``clip``; and the penalty's with it.

    Were the two clipped together, larger weights would mean ever less: a block gets the penalty in one of many steps,
    and clipping cuts that one, while the likelihood pulls at the block in all of them. A norm that is no number, or too
    large to be one, has a factor that is none, so that the step is not made.

    Example:
        >>> clip_factor(torch.tensor([0.0, 4.0, 20.0, torch.inf]), 5.0)
        tensor([1.0000, 1.0000, 0.2500,    nan])
    """
    if clip is None:
        return torch.ones_like(norm)
    return torch.where(norm.isfinite(), (clip / (norm + 1e-6)).clamp(max=1.0), torch.nan)


def squares_of_noise(like: Tensor, shape: Shape) -> Tensor:
    """Standard normal noise for feature-major images (D, B) of a shape (C, H, W), the same over squares of pixels.

    The first image has squares of 1 by 1 pixel, the next ones of 2, 4 and 8, and so on again; channels have the same.

    Example:
        >>> noise = squares_of_noise(torch.empty(36, 4), (1, 6, 6)).mT.reshape(4, 6, 6)
        >>> [image.unique().numel() for image in noise]
        [36, 9, 4, 1]
    """
    channels, height, width = shape
    noise = torch.randn_like(like).view(channels, height, width, -1)
    for turn, size in enumerate(_SQUARES):
        if size > 1:
            rows, columns = (torch.arange(n, device=like.device) // size * size for n in (height, width))
            mine = noise[:1, ..., turn :: len(_SQUARES)]
            noise[..., turn :: len(_SQUARES)] = mine[:, rows][:, :, columns]
    return noise.view(like.shape)


def growth_penalty(shift: ImageShift, x: Tensor, z: Tensor, context: Tensor | None, error: Tensor) -> Tensor:
    r"""The mean of :math:`\max(0, \rho - q)` over a feature-major batch x (D, B), of which the shift makes z.

    The ``error`` of z, δ above, is (D, B) too.

    Example:
        >>> shift, x = ImageShift((1, 4, 4)), torch.randn(16, 5)
        >>> z, _ = shift.transform(x, None)
        >>> bool(growth_penalty(shift, x, z, None, 0.05 * torch.randn(16, 5)) == 0)  # it starts as the identity
        True
    """
    with torch.no_grad():
        u = shift.invert(z + error, context, SolverOptions()).x - x
        # A pixel that overflows says nothing of how; the ones before it are as they would be without it.
        u = torch.where(u.isfinite(), u, 0)
        u = torch.where((u != 0).any(0), u, error)
        largest = u.abs().amax(0)
        relative = u / largest
        cubes = relative**3
        weight = cubes / (cubes * relative).sum(0)
        # s(x + u) - s(x) is the error by construction. By kernels for training, with half of the digits, it is less
        # exact: good enough for gradients, but not to tell who is below the threshold.
        missing = _QUOTIENT - (weight * (error / largest)).sum(0)
        length = largest.clamp(max=_FAR)
    twice = None if context is None else torch.cat([context, context], 1)
    both, _ = shift.transform(torch.cat([x + length * relative, x], 1), twice)
    moved, still = both.chunk(2, 1)
    quotient = (weight * (moved - still)).sum(0) / length
    # The value is the exact one's, and the gradient is that of the quotient.
    exact = missing + (quotient.detach() - quotient)
    return exact.clamp(min=0).mean()
