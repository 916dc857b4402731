r"""A masked network evaluated degree by degree, to invert an autoregressive bijection, and for its gradients.

The bijection is :math:`z_i = \tau(x_i; c_i(x_{<i}))` with a masked network c. Once :math:`x_1 \dots x_m` are known,
so are the network's units of degree m, and with them the parameters of feature m + 1. Every unit is computed once, when
its degree is reached. Degrees are processed in blocks: the contribution of earlier blocks is one matrix product per
layer, and only the contributions within a block are computed degree by degree.

:func:`ordered_adjoint` goes through the degrees in reverse, for the gradients of the implicit function theorem, at the
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
    """Steps for one feature after the other; ``like`` is any tensor of shape (D, B).

    The parameters of a step are valid until the next step.
    """
    outputs = network.plan.outputs
    for m, (parameters, inputs) in enumerate(incremental_groups(network, like, context)):
        step = Step(slice(m, m + 1), parameters.view(1, outputs, -1))
        yield step
        inputs[0] = squash(step.solution[0], network.squash)


def incremental_groups(network: MaskedNetwork, like: Tensor, context: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs for one feature after the other: its outputs (P, B), and the input rows that the caller must then write.

    ``like`` is any tensor whose last dimension is B. The outputs are valid until the next feature.
    """
    first, head = network.plan.layers[0], network.plan.head
    slots = [f"layer {i}" for i in range(len(network.biases))]
    network_input = like.new_empty((first.columns[-1], like.shape[-1]))
    # Other iterators may run between two steps, and need other buffers.
    buffers = [
        WORKSPACE.remove(slot, (len(b), like.shape[-1]), like) for slot, b in zip(slots, network.biases, strict=True)
    ]
    try:
        for m in _advance(network, context, [b.unsqueeze(-1) for b in network.biases], buffers, network_input):
            rows, columns = slice(below(head.rows, m), head.rows[m]), slice(first.columns[m], first.columns[m + 1])
            yield buffers[-1][rows], network_input[columns]
    finally:
        for slot, buffer in zip(slots, buffers, strict=True):
            WORKSPACE.put(slot, buffer)


def substitute_shift(network: MaskedNetwork, z: Tensor, context: Tensor | None) -> Tensor:
    """Solve :math:`z_i = x_i + c_i(x_{<i})` for x: the head writes x = z - c to the network's input."""
    network_input = z.new_empty((network.plan.context + network.plan.features, z.shape[-1]))
    x = torch.empty_like(z) if network.squash else network_input[network.plan.context :]
    with torch.inference_mode():  # makes small operations about twice as fast
        buffers = [WORKSPACE.take(f"layer {i}", (len(b), z.shape[-1]), z) for i, b in enumerate(network.biases[:-1])]
        biases = [*(b.unsqueeze(-1) for b in network.biases[:-1]), z - network.biases[-1].unsqueeze(-1)]
        negated = network._replace(weights=[*network.weights[:-1], -network.weights[-1]])
        for m in _advance(negated, context, biases, [*buffers, x], network_input):
            if network.squash:
                network_input[network.plan.context + m] = squash(x[m], network.squash)
    return x.clone() if network.plan.context else x  # not a view of a larger tensor


def _advance(
    network: MaskedNetwork,
    context: Tensor | None,
    biases: list[Tensor],
    pre_activations: list[Tensor],
    network_input: Tensor,
) -> Iterator[int]:
    """Compute the pre-activations of one degree after the other; yields the feature whose parameters they determine.

    ``network_input`` has the context first. The caller must write the solution of a yielded feature to it.
    """
    plan, weights, skips = network.plan, network.weights, network.skips
    if context is not None:
        network_input[: plan.context] = context
    overwrite = not any(skips)  # without residual blocks, an activation may replace its input
    activations = [network_input, *(b if overwrite else torch.empty_like(b) for b in pre_activations[:-1])]
    head = len(pre_activations) - 1
    for block in plan.blocks:
        for i, span, columns in block.known:
            torch.addmm(
                biases[i][span], weights[i][span, columns], activations[i][columns], out=pre_activations[i][span]
            )
        for m, pieces in zip(block.degrees, block.fresh, strict=True):
            for i, span, columns in pieces:
                out = pre_activations[i][span]
                if not block.begun[i]:
                    torch.addmm(biases[i][span], weights[i][span, columns], activations[i][columns], out=out)
                elif columns.start < columns.stop:
                    out.addmm_(weights[i][span, columns], activations[i][columns])
                if i < head:
                    if skips[i]:
                        out.add_(pre_activations[i - 2][span])
                    result = activate(network.activation, out, inplace=overwrite)
                    if result is not out:
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

    ``local(i, g)`` is the backward pass of the scalar inverse: from the total gradient g with respect to :math:`y_i`,
    it returns the gradients with respect to :math:`z_i` and to the parameters (P, B).
    """
    plan, layers = network.plan, network.plan.layers
    features, outputs, head = plan.features, plan.outputs, len(layers) - 1
    pre_activations, inputs = forward_pass(network, y, context)
    slopes = [activation_slope(network.activation, b) for b in pre_activations]
    squashed = squash_slope(y, network.squash) if network.squash else None
    # The gradients of each layer's input and pre-activations; those of the head are the transformer's parameters.
    grad_inputs = [torch.zeros_like(t) for t in inputs]
    grad_outputs = [*(torch.zeros_like(t) for t in pre_activations), y.new_zeros((features * outputs, y.shape[-1]))]
    grad_z = torch.empty_like(y)
    for block in reversed(plan.blocks):
        first, last = block.degrees[0], block.degrees[-1]
        for i, layer in enumerate(layers):
            # The contribution of the rows of later blocks to the columns of this block.
            above = layer.rows[last]
            span = slice(layer.columns[first], layer.columns[last + 1])
            if i:
                span = slice(below(layer.columns, first), layer.columns[last])
            grad_inputs[i][span].addmm_(network.weights[i][above:, span].mT, grad_outputs[i][above:])
        for m in reversed(block.degrees):
            column = plan.context + m
            # The rows of this block that depend on feature m, whose degree is m + 1.
            rows = slice(layers[0].rows[m], layers[0].rows[last])
            grad_feature = grad_inputs[0][column : column + 1]
            grad_feature.addmm_(network.weights[0][rows, column : column + 1].mT, grad_outputs[0][rows])
            indirect = grad_inputs[0][column] if squashed is None else grad_inputs[0][column] * squashed[m]
            grad_z[m], grad_parameters = local(m, grad_y[m] + indirect)
            grad_outputs[head][outputs * m : outputs * (m + 1)] = grad_parameters
            for i in reversed(range(head)):
                span = slice(below(layers[i].rows, m), layers[i].rows[m])
                if span.start == span.stop:
                    continue
                upper = layers[i + 1].rows
                rows = slice(below(upper, m), upper[last])
                grad = grad_inputs[i + 1][span]
                grad.addmm_(network.weights[i + 1][rows, span].mT, grad_outputs[i + 1][rows])
                torch.mul(grad, slopes[i][span], out=grad_outputs[i][span])
                if i + 2 < head and network.skips[i + 2]:
                    grad_outputs[i][span] += grad_outputs[i + 2][span]
    grad_context = None if context is None else network.weights[0][:, : plan.context].mT @ grad_outputs[0]
    grad_weights = [g @ h.mT for g, h in zip(grad_outputs, inputs, strict=True)]
    return grad_z, grad_context, grad_weights, [g.sum(-1) for g in grad_outputs]


def forward_pass(network: MaskedNetwork, y: Tensor, context: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    """The pre-activations of each hidden layer, and the input of each layer, at a known ``y``."""
    pre_activations, inputs = list[Tensor](), [network.first_input(y, context)]
    for i, skip in enumerate(network.skips):
        out = torch.addmm(network.biases[i].unsqueeze(-1), network.weights[i], inputs[i])
        pre_activations.append(out.add_(pre_activations[i - 2]) if skip else out)
        inputs.append(activate(network.activation, pre_activations[i]))
    return pre_activations, inputs
