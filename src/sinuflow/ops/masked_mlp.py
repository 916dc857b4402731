r"""A masked network: layers :math:`(M \odot W) h + b` with activations between, and block lower triangular masks M.

Units are sorted by degree in every layer, so nearly half of every weight matrix, its upper right, is masked. On a CPU,
the blocked implementation skips these products. (On a GPU, one large product is faster.) It is a single autograd
function, so that its backward pass can reuse memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .activations import activate, activation_slope, squash
from .autograd import reference_backward
from .degrees import Layer, Plan
from .select import fused_allowed
from .workspace import WORKSPACE


class MaskedNetwork(NamedTuple):
    """A masked network with its weights and biases; the head comes last in both lists."""

    plan: Plan
    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    skips: tuple[bool, ...]  # whether hidden layer l adds the pre-activations of layer l - 2
    activation: str
    squash: float | None
    dropout: float = 0.0  # the probability, 0 unless training

    @property
    def dropout_layers(self) -> tuple[int, ...]:
        """Hidden layers with dropout: all, or with residual blocks those inside, so that skip connections have none."""
        layers = range(len(self.skips))
        return tuple(layers[1::2] if any(self.skips) else layers) if self.dropout else ()

    def first_input(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The input of the first layer, (inputs, B): the context, then the features."""
        h = squash(x, self.squash)
        return h if context is None else torch.cat([context, h])


def masked_network(network: MaskedNetwork, h: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """The network applied to the columns of its first layer's input."""
    if not fused_allowed():
        return reference(network, h, masks)
    result: Tensor = _Blocked.apply(torch.is_grad_enabled(), network, h, *network.weights, *network.biases, *masks)
    return result


def reference(
    network: MaskedNetwork, h: Tensor, masks: Sequence[Tensor], dropout_masks: Sequence[Tensor] = ()
) -> Tensor:
    """The reference implementation; ``dropout_masks``, one for each layer with dropout, replace random ones."""
    weights, biases = network.weights, network.biases
    factors = dict(zip(network.dropout_layers, dropout_masks, strict=True)) if dropout_masks else {}
    pre_activations: list[Tensor] = []
    for i, skip in enumerate(network.skips):
        out = torch.addmm(biases[i].unsqueeze(-1), weights[i] * masks[i], h)
        pre_activations.append(out + pre_activations[i - 2] if skip else out)
        h = activate(network.activation, pre_activations[i])
        if i in network.dropout_layers:
            h = h * factors[i] if dropout_masks else F.dropout(h, network.dropout)
    return torch.addmm(biases[-1].unsqueeze(-1), weights[-1] * masks[-1], h)


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad_enabled: bool, network: MaskedNetwork, h: Tensor, *tensors: Tensor) -> Tensor:
        layers = network.plan.layers
        count = len(layers)
        weights, biases, masks = tensors[:count], tensors[count : 2 * count], tensors[2 * count :]
        learning = grad_enabled and any(ctx.needs_input_grad)
        # The derivative of relu follows from its output: its input need not be saved.
        keep_pre_activations = learning and network.activation != "relu"
        overwrite = not keep_pre_activations and not any(network.skips)
        dropout_layers = network.dropout_layers
        inputs, pre_activations, dropout_masks = [h], list[Tensor](), list[Tensor]()
        for i, skip in enumerate(network.skips):
            out = apply_layer(layers[i], inputs[-1], weights[i], biases[i], masks[i])
            pre_activations.append(out.add_(pre_activations[i - 2]) if skip else out)
            result = activate(network.activation, out, inplace=overwrite)
            if i in dropout_layers:
                dropout_masks.append(torch.empty_like(result).bernoulli_(1 - network.dropout).div_(1 - network.dropout))
                result = result * dropout_masks[-1]
            inputs = [*inputs, result] if learning else [result]
        if learning:
            ctx.network = network
            pre_activations = pre_activations if keep_pre_activations else []
            ctx.lengths = [count, count, count, len(inputs), len(pre_activations), len(dropout_masks)]
            ctx.save_for_backward(*tensors, *inputs, *pre_activations, *dropout_masks)
        return apply_layer(layers[-1], inputs[-1], weights[-1], biases[-1], masks[-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        network: MaskedNetwork = ctx.network
        saved = iter(ctx.saved_tensors)
        weights, biases, masks, inputs, pre_activations, dropout_masks = (
            [next(saved) for _ in range(n)] for n in ctx.lengths
        )
        layers, count = network.plan.layers, len(weights)
        if torch.is_grad_enabled():

            def run(h: Tensor, *tensors: Tensor) -> Tensor:
                return reference(
                    network._replace(weights=tensors[:count], biases=tensors[count:]), h, masks, dropout_masks
                )

            return None, None, *reference_backward(run, (inputs[0], *weights, *biases), (grad,)), *[None] * count
        grad_weights: list[Tensor | None] = [None] * count
        grad_biases: list[Tensor | None] = [None] * count
        factors = dict(zip(network.dropout_layers, dropout_masks, strict=True))
        skip_gradients: dict[int, Tensor] = {}  # gradients through skip connections, by the layer that receives them
        for i in reversed(range(count)):
            if i < count - 1:  # not the caller's memory, so it can be overwritten
                if i in factors:
                    grad.mul_(factors[i])
                if pre_activations:
                    grad.mul_(activation_slope(network.activation, pre_activations[i]))
                else:  # relu
                    torch.ops.aten.threshold_backward.grad_input(grad, inputs[i + 1], 0, grad_input=grad)
                if i + 2 in skip_gradients:
                    grad.add_(skip_gradients.pop(i + 2))
                if network.skips[i]:
                    skip_gradients[i] = grad
            if ctx.needs_input_grad[3 + i]:
                grad_weights[i] = weight_gradient(layers[i], grad, inputs[i], masks[i])
            if ctx.needs_input_grad[3 + count + i]:
                grad_biases[i] = grad.sum(-1)
            if i or ctx.needs_input_grad[2]:
                grad = input_gradient(layers[i], grad, weights[i], masks[i], _gradient_buffer(network, i, inputs[i]))
        grad_h = grad if ctx.needs_input_grad[2] else None
        return None, None, grad_h, *grad_weights, *grad_biases, *[None] * count


def _gradient_buffer(network: MaskedNetwork, i: int, like: Tensor) -> Tensor:
    """Memory for the gradient of layer i's input, reused unless the caller or a skip connection may still need it."""
    if i == 0 or any(network.skips) or like.device.type != "cpu":
        return torch.empty_like(like)
    return WORKSPACE.take(f"gradient {i % 2}", like.shape, like)


# ---------------------------------------------------------------- one layer, block by block
#
# A product adds the contribution of a few columns to all rows that depend on them, rather than computing a few rows:
# so no part of the input is packed for the processor's cache twice.


def apply_layer(layer: Layer, h: Tensor, weight: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    r""":math:`(M \odot W) h + b`."""
    if h.device.type != "cpu":
        return torch.addmm(bias.unsqueeze(-1), weight * mask, h)
    masked = weight if layer.stairs.exact else weight * mask
    first, *others = layer.stairs.steps
    done = first.columns
    out = torch.addmm(bias.unsqueeze(-1), masked[:, :done], h[:done])
    for start, _, columns in others:
        out[start:].addmm_(masked[start:, done:columns], h[done:columns])
        done = columns
    return out


def input_gradient(layer: Layer, grad: Tensor, weight: Tensor, mask: Tensor, out: Tensor) -> Tensor:
    r""":math:`(M \odot W)^T g`, written to ``out``."""
    if grad.device.type != "cpu":
        return torch.mm((weight * mask).mT, grad, out=out)
    masked = weight if layer.stairs.exact else weight * mask
    *others, (start, stop, columns) = layer.stairs.steps  # the last rows depend on all columns that any row depends on
    torch.mm(masked[start:stop, :columns].mT, grad[start:stop], out=out[:columns])
    out[columns:].zero_()
    for start, stop, columns in reversed(others):
        out[:columns].addmm_(masked[start:stop, :columns].mT, grad[start:stop])
    return out


def weight_gradient(layer: Layer, grad: Tensor, h: Tensor, mask: Tensor) -> Tensor:
    r""":math:`M \odot g h^T`."""
    if grad.device.type != "cpu":
        return torch.mm(grad, h.mT).mul_(mask)
    steps, exact = layer.stairs
    if len(steps) == 1:
        # A tall matrix times a wide one is slower than the transposed product.
        out = torch.mm(grad, h.mT) if grad.shape[0] < h.shape[0] else torch.mm(h, grad.mT).mT.contiguous()
        exact = exact and steps[0].columns == h.shape[0]
    else:
        out = grad.new_zeros((grad.shape[0], h.shape[0]))
        for start, stop, columns in steps:
            torch.mm(grad[start:stop], h[:columns].mT, out=out[start:stop, :columns])
    return out if exact else out.mul_(mask)
