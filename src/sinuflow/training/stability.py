r"""A penalty on image flows whose inverse amplifies errors.

An image shift :math:`s(x) = x + c(x)` is inverted by a recursion along the raster, in which every pixel depends on the
ones before. Where the gain of c from pixel to pixel exceeds one, errors grow exponentially along a stroke. The
likelihood does not penalize this, because the log-determinant of a shift is 0 for any c.

Let δ be a small perturbation of :math:`s(x)`, and :math:`u = s^{-1}(s(x) + \delta) - x` the resulting error. The
quotient

.. math:: q = \frac{\sum_i u_i^3 \, [s(x + u) - s(x)]_i}{\sum_i u_i^4}

is 1 if u is δ, and about the reciprocal of the growth where the errors of a few pixels have grown, because fourth
powers single these out. The penalty is :math:`\max(0, \rho - q)`, differentiated with respect to the network alone,
for constant x and u: it makes s separate x + u from x. Images whose errors do not grow contribute no gradient.

What counts is the growth through all layers. An error that one layer has amplified is smooth along a stroke, and the
next layer amplifies smooth errors far more than pixelwise independent noise. So δ is constant over square patches, of
another size from image to image.
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

#: Standard deviation of δ: far above rounding errors, far below visible differences.
_ERROR = 0.05
#: Patch sizes of δ, cycled over the images of a batch.
_PATCHES = (1, 2, 4, 8)
#: ρ: the inverse of a shift may amplify the largest error by about 1/ρ.
_QUOTIENT = 0.8
#: Longer errors u are scaled down to this length, because the flow is untrained so far from the data.
_FAR = 10.0


class Stability:
    """The penalty over all shifts of an image flow, times ``weight``.

    A training step estimates it from one block of layers, because inverses cost more than the rest of the step.

    Example:
        >>> import sinuflow
        >>> flow = sinuflow.SinusoidalFlow.image((1, 8, 8), blocks=3)
        >>> stability = Stability(flow, weight=500.0)
        >>> stability.blocks
        3
        >>> penalty = stability.penalty(torch.randn(64, 5), None, block=0)  # for 5 images, feature-major
        >>> float(penalty.detach())  # an untrained shift does not amplify errors
        0.0
    """

    def __init__(self, flow: nn.Module, weight: float) -> None:
        chain = getattr(flow, "bijection", None)
        self._layers = list(chain) if isinstance(chain, Chain) else []
        self._blocks = [i for i, layer in enumerate(self._layers) if isinstance(layer, ImageLDUBlock)]
        self._weight = weight
        #: The number of blocks with shifts.
        self.blocks = len(self._blocks)
        if not self._blocks:
            raise ArgumentError("stability is for image flows, SinusoidalFlow.image(...): leave it out for others")
        layers = [layer for i in self._blocks for layer in self._layers[i].modules() if isinstance(layer, ImageLayer)]
        if not all(isinstance(layer, ImageShift) for layer in layers):
            raise ArgumentError("stability is for shifts alone: leave it out, or choose the conditioning shift")

    def penalty(self, x: Tensor, context: Tensor | None, block: int) -> Tensor:
        """An estimate of the penalty from one block; x (D, B) and context (K, B) are feature-major."""
        return self._weight * self.blocks * self._sum(x, context, self._blocks[block : block + 1])

    @torch.no_grad()
    def evaluate(self, x: Tensor, context: Tensor | None) -> float:
        """The penalty of all blocks for fixed noise, to compare weights by."""
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            torch.manual_seed(0)
            return self._weight * float(self._sum(x, context, self._blocks))

    def _sum(self, x: Tensor, context: Tensor | None, blocks: list[int]) -> Tensor:
        """The sum of the penalties of all shifts in the blocks with these indices."""
        total = x.new_zeros(())
        for i, layer in enumerate(self._layers[: blocks[-1] + 1]):
            for part in layer if i in blocks and isinstance(layer, Chain) else [layer]:
                own = context if part.context else None
                with torch.no_grad():
                    z, _ = part.transform(x, own)
                if isinstance(part, ImageShift):
                    assert isinstance(part.conditioner, PixelCNN)
                    error = _ERROR * patch_noise(z, part.conditioner.shape)
                    total = total + growth_penalty(part, x, z, own, error)
                x = z
        return total


def clip_factor(norm: Tensor, clip: float) -> Tensor:
    """The factor that clips the likelihood's gradient of this norm; the penalty's gradient is multiplied by it too.

    Clipping their sum would shrink the penalty more the larger its weight, because a block gets the penalty in few
    steps and the likelihood's gradient in all of them. A non-finite norm gives NaN, so that the step is skipped.

    Example:
        >>> clip_factor(torch.tensor([0.0, 4.0, 20.0, torch.inf]), 5.0)
        tensor([1.0000, 1.0000, 0.2500,    nan])
    """
    return torch.where(norm.isfinite(), (clip / (norm + 1e-6)).clamp(max=1.0), torch.nan)


def patch_noise(like: Tensor, shape: Shape) -> Tensor:
    """Standard normal noise for feature-major images (D, B) of a shape (C, H, W), constant over square patches.

    The first image has patches of 1 by 1 pixel, the next ones of 2, 4 and 8, and so on in turn; all channels have the
    same noise if patches are larger than a pixel.
    """
    channels, height, width = shape
    noise = torch.randn_like(like).view(channels, height, width, -1)
    for i, size in enumerate(_PATCHES):
        if size > 1:
            rows, columns = (torch.arange(n, device=like.device) // size * size for n in (height, width))
            pixels = noise[:1, ..., i :: len(_PATCHES)]
            noise[..., i :: len(_PATCHES)] = pixels[:, rows][:, :, columns]
    return noise.view(like.shape)


def growth_penalty(shift: ImageShift, x: Tensor, z: Tensor, context: Tensor | None, error: Tensor) -> Tensor:
    r"""The mean of :math:`\max(0, \rho - q)` over x, where z is the shift of x and ``error`` is δ, all (D, B)."""
    with torch.no_grad():
        u = shift.invert(z + error, context, SolverOptions()).x - x
        # Pixels that overflow carry no information; the ones before them do not depend on them.
        u = torch.where(u.isfinite(), u, 0)
        u = torch.where((u != 0).any(0), u, error)
        largest = u.abs().amax(0)
        relative = u / largest
        cubes = relative**3
        weight = cubes / (cubes * relative).sum(0)
        # s(x + u) - s(x) equals δ by construction. Training kernels compute it in reduced precision: enough for
        # gradients, not to decide which images are below the threshold.
        missing = _QUOTIENT - (weight * (error / largest)).sum(0)
        length = largest.clamp(max=_FAR)
    twice = None if context is None else torch.cat([context, context], 1)
    both, _ = shift.transform(torch.cat([x + length * relative, x], 1), twice)
    moved, still = both.chunk(2, 1)
    quotient = (weight * (moved - still)).sum(0) / length
    # The exact value, with the gradient of the quotient.
    exact = missing + (quotient.detach() - quotient)
    return exact.clamp(min=0).mean()
