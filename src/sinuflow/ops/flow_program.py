"""A chain of autoregressive layers, or of LDU blocks, as one op: a single CUDA kernel per direction.

The op reads a chain's :class:`~sinuflow.registry.Spec`, and the names and shapes of its parameters. The reference
implementation is the chain's ``layer_by_layer``, which the op calls for the self-test and for second derivatives.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, StorageError
from ..registry import Spec
from .autograd import needs_gradients
from .backends.cuda.driver import CudaLauncher
from .backends.cuda.packing import Layout, Packed
from .backends.cuda.program import Activations, Inverse, Program
from .backends.cuda.shape import FlowShape
from .dropout import Dropout
from .select import passes_selftest, use_cuda

#: The maximum number of waves of a transformer, and of a layer.
_MAX_WAVES, _MAX_LAYER_WAVES = 32, 64
#: The self-test: rows, iterations of the inverse, and a tolerance far above rounding errors and far below a defect.
_TEST_ROWS, _TEST_ITERATIONS, _TEST_TOLERANCE = 21, 200, 1e-2
#: Parameters of the waves of an LDU block, in the order of the kernels.
_WAVE_PARAMETERS = ("frequency", "phase", "weight", "strength", "shift")


class ChainProtocol(Protocol):
    """The methods of a chain of bijections that the op uses."""

    def spec(self) -> Spec: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def layer_by_layer(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]: ...


def layout(spec: Spec, parameters: Iterable[tuple[str, Tensor]]) -> Layout | None:
    """The layout of a chain with these named parameters, or None if the kernels do not support it.

    They support ``AutoregressiveWaves`` in alternating directions, and ``LDUBlock`` followed by ``ElementwiseAffine``.
    The layers must have equal hyperparameters, ReLU networks of one hidden width, and no parametrized parameters.
    """
    layers: list[Spec] = spec.arguments.get("bijections", []) if spec.name == "Chain" else []
    kinds = [layer.name for layer in layers]
    if kinds and set(kinds) == {"AutoregressiveWaves"}:
        conditional, blocks = True, []
        networks = [f"bijections.{i}.conditioner." for i in range(len(layers))]
    elif len(kinds) > 1 and set(kinds[:-1]) == {"LDUBlock"} and kinds[-1] == "ElementwiseAffine":
        conditional, blocks = False, [f"bijections.{i}.bijections" for i in range(len(layers) - 1)]
        networks = [f"{block}.{i}.conditioner." for block in blocks for i in (0, 2)]
        layers = layers[:-1]
    else:
        return None
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters}
    first = layers[0].arguments
    hidden = tuple(
        shape[0] for name, shape in shapes.items() if name.startswith(f"{networks[0]}layers.") and "bias" in name
    )
    per_layer = dict.fromkeys(("reverse", "dropout"))  # directions alternate; dropout may change after construction
    equal = all({**layer.arguments, **per_layer} == {**first, **per_layer} for layer in layers)
    alternating = not conditional or all(layer.arguments["reverse"] == (i % 2 == 1) for i, layer in enumerate(layers))
    if len(set(hidden)) != 1 or not equal or not alternating or first.get("activation", "relu") != "relu":
        return None
    # With a context, the waves of LDU blocks depend on the row; and the kernels' loops over waves are unrolled.
    scales, waves = first["scales"], first["waves"]
    if (first["context"] and not conditional) or waves > _MAX_WAVES or scales * waves > _MAX_LAYER_WAVES:
        return None
    shape = FlowShape(
        features=first["features"],
        context=first["context"],
        hidden=hidden,
        residual=first.get("residual", False) and len(hidden) > 2,
        scales=scales,
        waves=waves,
        squash=first.get("squash_width") or 0.0,
        conditional=conditional,
        networks=len(networks),
    )
    names = [*(f"layers.{i}" for i in range(shape.depth)), "head"]
    expected: dict[str, tuple[int, ...]] = {
        f"{network}{name}.{kind}": (len(layer.reach), layer.columns[-1])[: 2 if kind == "weight" else 1]
        for network in networks
        for name, layer in zip(names, shape.plan.layers, strict=True)
        for kind in ("weight", "bias")
    }
    wave_shapes: dict[str, tuple[int, ...]] = {
        f"{block}.1.{name}": (scales, shape.features, waves)[: 3 if i < 3 else 2]
        for block in blocks
        for i, name in enumerate(_WAVE_PARAMETERS)
    }
    if blocks:
        wave_shapes |= {f"bijections.{len(blocks)}.{name}": (shape.features,) for name in ("mean", "log_scale")}
    if shapes != expected | wave_shapes:
        return None
    ends = list(accumulate((math.prod(shape) for shape in shapes.values()), initial=0))
    starts = dict(zip(shapes, ends, strict=False))
    weights, biases = (
        [tuple(starts[f"{network}{name}.{kind}"] for name in names) for network in networks]
        for kind in ("weight", "bias")
    )
    return Layout(shape, weights, biases, [starts[name] for name in wave_shapes], ends)


class FlowProgram:
    """The op for one chain on one device. Batches are feature-major, (D, B); the context is (C, B)."""

    def __init__(self, chain: ChainProtocol, program: Program) -> None:
        self.program = program
        self._chain = weakref.ref(chain)  # the cache must not keep the chain alive
        self._with_dropout: list[Any] = [module for module in chain.modules() if hasattr(module, "dropout")]
        self._gradients_verified: bool | None = None

    @property
    def chain(self) -> ChainProtocol:
        """The chain itself."""
        chain = self._chain()
        assert chain is not None
        return chain

    def parameters(self) -> list[Tensor]:
        """The chain's parameters, in the order of its offsets."""
        parameters = list[Tensor](self.chain.parameters())
        if any(p.dtype != torch.float32 for p in parameters):
            raise ArgumentError("some parameters are float32 and some are not: convert them with flow.float()")
        if any(p.device != self.program.device for p in parameters):  # the kernels take pointers
            raise ArgumentError(f"some parameters are not on {self.program.device}: move the whole flow with flow.to")
        return parameters

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """z of shape (D, B) and the log-determinant of shape (B,), with gradients."""
        parameters = self.parameters()
        inputs = (x, *([] if context is None else [context]), *parameters)
        if needs_gradients(*inputs) and not self.has_gradients():
            return self.chain.layer_by_layer(x, context)
        z, ladj = _Transform.apply(torch.is_grad_enabled(), self, self.dropout(), x, context, *parameters)
        return z, ladj

    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of every row for a standard normal base, without gradients."""
        packed = self.program.pack(self.parameters(), "score")
        return self.program.forward(packed, x, context, keep=False, dropout=self.dropout()).log_density

    def nll_gradient(self, x: Tensor, context: Tensor | None, out: Tensor) -> Tensor:
        """The log-density of every row, and in ``out`` the gradient of minus their mean.

        ``out`` has the parameters' gradients one after the other, and must have zeros where weights are masked. A CUDA
        graph can capture it.
        """
        packed, dropout = self.program.pack(self.parameters(), "learn"), self.dropout()
        scored = self.program.forward(packed, x, context, keep=True, dropout=dropout)
        assert scored.activations is not None
        self.program.backward(
            packed, scored.z, scored.activations, None, None, 1 / x.shape[-1], out=out, dropout=dropout
        )
        return scored.log_density

    def inverse(self, z: Tensor, context: Tensor | None, limit: int) -> Inverse:
        """x, the inverse's log-determinant, and the certificate of every layer; without gradients."""
        return self.program.inverse(self.program.pack(self.parameters(), "invert"), z, context, limit)

    def has_gradients(self) -> bool:
        """Whether the gradients pass their self-test, which runs at first use."""
        if self._gradients_verified is None:
            self._gradients_verified = True  # for the self-test
            kernels = "the gradients of the flow program"
            self._gradients_verified = passes_selftest(lambda: gradients_agree(self), kernels)
        return self._gradients_verified

    def dropout_rates(self) -> set[float]:
        """The distinct active rates of the networks; the kernels support flows with a single rate."""
        return {module.dropout if module.training else 0.0 for module in self._with_dropout}

    def dropout(self) -> Dropout | None:
        """A fresh dropout mask, if dropout is active."""
        (rate,) = self.dropout_rates()
        return Dropout.draw(rate, self.program.device) if rate else None

    @contextmanager
    def without_dropout(self) -> Iterator[None]:
        """Disable dropout temporarily."""
        active = [module for module in self._with_dropout if module.training]
        for module in active:
            module.training = False
        try:
            yield
        finally:
            for module in active:
                module.training = True


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        grad_enabled: bool,
        op: FlowProgram,
        dropout: Dropout | None,
        x: Tensor,
        context: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        learning = grad_enabled and any(ctx.needs_input_grad)
        packed = op.program.pack(parameters, "learn" if learning else "score")
        scored = op.program.forward(packed, x, context, keep=learning, dropout=dropout)
        if learning:
            assert scored.activations is not None
            ctx.op, ctx.dropout = op, dropout
            # Saved by autograd, the kernels' tensors are freed with the others.
            ctx.save_for_backward(*packed, *scored.activations, scored.z, x, context, *parameters)
        return scored.z, scored.ladj

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Any, ...]:
        op: FlowProgram = ctx.op
        saved: list[Any] = list(ctx.saved_tensors)  # PyTorch raises if one of them was changed in place
        first, second = len(Packed._fields), len(Packed._fields) + len(Activations._fields)
        packed, activations = Packed(*saved[:first]), Activations(*saved[first:second])
        z, x, context, *parameters = saved[second:]
        if torch.is_grad_enabled():
            if ctx.dropout:
                raise ArgumentError(
                    "the CUDA kernels have no second derivatives while dropout is active: call .eval() first, or set "
                    "SINUFLOW_KERNELS=triton in the environment"
                )
            return None, None, None, *_second_order(op, x, context, parameters, (grad_z, grad_ladj))
        grads = op.program.backward(packed, z, activations, grad_z, grad_ladj, dropout=ctx.dropout)
        pieces = grads.parameters.split([p.numel() for p in parameters])
        grad_parameters = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]
        return None, None, None, grads.x, grads.context, *grad_parameters


def _second_order(
    op: FlowProgram, x: Tensor, context: Tensor | None, parameters: list[Tensor], grads: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Differentiable gradients, by the reference implementation; the forward pass had no dropout."""
    with torch.enable_grad(), op.without_dropout():
        x = x.view_as(x)
        context = None if context is None else context.view_as(context)
        outputs = op.chain.layer_by_layer(x, context)
    leaves = [x, context, *parameters]
    differentiable = [t for t in leaves if t is not None and t.requires_grad]
    results = iter(torch.autograd.grad(outputs, differentiable, grads, create_graph=True, allow_unused=True))
    return tuple(next(results) if t is not None and t.requires_grad else None for t in leaves)


# ---------------------------------------------------------------- selection and self-test

#: The programs by chain, which are freed with the chain.
_PROGRAMS: weakref.WeakKeyDictionary[Any, dict[torch.device, FlowProgram | None]] = weakref.WeakKeyDictionary()


def flow_program(chain: ChainProtocol, x: Tensor) -> FlowProgram | None:
    """The op for a chain and a batch, or None if the layers must run one by one."""
    if x.dtype != torch.float32 or not use_cuda(x):
        return None
    programs = _PROGRAMS.setdefault(chain, {})
    if x.device not in programs:
        programs[x.device] = _build(chain, x.device)
    op = programs[x.device]
    return None if op is None or len(op.dropout_rates()) > 1 else op


def _build(chain: ChainProtocol, device: torch.device) -> FlowProgram | None:
    try:
        compiled = layout(chain.spec(), chain.named_parameters())
    except StorageError:  # a layer cannot describe itself
        return None
    if compiled is None:
        return None
    op = FlowProgram(chain, Program(compiled, device, CudaLauncher(compiled.shape, device)))
    return op if op.program.fits() and passes_selftest(lambda: agrees(op), "the kernels of the flow program") else None


def _random_rows(op: FlowProgram) -> tuple[Tensor, Tensor | None]:
    shape, device, generator = op.program.shape, op.program.device, torch.Generator().manual_seed(0)
    with torch.device("cpu"):
        x = torch.randn((shape.features, _TEST_ROWS), generator=generator, dtype=torch.float32)
        context = torch.randn((shape.context, _TEST_ROWS), generator=generator, dtype=torch.float32)
    return x.to(device), context.to(device) if shape.context else None


def agrees(op: FlowProgram) -> bool:
    """Whether the kernels agree with the layers on a few rows, the inverse included."""
    x, context = _random_rows(op)
    with torch.no_grad(), op.without_dropout():
        expected = op.chain.layer_by_layer(x, context)
        ours = op.transform(x, context)
        inverse = op.inverse(ours[0], context, _TEST_ITERATIONS)
        round_trip = op.chain.layer_by_layer(inverse.x, context)[0]
    if not bool(expected[0].isfinite().all()):
        return True  # with NaN weights there is nothing to compare
    pairs = [*zip(ours, expected, strict=True), (round_trip, expected[0])]
    close = [bool(((a - b).abs() <= _TEST_TOLERANCE * (1 + b.abs().max())).all()) for a, b in pairs]
    return all(close) and bool(inverse.converged.all())


def gradients_agree(op: FlowProgram) -> bool:
    """Whether the kernels' gradients agree with the layers' on a few rows.

    They are compared in norm, because rounding decides whether a ReLU unit next to zero is active.
    """
    x, context = _random_rows(op)
    leaves = [x.requires_grad_(), *(p for p in op.parameters() if p.requires_grad)]
    flat = []
    with torch.enable_grad(), op.without_dropout():
        for transform in (op.transform, op.chain.layer_by_layer):
            z, ladj = transform(x, context)
            loss = (ladj - 0.5 * z.square().sum(0)).mean()
            grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
            flat.append(torch.cat([g.flatten() for g in grads]))
    ours, expected = flat
    norm = expected.norm()
    return not bool(norm.isfinite()) or bool((ours - expected).norm() <= _TEST_TOLERANCE * (1e-6 + norm))
