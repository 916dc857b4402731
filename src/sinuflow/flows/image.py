"""ImageFlow: a flow over images, built from hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..bijections.image import image_chain
from ..checks import whole
from ..flow_config import ImageConditioning, image_shape
from ..registry import register
from .flow import Flow
from .sinusoidal import SinusoidalFlow


@register
class ImageFlow(SinusoidalFlow):
    r"""The paper's flow over images: LDU blocks whose shifts are computed by a miniature PixelCNN.

    Images are vectors of ``features`` = C·H·W values: pass ``x.flatten(-3)``, and reshape samples with
    ``x.view(-1, C, H, W)``. For images of bytes, see :class:`sinuflow.data.images.PixelMap`.

    Args:
        shape: (C, H, W).
        context: the dimension of what the density is conditioned on, such as 10 for a one-hot class; 0 for none.
            The networks see it, and the sinusoidal layers do not.
        blocks: LDU blocks.
        scales: sinusoidal transformers in a chain per block.
        waves: sine waves per transformer.
        channels: feature maps of the networks' bottlenecks; twice as many outside of them.
        residual_blocks: residual blocks in every network.
        conditioning: what the networks compute: ``"shift"`` is the paper's flow; ``"affine"`` adds a bounded
            log-scale to each shift, and reaches lower bits/dim.

    Example:
        >>> import torch
        >>> flow = ImageFlow(shape=(1, 8, 8), blocks=2)
        >>> x = torch.randn(5, 1, 8, 8)
        >>> flow().log_prob(x.flatten(-3)).shape
        torch.Size([5])
        >>> flow().sample((3,)).view(-1, 1, 8, 8).shape
        torch.Size([3, 1, 8, 8])
    """

    def __init__(
        self,
        shape: Sequence[int] = (1, 28, 28),
        context: int = 0,
        blocks: int = 12,
        scales: int = 4,
        waves: int = 4,
        channels: int = 16,
        residual_blocks: int = 2,
        conditioning: ImageConditioning = "shift",
    ) -> None:
        sizes = image_shape(shape)
        options: dict[str, Any] = {
            "context": whole("context", context, 0),
            "blocks": whole("blocks", blocks, 1),
            "scales": whole("scales", scales, 1),
            "waves": whole("waves", waves, 1),
            "channels": whole("channels", channels, 1),
            "residual_blocks": whole("residual_blocks", residual_blocks, 0),
            "conditioning": conditioning,
        }
        Flow.__init__(self, image_chain(sizes, **options))
        self._config = {"image": list(sizes), **options}


SinusoidalFlow.image = ImageFlow
