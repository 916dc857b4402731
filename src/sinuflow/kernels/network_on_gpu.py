"""The masked network on a GPU: one launch for a layer, one for each of its gradients.

For rectifiers without dropout; :mod:`sinuflow.kernels.masked_network` takes the rest. The masked part of
a matrix is left out, and the bias, the residual connection and the rectifier come with the product.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .degrees import Layer, Plan
from .dispatch import reference_backward

if TYPE_CHECKING:
    from .masked_network import Network


class NetworkOnGpu(torch.autograd.Function):
    """The network as one node for automatic differentiation."""

    @staticmethod
    def forward(ctx: Any, grad_enabled: bool, network: Network, h: Tensor, *tensors: Tensor) -> Tensor:
        from .triton import masked_linear

        count = len(network.layers)
        weights, biases = tensors[:count], tensors[count : 2 * count]
        reaches = _staircases(network.plan, h.device)
        inputs, before = [h.contiguous()], list[Tensor]()
        for i, skip in enumerate(network.skips):
            # A later layer adds what this one had before its rectifier.
            kept = i + 2 < len(network.skips) and network.skips[i + 2]
            out, after = masked_linear.forward(
                weights[i], reaches[i][0], biases[i], inputs[-1], before[i - 2] if skip else None, True, kept
            )
            before.append(out)
            inputs.append(after)
        if grad_enabled and any(ctx.needs_input_grad):
            ctx.network = network
            ctx.save_for_backward(*tensors, *inputs)
        return masked_linear.forward(weights[-1], reaches[-1][0], biases[-1], inputs[-1], None, False, False)[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        from .masked_network import reference
        from .triton import masked_linear

        network: Network = ctx.network
        count = len(network.layers)
        saved = ctx.saved_tensors
        weights, biases, masks = saved[:count], saved[count : 2 * count], saved[2 * count : 3 * count]
        inputs = saved[3 * count :]
        if torch.is_grad_enabled():

            def run(h: Tensor, *numbers: Tensor) -> Tensor:
                return reference(network, h, numbers[:count], numbers[count:], masks)

            return None, None, *reference_backward(run, (inputs[0], *weights, *biases), (grad,)), *[None] * count
        reaches = _staircases(network.plan, grad.device)
        of_weights: list[Tensor | None] = [None] * count
        of_biases: list[Tensor | None] = [None] * count
        streams: dict[int, Tensor] = {}  # gradients that residual connections carry past a layer
        grad = grad.contiguous()
        for i in reversed(range(count)):
            reach, first = reaches[i]
            if i < count - 1:
                if i + 2 in streams:
                    grad = grad + streams.pop(i + 2)
                if network.skips[i]:
                    streams[i] = grad
            if ctx.needs_input_grad[3 + i] or ctx.needs_input_grad[3 + count + i]:
                of_weights[i], of_biases[i] = masked_linear.weight_gradient(reach, grad, inputs[i])
            if i or ctx.needs_input_grad[2]:
                rectified = inputs[i] if i else None
                grad = masked_linear.input_gradient(weights[i], reach, first, grad, rectified)
        return None, None, grad if ctx.needs_input_grad[2] else None, *of_weights, *of_biases, *[None] * count


def fits(network: Network) -> bool:
    """Whether these kernels compute the network."""
    return network.activation == "relu" and network.dropout == 0


@lru_cache(maxsize=64)
def _staircases(plan: Plan, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """For every layer, how many columns each row sees, and the first row that sees each column."""
    return [_staircase(layer, device) for layer in plan.layers]


def _staircase(layer: Layer, device: torch.device) -> tuple[Tensor, Tensor]:
    reach = torch.tensor(layer.reach, dtype=torch.int32)
    first = torch.searchsorted(reach, torch.arange(layer.columns[-1], dtype=torch.int32), right=True)
    return reach.to(device), first.to(torch.int32).to(device)
