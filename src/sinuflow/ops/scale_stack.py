r"""A stack of sinusoidal transformers, :math:`\tau_n \circ \dots \circ \tau_1`, feature by feature.

``waves`` holds all of them, stacked along a leading axis of length n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .second_order import reference_backward
from .select import fused_allowed, wave_kernels
from .waves import Scratch, Waves, feature_chunks, transform

#: Tables of up to this many numbers are kept for the backward pass; larger ones are made again.
_KEEP = 2**21


class Trace(NamedTuple):
    """What a stack went through."""

    inputs: Tensor  # of every transformer, and the result, (n + 1, D, B)
    slopes: Tensor  # (n, D, B)
    tables: Tensor  # of sine products, (n, D, 2K, B), or empty if they are to be made again

    @property
    def value(self) -> Tensor:
        return self.inputs[-1].clone()

    @property
    def ladj(self) -> Tensor:
        return self.slopes.log().sum((0, 1))


def scale_stack(x: Tensor, waves: Waves) -> tuple[Tensor, Tensor]:
    """The stack applied to ``x`` of shape (D, B), and its log-determinant of shape (B,).

    If nobody wants gradients, x may be float64 and the waves float32.
    """
    if not fused_allowed():
        return reference(x, *waves)
    fine = not (torch.is_grad_enabled() and any(t.requires_grad for t in (x, *waves)))
    kernels = wave_kernels(waves.frequency.shape[-2], x, *waves, fine=fine) if _is_shared(waves) else None
    if kernels is None:
        value, ladj = _Fused.apply(torch.is_grad_enabled(), x, *waves.to(x.dtype))
    else:
        value, ladj = _Compiled.apply(kernels.scale_stack, torch.is_grad_enabled(), x, *waves)
    return value, ladj


def reference(x: Tensor, frequency: Tensor, cosine: Tensor, sine: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, in plain PyTorch."""
    ladj = torch.zeros_like(x[0])
    for wave in zip(frequency, cosine, sine, shift, strict=True):
        x, log_slope = transform(x, Waves(*wave))
        ladj = ladj + log_slope.sum(0)
    return x, ladj


def run(x: Tensor, waves: Waves, keep: bool = False) -> Trace:
    """The stack, with what its gradients need; with ``keep``, more of it if that is not too large."""
    count, features, width, _ = waves.frequency.shape
    inputs = x.new_empty((count + 1, *x.shape))
    slopes = x.new_empty((count, *x.shape))
    keep = keep and 2 * width * slopes.numel() <= _KEEP
    tables = x.new_empty((count, features, 2 * width, x.shape[-1]) if keep else (0,))
    inputs[0] = x
    forward = _shared_forward if _is_shared(waves) else _per_row_forward
    with torch.inference_mode():  # small calls are cheaper without their records
        for chunk in feature_chunks(features, x.shape[-1], width):
            kept = tables[:, chunk].unbind(0) if keep else [None] * count
            forward(chunk, waves, Scratch(x[chunk], width), inputs, slopes, kept)
    return Trace(inputs, slopes, tables)


def gradients(trace: Trace, waves: Waves, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Waves]:
    """The chain rule through the stack: gradients of x and of the waves."""
    backward = _shared_backward if _is_shared(waves) else _per_row_backward
    return backward(trace, waves, grad_z, grad_ladj)


def _is_shared(waves: Waves) -> bool:
    return waves.frequency.shape[-1] == 1


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad_enabled: bool, x: Tensor, *numbers: Tensor) -> tuple[Tensor, Tensor]:
        a, p, q, d = numbers
        learning = grad_enabled and any(ctx.needs_input_grad)
        trace = run(x, Waves(a, p, q, d), keep=learning)
        if learning:
            ctx.save_for_backward(x, a, p, q, d, *trace)
        return trace.value, trace.ladj

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor | None, ...]:
        x, a, p, q, d, *trace = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *reference_backward(reference, (x, a, p, q, d), (grad_z, grad_ladj))
        grad_x, grad_waves = gradients(Trace(*trace), Waves(a, p, q, d), grad_z, grad_ladj)
        return None, grad_x, *grad_waves


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, grad_enabled: bool, x: Tensor, *numbers: Tensor) -> tuple[Tensor, Tensor]:
        learning = grad_enabled and any(ctx.needs_input_grad)
        value, ladj, inputs = kernels.forward(x, Waves(*numbers), keep=learning)
        if learning:
            ctx.kernels = kernels
            ctx.save_for_backward(x, *numbers, inputs)
        return value, ladj

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor | None, ...]:
        x, a, p, q, d, inputs = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, *reference_backward(reference, (x, a, p, q, d), (grad_z, grad_ladj))
        grad_x, grad_waves = ctx.kernels.backward(inputs, Waves(a, p, q, d), grad_z, grad_ladj)
        return None, None, grad_x, *grad_waves


# ---------------------------------------------------------------- all rows have the same waves
#
# Then sums over waves and over rows are matrix products. With the table (sin² u, sin u cos u) of
# shape (D, 2K, B), the value and the slope are rows of one product with the coefficients, and all
# gradients of the parameters are entries of one product of the table with the incoming gradients.


def _shared_forward(
    chunk: slice, waves: Waves, scratch: Scratch, inputs: Tensor, slopes: Tensor, tables: Sequence[Tensor | None]
) -> None:
    a, p, q, d = (t[:, chunk] for t in waves)
    coefficients = torch.cat([q / a, p / -a, 2 * p, 2 * q], dim=-1).view(*a.shape[:3], 2, 2)
    coefficients = coefficients.permute(0, 1, 3, 4, 2).flatten(3)  # (n, D, 2, 2K)
    constants = torch.stack([d, 1 - p.sum(-2)], dim=-2)
    starts, ends = inputs[:-1, chunk], inputs[1:, chunk]
    for fa, constant, coefficient, start, end, slope, table in zip(
        a, constants, coefficients, starts, ends, slopes[:, chunk], tables, strict=True
    ):
        both = torch.baddbmm(constant, coefficient, scratch.fill(fa, start, table))
        torch.add(start, both[:, 0], out=end)
        slope.copy_(both[:, 1])


def _shared_backward(trace: Trace, waves: Waves, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Waves]:
    a, p, q, d = waves
    count, features, width, _ = a.shape
    rows = grad_z.shape[-1]
    curvature_row = torch.cat([-4 * a * q, 4 * a * p], dim=-2).mT
    curvature_constant = (2 * a * q).sum(-2, keepdim=True)
    moments = a.new_empty((count, features, 4, 2 * width))
    sums = a.new_empty((count, features, 4))
    grad_x = torch.empty_like(grad_z)
    with torch.inference_mode():
        for chunk in feature_chunks(features, rows, width):
            table = _all_tables(trace, waves, chunk).flatten(0, 1)  # (n D, 2K, B)
            constant, row = curvature_constant[:, chunk].flatten(0, 1), curvature_row[:, chunk].flatten(0, 1)
            start, slope = trace.inputs[:-1, chunk], trace.slopes[:, chunk]
            # The incoming gradients of value and slope, and both times x, of every transformer.
            incoming = grad_z.new_empty((*start.shape[:2], 4, rows))
            grad, grad_slope = incoming[:, :, 0], incoming[:, :, 1]
            torch.div(grad_ladj, slope, out=grad_slope)
            bent = torch.baddbmm(constant, row, table).view(start.shape).mul_(grad_slope)
            grad[-1] = grad_z[chunk]
            for i in range(count - 1, 0, -1):
                torch.addcmul(bent[i], grad[i], slope[i], out=grad[i - 1])
            torch.addcmul(bent[0], grad[0], slope[0], out=grad_x[chunk])
            torch.mul(start.unsqueeze(2), incoming[:, :, :2], out=incoming[:, :, 2:])
            moments[:, chunk] = torch.bmm(incoming.flatten(0, 1), table.mT).view(moments[:, chunk].shape)
            torch.sum(incoming, -1, out=sums[:, chunk])
    square, product = moments.unsqueeze(-1).split(width, dim=-2)  # (n, D, 4, K, 1)
    s_value, s_slope, s_xvalue, s_xslope = sums[..., None, None].unbind(2)
    value_a, slope_a, xvalue_a, xslope_a = square.unbind(2)
    value_b, slope_b, xvalue_b, xslope_b = product.unbind(2)
    grad_p = 2 * slope_a - value_b / a - s_slope
    grad_q = 2 * slope_b + value_a / a
    grad_u = (2 * q * xvalue_b - p * (s_xvalue - 2 * xvalue_a)) / a
    grad_u = grad_u + 4 * p * xslope_b + 2 * q * (s_xslope - 2 * xslope_a)
    grad_a = grad_u - (q * value_a - p * value_b) / (a * a)
    return grad_x, Waves(grad_a, grad_p, grad_q, s_value.squeeze(-1).sum_to_size(d.shape))


def _all_tables(trace: Trace, waves: Waves, chunk: slice) -> Tensor:
    """The tables of some features for all transformers, (n, D, 2K, B): those that were kept, or made again."""
    if trace.tables.numel():
        return trace.tables[:, chunk]
    starts = trace.inputs[:-1, chunk]
    scratch = Scratch(starts[0], waves.frequency.shape[-2])
    tables = starts.new_empty((len(starts), *scratch.table.shape))
    for frequency, start, table in zip(waves.frequency[:, chunk], starts, tables, strict=True):
        scratch.fill(frequency, start, table)
    return tables


# ---------------------------------------------------------------- every row has its own waves


def _per_row_forward(
    chunk: slice, waves: Waves, scratch: Scratch, inputs: Tensor, slopes: Tensor, tables: Sequence[Tensor | None]
) -> None:
    spare = scratch.spare
    starts, ends = inputs[:-1, chunk], inputs[1:, chunk]
    parts = (*(t[:, chunk] for t in waves), starts, ends, slopes[:, chunk], tables)
    for a, p, q, d, start, end, slope, table in zip(*parts, strict=True):
        square, product = scratch.fill(a, start, table).chunk(2, dim=-2)
        bend = torch.mul(p, square, out=spare).addcmul_(q, product).sum(-2)
        torch.sub(bend.mul_(2).add_(1), p.sum(-2), out=slope)
        rise = torch.mul(q, square, out=spare).addcmul_(p, product, value=-1).div_(a).sum(-2)
        torch.add(start, rise.add_(d), out=end)


def _per_row_backward(trace: Trace, waves: Waves, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Waves]:
    count, features, width, rows = waves.frequency.shape
    grad_x = torch.empty_like(grad_z)
    grad_d = grad_z.new_empty((count, *grad_z.shape))
    grads = [grad_z.new_empty((count, features, width, rows)) for _ in range(3)]
    for chunk in feature_chunks(features, rows, width):
        scratch = Scratch(grad_z[chunk], width)
        cosine = scratch.spare
        tables = _kept(trace, chunk)
        grad = grad_z[chunk]
        stacks = (*waves[:3], trace.inputs[:-1], trace.slopes, grad_d, *grads)
        for a, p, q, x, slope, grad_shift, grad_a, grad_p, grad_q in _backwards(chunk, *stacks):
            start = x.unsqueeze(-2)
            table = tables.pop() if tables else scratch.fill(a, x)
            square, product = table.chunk(2, dim=-2)
            torch.mul(square, -2, out=cosine).add_(1)  # cos 2u; sin 2u is twice the product
            grad_shift.copy_(grad)
            grad_slope = (grad_ladj / slope).unsqueeze(-2)
            grad_rise = grad.unsqueeze(-2) / a
            # By u, the slope changes by the turn, and the rise by minus the bend over a.
            turn = torch.addcmul(q * cosine, p, product, value=2).mul_(2)
            bend = torch.addcmul(p * cosine, q, product, value=-2)
            rise = torch.addcmul(q * square, p, product, value=-1).div_(a)
            torch.mul(start, bend, out=grad_a).add_(rise).mul_(grad_rise).neg_()
            grad_a.addcmul_(start * grad_slope, turn)
            torch.mul(grad_rise, square, out=grad_q).addcmul_(grad_slope, product, value=2)
            torch.mul(grad_rise, product, out=grad_p).addcmul_(grad_slope, cosine).neg_()
            grad = torch.addcmul(grad * slope, grad_slope.squeeze(-2), turn.mul_(a).sum(-2))
        grad_x[chunk] = grad
    grad_a, grad_p, grad_q = grads
    return grad_x, Waves(grad_a, grad_p, grad_q, grad_d.sum_to_size(waves.shift.shape))


def _kept(trace: Trace, chunk: slice) -> list[Tensor]:
    """The tables that were kept for some features, the last one to be used first at the end."""
    return list(trace.tables[:, chunk].unbind(0)) if trace.tables.numel() else []


def _backwards(chunk: slice, *stacks: Tensor) -> list[tuple[Tensor, ...]]:
    """For every scale, from the last to the first, the chosen features of each of the tensors."""
    return list(zip(*(stack[:, chunk].unbind(0) for stack in stacks), strict=True))[::-1]
