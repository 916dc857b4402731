"""The forward pass of a PixelCNN with masked weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class PixelWeights(NamedTuple):
    """The parameters of the first convolution, of the three convolutions of every block, and of the head.

    A weight has shape (outputs, inputs, reach + 1, 2 * reach + 1): it looks ``reach`` rows up and as many columns to
    either side. ``context_weights`` has the matrices for the context, of the first convolution and of each block, or is
    empty.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    context_weights: list[Tensor]


def pixel_network(
    x: Tensor, context: Tensor | None, parameters: PixelWeights, keep: list[Tensor] | None = None
) -> Tensor:
    """Images (B, C, H, W), and a context (B, K), to outputs (B, C, H, W).

    Hidden activations are appended to ``keep``: three tensors for every block (its input, and those of its second and
    third convolutions), and the head's input.
    """
    weights, biases, context_weights = parameters
    h = _convolution(x, weights[0], biases[0])
    if context is not None:
        h = h + F.linear(context, context_weights[0])[..., None, None]
    for i in range(1, len(weights) - 1, 3):
        active = F.relu(h)
        small = F.relu(_convolution(active, weights[i], biases[i]))
        inner = _convolution(small, weights[i + 1], biases[i + 1])
        if context is not None:
            inner = inner + F.linear(context, context_weights[i // 3 + 1])[..., None, None]
        inner = F.relu(inner)
        h = h + _convolution(inner, weights[i + 2], biases[i + 2])
        if keep is not None:
            keep += [active, small, inner]
    active = F.relu(h)
    if keep is not None:
        keep.append(active)
    return _convolution(active, weights[-1], biases[-1])


def _convolution(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``F.conv2d`` in full precision, wherever it runs; beyond the image there are zeros.

    On a GPU, ``F.conv2d`` rounds its inputs to the ten bits of TF32 by default: an inverse would be off by 1e-3.
    """
    reach = weight.shape[2] - 1
    if reach:
        h = F.pad(h, (0, 0, reach, 0))
    cudnn = torch.backends.cudnn
    flags = cudnn.benchmark, cudnn.deterministic, cudnn.enabled, False  # the last: TF32
    return torch._convolution(h, weight, bias, (1, 1), (0, reach), (1, 1), False, (0, 0), 1, *flags)
