r"""A masked network evaluated degree by degree, forwards to invert an autoregressive map, and backwards.

The map is :math:`z_i = \tau(x_i; c_i(x_{<i}))` with a masked network c. Once :math:`x_1 \dots x_m` are known, so are
the network's units of degree m, and with them the parameters of feature m + 1. Every unit is computed once, when its
degree is reached. Degrees are taken in blocks: what earlier blocks contribute to a block is one matrix product per
layer, and only what happens inside a block is done degree by degree.

:func:`ordered_adjoint` takes the same order backwards, for the gradients of the implicit function theorem, again at the
cost of about one pass and without an unrolled graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..solvers import Step
from .activations import activate, activation_slope, squash, squash_slope
from .degrees import below
from .masked_mlp import MaskedNetwork
from .workspace import WORKSPACE


def incremental(network: MaskedNetwork, like: Tensor, context: Tensor | None) -> Iterator[Step]:
    """The parameters of one feature after the other; ``like`` is any tensor of shape (D, B).

    The parameters of a step are valid until the next one.
    """
    outputs = network.plan.outputs
    for m, (parameters, inputs) in enumerate(incremental_groups(network, like, context)):
        step = Step(slice(m, m + 1), parameters.view(1, outputs, -1))
        yield step
        inputs[0] = squash(step.solution[0], network.squash)


def incremental_groups(network: MaskedNetwork, like: Tensor, context: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """The outputs for one feature after the other, (P, B), and the rows of inputs to be written before the next one.

    ``like`` is any tensor whose last dimension is B. The outputs are valid until the next feature.
    """
    first, head = network.plan.layers[0], network.plan.head
    slots = [f"layer {i}" for i in range(len(network.biases))]
    seen = like.new_empty((first.columns[-1], like.shape[-1]))
    # Other iterators may run between two steps, and need other buffers.
    buffers = [
        WORKSPACE.remove(slot, (len(b), like.shape[-1]), like) for slot, b in zip(slots, network.biases, strict=True)
    ]
    try:
        for m in _advance(network, context, [b.unsqueeze(-1) for b in network.biases], buffers, seen):
            rows, columns = slice(below(head.rows, m), head.rows[m]), slice(first.columns[m], first.columns[m + 1])
            yield buffers[-1][rows], seen[columns]
    finally:
        for slot, buffer in zip(slots, buffers, strict=True):
            WORKSPACE.put(slot, buffer)


def substitute_shift(network: MaskedNetwork, z: Tensor, context: Tensor | None) -> Tensor:
    """Solve :math:`z_i = x_i + c_i(x_{<i})` for x: the head writes x = z - c where the network reads it."""
    seen = z.new_empty((network.plan.context + network.plan.features, z.shape[-1]))
    x = torch.empty_like(z) if network.squash else seen[network.plan.context :]
    with torch.inference_mode():  # makes small operations about twice as fast
        buffers = [WORKSPACE.take(f"layer {i}", (len(b), z.shape[-1]), z) for i, b in enumerate(network.biases[:-1])]
        biases = [*(b.unsqueeze(-1) for b in network.biases[:-1]), z - network.biases[-1].unsqueeze(-1)]
        negated = network._replace(weights=[*network.weights[:-1], -network.weights[-1]])
        for m in _advance(negated, context, biases, [*buffers, x], seen):
            if network.squash:
                seen[network.plan.context + m] = squash(x[m], network.squash)
    return x.clone() if network.plan.context else x  # not the tail end of a larger tensor


def _advance(
    network: MaskedNetwork, context: Tensor | None, biases: list[Tensor], pre_activations: list[Tensor], seen: Tensor
) -> Iterator[int]:
    """Compute the units of one degree after the other, before their activations; yields the feature that is next.

    ``seen`` is the network's input, context first. When a feature has been yielded, its input must be written there.
    """
    plan, weights, skips = network.plan, network.weights, network.skips
    if context is not None:
        seen[: plan.context] = context
    overwrite = not any(skips)  # without residual blocks, an activation may replace its input
    activations = [seen, *(b if overwrite else torch.empty_like(b) for b in pre_activations[:-1])]
    head = len(pre_activations) - 1
    for block in plan.blocks:
        for i, span, columns in block.known:
            torch.addmm(
                biases[i][span], weights[i][span, columns], activations[i][columns], out=pre_activations[i][span]
            )
        for m, pieces in zip(block.degrees, block.fresh, strict=True):
            for i, span, columns in pieces:
                part = pre_activations[i][span]
                if not block.begun[i]:
                    torch.addmm(biases[i][span], weights[i][span, columns], activations[i][columns], out=part)
                elif columns.start < columns.stop:
                    part.addmm_(weights[i][span, columns], activations[i][columns])
                if i < head:
                    if skips[i]:
                        part.add_(pre_activations[i - 2][span])
                    result = activate(network.activation, part, inplace=overwrite)
                    if result is not part:
                        activations[i + 1][span] = result
            yield m


def ordered_adjoint(
    network: MaskedNetwork,
    y: Tensor,
    context: Tensor | None,
    grad_y: Tensor,
    local: Callable[[int, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor | None, list[Tensor], list[Tensor]]:
    r"""Gradients of z, the context, weights and biases through the inverse of an autoregressive map at its solution y.

    ``local(i, g)`` is the chain rule through the scalar inverse: from the total gradient g with respect to
    :math:`y_i` it gives those with respect to :math:`z_i` and to the parameters (P, B).
    """
    plan, layers = network.plan, network.plan.layers
    features, outputs, head = plan.features, plan.outputs, len(layers) - 1
    pre_activations, inputs = trace(network, y, context)
    slopes = [activation_slope(network.activation, b) for b in pre_activations]
    squashed = squash_slope(y, network.squash) if network.squash else None
    # The gradients of each layer's input, and of each layer before its activation; the head's
    # rows are the parameters.
    of_input = [torch.zeros_like(t) for t in inputs]
    of_layer = [*(torch.zeros_like(t) for t in pre_activations), y.new_zeros((features * outputs, y.shape[-1]))]
    grad_z = torch.empty_like(y)
    for block in reversed(plan.blocks):
        first, last = block.degrees[0], block.degrees[-1]
        for i, layer in enumerate(layers):
            # The columns of this block of degrees, as seen by the rows of later blocks.
            above = layer.rows[last]
            span = slice(layer.columns[first], layer.columns[last + 1])
            if i:
                span = slice(below(layer.columns, first), layer.columns[last])
            of_input[i][span].addmm_(network.weights[i][above:, span].mT, of_layer[i][above:])
        for m in reversed(block.degrees):
            place = plan.context + m
            # Rows of this block that see feature m, whose degree is m + 1.
            rows = slice(layers[0].rows[m], layers[0].rows[last])
            of_feature = of_input[0][place : place + 1]
            of_feature.addmm_(network.weights[0][rows, place : place + 1].mT, of_layer[0][rows])
            through = of_input[0][place] if squashed is None else of_input[0][place] * squashed[m]
            grad_z[m], parameters = local(m, grad_y[m] + through)
            of_layer[head][outputs * m : outputs * (m + 1)] = parameters
            for i in reversed(range(head)):
                span = slice(below(layers[i].rows, m), layers[i].rows[m])
                if span.start == span.stop:
                    continue
                upper = layers[i + 1].rows
                rows = slice(below(upper, m), upper[last])
                part = of_input[i + 1][span]
                part.addmm_(network.weights[i + 1][rows, span].mT, of_layer[i + 1][rows])
                torch.mul(part, slopes[i][span], out=of_layer[i][span])
                if i + 2 < head and network.skips[i + 2]:
                    of_layer[i][span] += of_layer[i + 2][span]
    of_context = None if context is None else network.weights[0][:, : plan.context].mT @ of_layer[0]
    of_weights = [g @ h.mT for g, h in zip(of_layer, inputs, strict=True)]
    return grad_z, of_context, of_weights, [g.sum(-1) for g in of_layer]


def trace(network: MaskedNetwork, y: Tensor, context: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    """One pass at a known ``y``: each hidden layer before its activation; each layer's input."""
    pre_activations, inputs = list[Tensor](), [network.first_input(y, context)]
    for i, skip in enumerate(network.skips):
        out = torch.addmm(network.biases[i].unsqueeze(-1), network.weights[i], inputs[i])
        pre_activations.append(out.add_(pre_activations[i - 2]) if skip else out)
        inputs.append(activate(network.activation, pre_activations[i]))
    return pre_activations, inputs
