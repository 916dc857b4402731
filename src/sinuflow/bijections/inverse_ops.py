"""The inverses as PyTorch operators.

An inverse loops until it has converged, which a compiler cannot trace. As an operator it is one
opaque node, so that ``torch.compile(fullgraph=True)`` works through it; and its gradients are
defined here, by the implicit function theorem, rather than by an unrolled loop.

Each inverse is a pair of plain functions, forward and backward. They are registered as operators,
which compiled graphs use, and wrapped as an autograd function for eager code, because the first
call of an operator would load the compiler: two seconds that somebody who only samples never needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from ..errors import SinuflowError
from ..ops.degrees import Plan, plan
from ..ops.masked_mlp_inverse import MaskedNetwork, ordered_adjoint, ordered_substitution
from ..ops.scale_stack import gradients, run
from ..ops.select import wave_kernels
from ..ops.stack_inverse import invert_stack
from ..ops.staircase import staircase_mask
from ..ops.waves import Waves
from ..solvers import Root, SolverOptions, parallel_sweeps
from .base import LayerInverse
from .transformers import ConditionalWaves, Shift, Transformer

#: Rows that ordered substitution takes at a time: enough to be fast, few enough to stay in cache.
_ROWS = 2048

Answer = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # x, ladj, iterations, residual, converged


def _answer(root: Root) -> Answer:
    """Reduce an elementwise certificate to one per row."""
    ladj = -root.slope.log().sum(0)
    return root.x, ladj, root.iterations.amax(0), root.residual.amax(0), root.converged.all(0)


def _empty_answer(z: Tensor) -> Answer:
    row = z.new_empty(z.shape[-1])
    return (
        z.new_empty(z.shape),
        row,
        torch.empty_like(row, dtype=torch.int32),
        torch.empty_like(row),
        torch.empty_like(row, dtype=torch.bool),
    )


class _Refuse(torch.autograd.Function):
    """Passes a gradient on, and raises when somebody differentiates it."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise SinuflowError(
            "second derivatives through an inverse are not available: differentiate log_prob or the forward "
            "map instead, which have them"
        )


def _first_order_only(gradients: tuple[Any, ...], anchors: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """Without this, second derivatives would come out as zero, and nobody would know."""
    if not torch.is_grad_enabled():
        return gradients
    return tuple(g if g is None else _Refuse.apply(g, *anchors) for g in gradients)


# ---------------------------------------------------------------- the stack of scales


def _scale_inverse(
    z: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, method: str, rtol: float, atol: float, limit: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    shared = method == "certified" and a.shape[-1] == 1
    kernels = wave_kernels(a.shape[-2], z, a, p, q, d, fine=True) if shared else None
    if kernels is not None:
        x, ladj, iterations, residual, converged = kernels.scale_stack.inverse(z, Waves(a, p, q, d), limit)
        return x, ladj, iterations, residual, converged
    options = SolverOptions(method, rtol, atol, limit)  # type: ignore[arg-type]
    with torch.inference_mode():  # half of the time goes into small calls, which are cheaper so
        answer = _answer(invert_stack(z.contiguous(), Waves(a, p, q, d).to(z.dtype), options))
    return tuple(part.clone() for part in answer)  # type: ignore[return-value]


scale_inverse_op = torch.library.custom_op("sinuflow::scale_inverse", _scale_inverse, mutates_args=())


@scale_inverse_op.register_fake
def _(z: Tensor, *_: Any) -> Answer:
    return _empty_answer(z)


def _scale_inverse_backward(
    x: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, grad_x: Tensor, grad_ladj: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    waves = Waves(a, p, q, d)
    kernels = wave_kernels(a.shape[-2], x, a, p, q, d) if a.shape[-1] == 1 else None
    if kernels is None:
        trace = run(x, waves)
        pull, slope = partial(gradients, trace, waves), trace.slopes.prod(0)
    else:
        pull = partial(kernels.scale_stack.backward, kernels.scale_stack.forward(x, waves, keep=True)[2], waves)
        slope, _ = pull(torch.ones_like(x), torch.zeros_like(grad_ladj))
    bend, _ = pull(torch.zeros_like(x), grad_ladj)
    grad_z = (grad_x - bend) / slope
    _, grads = pull(-grad_z, -grad_ladj)
    return grad_z, *grads


def _scale_inverse_backward_apart(
    x: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, grad_x: Tensor, grad_ladj: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same; what an operator returns may not share memory, and gradients of waves may be parts of one tensor."""
    grad_z, *grads = _scale_inverse_backward(x, a, p, q, d, grad_x, grad_ladj)
    return grad_z, *(grad.clone() for grad in grads)  # type: ignore[return-value]


scale_inverse_backward_op = torch.library.custom_op(
    "sinuflow::scale_inverse_backward", _scale_inverse_backward_apart, mutates_args=()
)


@scale_inverse_backward_op.register_fake
def _(x: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(t) for t in (x, a, p, q, d))


def _scale_context(ctx: Any, inputs: tuple[Any, ...], output: Answer) -> None:
    ctx.save_for_backward(output[0], *inputs[1:5])


def _scale_gradient(ctx: Any, grad_x: Tensor, grad_ladj: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    backward = scale_inverse_backward_op if torch.compiler.is_compiling() else _scale_inverse_backward
    x, a, p, q, d = ctx.saved_tensors
    grads = backward(x, a, p, q, d, grad_x.contiguous(), grad_ladj.contiguous())
    return (*grads, None, None, None, None)


scale_inverse_op.register_autograd(_scale_gradient, setup_context=_scale_context)


class _ScaleInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Answer:
        answer = _scale_inverse(*inputs)
        _scale_context(ctx, inputs, answer)
        ctx.mark_non_differentiable(*answer[2:])
        return answer

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            found = _scale_gradient(ctx, *grads)
        return _first_order_only(found, (*ctx.saved_tensors, *grads[:2]))


def scale_inverse(z: Tensor, waves: Waves, options: SolverOptions) -> LayerInverse:
    """Invert a stack of sinusoidal transformers, with gradients."""
    arguments = (z, *waves, options.method, *options.tolerances(z.dtype), options.limit)
    solve = scale_inverse_op if torch.compiler.is_compiling() else _ScaleInverse.apply
    return LayerInverse(*solve(*arguments))


# ---------------------------------------------------------------- the autoregressive layer


@dataclass(frozen=True)
class Structure:
    """Everything about an autoregressive layer but its numbers."""

    features: int
    context: int
    hidden: tuple[int, ...]
    skips: tuple[bool, ...]
    activation: str
    squash: float | None
    scales: int  # 0: a plain shift
    waves: int

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @property
    def transformer(self) -> Transformer:
        return ConditionalWaves(self.scales, self.waves) if self.scales else Shift()

    @property
    def plan(self) -> Plan:
        return plan(self.features, self.context, self.transformer.parameters, self.hidden)

    def masked(self, matrices: Sequence[Tensor]) -> list[Tensor]:
        """One matrix for each layer of the network, with what its mask removes set to zero."""
        return [
            torch.where(staircase_mask(layer.reach, layer.columns[-1]).to(matrix.device), matrix, 0.0)
            for matrix, layer in zip(matrices, self.plan.layers, strict=True)
        ]


@lru_cache(maxsize=256)
def _decode(structure: str) -> Structure:
    fields: dict[str, Any] = json.loads(structure)
    fields["hidden"], fields["skips"] = tuple(fields["hidden"]), tuple(fields["skips"])
    return Structure(**fields)


def _network(structure: Structure, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> MaskedNetwork:
    return MaskedNetwork(
        structure.plan, list(weights), list(biases), structure.skips, structure.activation, structure.squash
    )


def _substitute(
    network: MaskedNetwork, transformer: Transformer, z: Tensor, context: Tensor | None, options: SolverOptions
) -> Answer:
    if isinstance(transformer, Shift):
        x = ordered_substitution(network, z, context)
        return tuple(LayerInverse.exact(x, z.new_zeros(z.shape[-1])))  # type: ignore[return-value]
    roots: list[Root] = []

    def invert(_: int, parameters: Tensor, target: Tensor) -> Tensor:
        roots.append(transformer.inverse(target.unsqueeze(0), parameters.unsqueeze(0), options))
        return roots[-1].x[0]

    x = ordered_substitution(network, z, context, invert)
    return _answer(Root(*map(torch.cat, zip(*roots, strict=True)))._replace(x=x))


def _sweep(
    network: MaskedNetwork, transformer: Transformer, z: Tensor, context: Tensor | None, options: SolverOptions
) -> Answer:
    rtol, atol = options.tolerances(z.dtype)

    def evaluate(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        parameters = network.outputs(x, None if context is None else context[:, rows])
        return transformer.forward(x, parameters)[0], parameters

    def solve(target: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        root = transformer.inverse(target, parameters, options)
        return root.x, root.converged.all(0)

    root = parallel_sweeps(evaluate, solve, z, rtol=rtol, atol=atol, max_iterations=options.limit)
    _, ladj = transformer.forward(root.x, network.outputs(root.x, context))
    return root.x, -ladj, root.iterations.amax(0), root.residual.amax(0), root.converged.all(0)


def _triangular_inverse(
    z: Tensor,
    context: Tensor | None,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    structure: str,
    method: str,
    rtol: float,
    atol: float,
    limit: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = SolverOptions(method, rtol, atol, limit)  # type: ignore[arg-type]
    layout = _decode(structure)
    # Ordered substitution never touches what is masked; sweeps take whole matrices.
    masked = weights if method == "certified" else layout.masked(weights)
    network = _network(layout, masked, biases)
    solve = _substitute if method == "certified" else _sweep
    parts = []
    for start in range(0, max(1, z.shape[-1]), _ROWS):
        rows = slice(start, start + _ROWS)
        part = z[:, rows].contiguous()
        given = None if context is None else context[:, rows]
        parts.append(solve(network, layout.transformer, part, given, options))
    if len(parts) == 1:
        return parts[0]
    x, *rest = zip(*parts, strict=True)
    return torch.cat(x, dim=1), *map(torch.cat, rest)  # type: ignore[return-value]


triangular_inverse_op = torch.library.custom_op("sinuflow::triangular_inverse", _triangular_inverse, mutates_args=())


@triangular_inverse_op.register_fake
def _(z: Tensor, *_: Any) -> Answer:
    return _empty_answer(z)


def _triangular_inverse_backward(
    x: Tensor,
    context: Tensor | None,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    grad_x: Tensor,
    grad_ladj: Tensor,
    structure: str,
) -> list[Tensor]:
    """Gradients of z, of the weights, of the biases, and of the context if there is one."""
    layout = _decode(structure)
    network = _network(layout, layout.masked(weights), biases)
    transformer = layout.transformer
    parameters = network.outputs(x, context)
    slope, steer = transformer.gradients(x, parameters, torch.ones_like(x), torch.zeros_like(grad_ladj))
    bend, sway = transformer.gradients(x, parameters, torch.zeros_like(x), grad_ladj)

    def local(i: int, grad: Tensor) -> tuple[Tensor, Tensor]:
        # By the implicit function theorem, from F(x; c) = z and the log-determinant -log F'(x; c).
        grad_z = (grad - bend[i]) / slope[i]
        return grad_z, -torch.addcmul(sway[i], grad_z, steer[i])

    grads = ordered_adjoint(network, x, context, grad_x, local)
    of_context = [] if grads.context is None else [grads.context]
    return [grads.z, *layout.masked(grads.weights), *grads.biases, *of_context]


triangular_inverse_backward_op = torch.library.custom_op(
    "sinuflow::triangular_inverse_backward", _triangular_inverse_backward, mutates_args=()
)


@triangular_inverse_backward_op.register_fake
def _(x: Tensor, context: Tensor | None, weights: Sequence[Tensor], biases: Sequence[Tensor], *_: Any) -> list[Tensor]:
    like = [x, *weights, *biases, *([] if context is None else [context])]
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in like]


def _triangular_context(ctx: Any, inputs: tuple[Any, ...], output: Answer) -> None:
    _, context, weights, biases, ctx.structure, *_ = inputs
    ctx.count, ctx.conditional = len(weights), context is not None
    ctx.save_for_backward(output[0], *weights, *biases, *([context] if context is not None else []))


def _triangular_gradient(ctx: Any, grad_x: Tensor, grad_ladj: Tensor, *_: Any) -> tuple[Any, ...]:
    x, *saved = ctx.saved_tensors
    weights, biases = saved[: ctx.count], saved[ctx.count : 2 * ctx.count]
    context = saved[-1] if ctx.conditional else None
    backward = triangular_inverse_backward_op if torch.compiler.is_compiling() else _triangular_inverse_backward
    grad_z, *grads = backward(x, context, weights, biases, grad_x.contiguous(), grad_ladj.contiguous(), ctx.structure)
    of_context = grads[-1] if ctx.conditional else None
    return grad_z, of_context, grads[: ctx.count], grads[ctx.count : 2 * ctx.count], None, None, None, None, None


triangular_inverse_op.register_autograd(_triangular_gradient, setup_context=_triangular_context)


class _TriangularInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, context: Tensor | None, count: int, *rest: Any) -> Answer:
        inputs = (z, context, rest[:count], rest[count : 2 * count], *rest[2 * count :])
        answer = _triangular_inverse(*inputs)
        _triangular_context(ctx, inputs, answer)
        ctx.mark_non_differentiable(*answer[2:])
        return answer

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        with torch.no_grad():
            grad_z, of_context, of_weights, of_biases, *rest = _triangular_gradient(ctx, *grads)
        found = (grad_z, of_context, None, *of_weights, *of_biases, *rest)
        return _first_order_only(found, (*ctx.saved_tensors, *grads[:2]))


def triangular_inverse(
    z: Tensor,
    context: Tensor | None,
    weights: list[Tensor],
    biases: list[Tensor],
    structure: str,
    options: SolverOptions,
) -> LayerInverse:
    """Invert an autoregressive layer, with gradients; ``structure`` is an encoded :class:`Structure`."""
    rest = (structure, options.method, *options.tolerances(z.dtype), options.limit)
    if torch.compiler.is_compiling():
        return LayerInverse(*triangular_inverse_op(z, context, weights, biases, *rest))
    return LayerInverse(*_TriangularInverse.apply(z, context, len(weights), *weights, *biases, *rest))
