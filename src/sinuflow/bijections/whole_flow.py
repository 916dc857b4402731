"""A chain as one map on a GPU, where the CUDA kernels fit it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ..conditioners import MADE
from ..errors import ArgumentError
from ..ops.backends.cuda.driver import CudaLauncher
from ..ops.backends.cuda.packing import Offsets, Packed
from ..ops.backends.cuda.program import Inverted, Kept, Program
from ..ops.backends.cuda.shape import FlowShape
from ..ops.backends.cuda.streams import NetworkOffsets
from ..ops.dropout import Dropout
from ..ops.select import passes_selftest as trusted
from ..ops.select import use_cuda
from .affine import ElementwiseAffine
from .autoregressive import AutoregressiveLayer, AutoregressiveWaves
from .ldu import LDUBlock
from .sinusoidal import SinusoidalScale

if TYPE_CHECKING:
    from .base import Chain

_MOST_WAVES, _MOST_WAVES_IN_ALL = 32, 64
#: For the trial that new kernels are put to: far above rounding, far below any mistake.
_TRIAL_ROWS, _TRIAL_LIMIT, _TRIAL_TOLERANCE = 21, 200, 1e-2


class Anatomy(NamedTuple):
    """A chain that the kernels know: its shape, and where its numbers are."""

    shape: FlowShape
    offsets: Offsets


def anatomy(chain: Chain) -> Anatomy | None:
    """The chain as the kernels see it, or None if they cannot compute it."""
    layers: list[Any] = list(chain)
    affine: ElementwiseAffine | None = None
    if all(isinstance(layer, AutoregressiveWaves) for layer in layers):
        networks, scales = layers, []
    elif isinstance(layers[-1], ElementwiseAffine) and all(isinstance(layer, LDUBlock) for layer in layers[:-1]):
        parts = [part for block in layers[:-1] for part in block]
        networks = [part for part in parts if isinstance(part, AutoregressiveLayer)]
        scales = [part for part in parts if isinstance(part, SinusoidalScale)]
        affine = layers[-1]
    else:
        return None
    shape = _common_shape(networks, scales, conditional=affine is None)
    if shape is None:
        return None
    parameters = list(chain.parameters())
    ends = [0, *accumulate(parameter.numel() for parameter in parameters)]
    starts = {id(parameter): start for parameter, start in zip(parameters, ends, strict=False)}
    offsets = []
    if not all(isinstance(weight, nn.Parameter) for weight in _weights(networks)):
        return None  # they are computed from others
    for network in networks:
        made = [*network.conditioner.layers, network.conditioner.head]
        offsets.append(NetworkOffsets(*(tuple(starts[id(p)] for p in ps) for ps in _weights_and_biases(made))))
    waves = [p for s in scales for p in (s.frequency, s.phase, s.weight, s.strength, s.shift)]
    waves += [] if affine is None else [affine.mean, affine.log_scale]
    return Anatomy(shape, Offsets(offsets, [starts[id(p)] for p in waves], ends))


def _weights(networks: list[Any]) -> list[Any]:
    layers = [layer for n in networks for layer in (*n.conditioner.layers, n.conditioner.head)]
    return [t for layer in layers for t in (layer.weight, layer.bias)]


def _weights_and_biases(layers: list[Any]) -> tuple[list[Tensor], list[Tensor]]:
    return [layer.weight for layer in layers], [layer.bias for layer in layers]


def _common_shape(networks: list[Any], scales: list[Any], conditional: bool) -> FlowShape | None:
    """The shape that all networks share, or None if they differ or are of another kind."""
    if not networks:
        return None
    first, made = networks[0], networks[0].conditioner
    widths = tuple(len(layer.reach) for layer in made.plan.hidden)
    waves = [n.transformer for n in networks] if conditional else scales
    kinds = {
        (n.conditioner.plan, n.conditioner.skips, n.conditioner.squash, n.conditioner.activation) for n in networks
    }
    kinds_of_waves = {(w.scales, w.waves) for w in waves}
    # Every second one is upside down: the upper shift of a block, or the second layer of conditional waves.
    directions = [n.reverse for n in networks] == [i % 2 == (1 if conditional else 0) for i in range(len(networks))]
    if len(set(widths)) != 1 or len(kinds) != 1 or len(kinds_of_waves) != 1 or not directions:
        return None
    # With a context, plain scales depend on the row; and the kernels' loops over waves are written out.
    many = waves[0].waves > _MOST_WAVES or waves[0].scales * waves[0].waves > _MOST_WAVES_IN_ALL
    if made.activation != "relu" or (first.context and not conditional) or many:
        return None
    return FlowShape(
        features=first.features,
        context=first.context,
        hidden=widths,
        residual=any(made.skips),
        scales=waves[0].scales,
        waves=waves[0].waves,
        squash=made.squash or 0.0,
        conditional=conditional,
        networks=len(networks),
    )


class WholeFlow:
    """A chain's kernels on one device."""

    def __init__(self, chain: Chain, found: Anatomy, program: Program) -> None:
        self.shape, self.program = found.shape, program
        self._chain = weakref.ref(chain)  # the chain owns this, not the other way round
        self._networks = [made for made in chain.modules() if isinstance(made, MADE)]
        self._learns: bool | None = None

    @property
    def chain(self) -> Chain:
        """The chain itself."""
        chain = self._chain()
        assert chain is not None
        return chain

    def parameters(self) -> list[Tensor]:
        """The chain's parameters, in the order of its offsets."""
        parameters = list[Tensor](self.chain.parameters())
        if any(p.dtype != torch.float32 for p in parameters):
            raise ArgumentError("some parameters are float32 and some are not: convert them with flow.float()")
        if any(p.device != self.program.device for p in parameters):  # the kernels take bare addresses
            raise ArgumentError(f"some parameters are not on {self.program.device}: move the whole flow with flow.to")
        return parameters

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """z of shape (D, B) and the log-determinant of shape (B,)."""
        parameters = self.parameters()
        given = (x, *([] if context is None else [context]), *parameters)
        if torch.is_grad_enabled() and any(t.requires_grad for t in given) and not self.learns():
            return self.plain_transform(x, context)
        z, ladj = _Transform.apply(torch.is_grad_enabled(), self, self.dropout(), x, context, *parameters)
        return z, ladj

    def learns(self) -> bool:
        """Whether the gradients can be trusted, too: they are tried when they are first wanted."""
        if self._learns is None:
            self._learns = True  # for the trial itself
            told = "the gradients of the flow program"
            self._learns = trusted(lambda: gradients_agree(self), told)
        return self._learns

    def log_density(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The log-density of every row if z is standard normal, without gradients."""
        packed = self.program.pack([p.contiguous() for p in self.parameters()])
        given = None if context is None else context.contiguous()
        return self.program.forward(packed, x.contiguous(), given, keep=False, dropout=self.dropout()).log_density

    def rates(self) -> set[float]:
        """Of dropout, in all networks; the kernels know flows with one."""
        return {made.dropout if made.training else 0.0 for made in self._networks}

    def dropout(self) -> Dropout | None:
        """Which units to drop this time."""
        (rate,) = self.rates()
        return Dropout.draw(rate, self.program.device) if rate else None

    @contextmanager
    def undropped(self) -> Iterator[None]:
        """Without dropout, for a while."""
        active = [made for made in self._networks if made.training]
        for made in active:
            made.training = False
        try:
            yield
        finally:
            for made in active:
                made.training = True

    def plain_transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """The same, layer by layer."""
        return self.chain.layer_by_layer(x, context)

    def invert(self, z: Tensor, context: Tensor | None, limit: int) -> Inverted:
        """x, the inverse's log-determinant, and the certificate of every layer; without gradients."""
        packed = self.program.pack_inverse([p.contiguous() for p in self.parameters()])
        given = None if context is None else context.contiguous()
        return self.program.inverse(packed, z.contiguous(), given, limit)


class _Transform(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        grad_enabled: bool,
        whole: WholeFlow,
        dropout: Dropout | None,
        x: Tensor,
        context: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        learning = grad_enabled and any(ctx.needs_input_grad)
        given = None if context is None else context.contiguous()
        packed = whole.program.pack([p.contiguous() for p in parameters], learning)
        scored = whole.program.forward(packed, x.contiguous(), given, keep=learning, dropout=dropout)
        if learning:
            assert scored.kept is not None
            ctx.whole, ctx.dropout = whole, dropout
            left = [*packed, *scored.kept]  # saved with the rest, so that it goes when the gradients are there
            ctx.there = [t is not None for t in left]
            tensors = [t for t in left if t is not None]
            ctx.save_for_backward(*tensors, scored.z, x, *([] if context is None else [context]), *parameters)
        return scored.z, scored.ladj

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Any, ...]:
        whole: WholeFlow = ctx.whole
        saved = iter(ctx.saved_tensors)  # PyTorch refuses if one of them was changed in place
        left: list[Any] = [next(saved) if there else None for there in ctx.there]
        packed, kept = Packed(*left[: len(Packed._fields)]), Kept(*left[len(Packed._fields) :])
        z, x, *saved = saved
        context, parameters = (saved[0], saved[1:]) if whole.shape.context else (None, saved)
        if torch.is_grad_enabled():
            if ctx.dropout:
                raise ArgumentError(
                    "the CUDA kernels have no second derivatives while dropout is active: call .eval() first, or set "
                    "SINUFLOW_KERNELS=triton in the environment"
                )
            return None, None, None, *_differentiable(whole, x, context, parameters, (grad_z, grad_ladj))
        grads = grad_z.contiguous(), grad_ladj.contiguous()
        found = whole.program.backward(packed, z, kept, *grads, dropout=ctx.dropout)
        pieces = found.parameters.split([p.numel() for p in parameters])
        of_parameters = [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]
        return None, None, None, found.x, found.context, *of_parameters


def _differentiable(
    whole: WholeFlow, x: Tensor, context: Tensor | None, parameters: list[Tensor], grads: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Gradients that can be differentiated again, layer by layer; there was no dropout, whatever there is by now."""
    with torch.enable_grad(), whole.undropped():
        seen = x.view_as(x)
        given = None if context is None else context.view_as(context)
        outputs = whole.plain_transform(seen, given)
    leaves = [seen, *([] if given is None else [given]), *parameters]
    wanted = [t for t in leaves if t.requires_grad]
    found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True, allow_unused=True))
    result = [next(found) if t.requires_grad else None for t in leaves]
    return tuple(result) if given is not None else (result[0], None, *result[1:])


#: The kernels of the chains that are in use.
_KNOWN: weakref.WeakKeyDictionary[Chain, dict[torch.device, WholeFlow | None]] = weakref.WeakKeyDictionary()


def whole_flow(chain: Chain, x: Tensor) -> WholeFlow | None:
    """The kernels for a chain and a batch, if there are any that fit."""
    if x.dtype != torch.float32 or not use_cuda(x):
        return None
    known = _KNOWN.setdefault(chain, {})
    if x.device not in known:
        known[x.device] = _build(chain, x.device)
    whole = known[x.device]
    return None if whole is None or len(whole.rates()) > 1 else whole


def _build(chain: Chain, device: torch.device) -> WholeFlow | None:
    found = anatomy(chain)
    if found is None:
        return None
    program = Program(found.shape, found.offsets, device, CudaLauncher(found.shape, device))
    if not program.fits():
        return None
    whole = WholeFlow(chain, found, program)
    told = "the kernels of the flow program"
    return whole if trusted(lambda: agrees(whole), told) else None


def _trial_rows(whole: WholeFlow) -> tuple[Tensor, Tensor | None]:
    shape, device = whole.shape, whole.program.device
    generator = torch.Generator().manual_seed(0)
    with torch.device("cpu"):
        x = torch.randn((shape.features, _TRIAL_ROWS), generator=generator, dtype=torch.float32)
        context = torch.randn((shape.context, _TRIAL_ROWS), generator=generator, dtype=torch.float32)
    return x.to(device), context.to(device) if shape.context else None


def gradients_agree(whole: WholeFlow) -> bool:
    """Whether the kernels' gradients of a few rows are those of the layers.

    By their norms: where a unit is as good as zero, rounding decides whether it has a gradient.
    """
    x, given = _trial_rows(whole)
    wanted = [x.requires_grad_(), *(p for p in whole.parameters() if p.requires_grad)]
    found = []
    with torch.enable_grad(), whole.undropped():
        for transform in (whole.transform, whole.plain_transform):
            z, ladj = transform(x, given)
            loss = (ladj - 0.5 * z.square().sum(0)).mean()
            grads = torch.autograd.grad(loss, wanted, allow_unused=True)
            found.append([torch.zeros_like(t) if g is None else g for g, t in zip(grads, wanted, strict=True)])
    ours, expected = (torch.cat([g.flatten() for g in grads]) for grads in found)
    size = expected.norm()
    return not bool(size.isfinite()) or bool((ours - expected).norm() <= _TRIAL_TOLERANCE * (1e-6 + size))


def agrees(whole: WholeFlow) -> bool:
    """Whether the kernels do on a few rows what the layers do: nobody shall get a wrong answer silently."""
    x, given = _trial_rows(whole)
    with torch.no_grad(), whole.undropped():
        expected = whole.plain_transform(x, given)
        found = whole.transform(x, given)
        back = whole.invert(found[0], given, _TRIAL_LIMIT)
        again = whole.plain_transform(back.x, given)[0]
    if not bool(expected[0].isfinite().all()):
        return True  # nothing can be told from weights that are no numbers
    pairs = [*zip(found, expected, strict=True), (again, expected[0])]
    close = [bool(((a - b).abs() <= _TRIAL_TOLERANCE * (1 + b.abs().max())).all()) for a, b in pairs]
    return all(close) and bool(back.converged.all())
