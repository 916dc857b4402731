"""All that the kernels can do for one flow: score, differentiate, invert."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from .arguments import (
    Arguments,
    BackwardArguments,
    ForwardArguments,
    InverseArguments,
    PrepareArguments,
    WaveArguments,
    WeightArguments,
)
from .inverse_layout import InverseLayout, inverse_layout
from .layout import Layout, NetworkOffsets, layout
from .shape import FlowShape

#: Warps to a block.
_WARPS = 8
_PREPARE_THREADS, _WEIGHT_THREADS, _WAVE_THREADS = 256, 128, 128


class Launcher(Protocol):
    """Whoever runs the kernels."""

    processors: int
    shared_bytes: int  # that a block can have

    def launch(
        self, name: str, rows: int, warps: int, grid: tuple[int, ...], threads: int, shared: int, arguments: Arguments
    ) -> None:
        """Run a kernel on a grid of blocks."""


class Offsets(NamedTuple):
    """Where the numbers of a flow are among its parameters, put one after the other."""

    networks: list[NetworkOffsets]
    waves: list[int]  # for every block: frequency, phase, weight, strength, shift; then mean, log-scale
    total: int  # of all parameters; after them comes a zero


class Packed(NamedTuple):
    """The parameters as the kernels want them."""

    parameters: Tensor
    weights: Tensor
    biases: Tensor
    transposed: Tensor | None
    inner: Tensor | None
    waves: Tensor | None
    affine: Tensor | None


class Kept(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    inputs: Tensor
    hidden: Tensor
    outputs: Tensor | None
    x: Tensor


class Scored(NamedTuple):
    """Noise (D, B), log-determinant (B,), log-density (B,)."""

    z: Tensor
    ladj: Tensor
    log_density: Tensor
    kept: Kept | None


class Gradients(NamedTuple):
    """Of the data (D, B), of the context (C, B), and of all parameters, one after the other."""

    x: Tensor
    context: Tensor | None
    parameters: Tensor


class Inverted(NamedTuple):
    """Data (D, B) and the inverse's log-determinant; certificates (layers, B), in the order of inversion."""

    x: Tensor
    ladj: Tensor
    iterations: Tensor
    residual: Tensor
    converged: Tensor


class Program:
    """A flow's kernels, and the tables that they work with."""

    def __init__(self, shape: FlowShape, offsets: Offsets, device: torch.device, launcher: Launcher) -> None:
        self._shape, self._offsets, self._launcher = shape, offsets, launcher
        self.device = device
        self._layout = _moved(layout(shape, offsets.networks, offsets.total), device)
        self._inverse = _moved(inverse_layout(shape, offsets.networks, offsets.total), device)
        biases = self._layout.biases.flatten()
        self._score_index = torch.cat([biases, self._layout.forward])
        self._train_index = torch.cat([biases, self._layout.forward, self._layout.backward])
        self._sample_index = torch.cat([biases, self._inverse.weights, self._inverse.inner])
        self._wave_offsets = torch.tensor(offsets.waves, dtype=torch.int32, device=device)
        self._weight_offsets = self._table([n.weights for n in offsets.networks])
        self._bias_offsets = self._table([n.biases for n in offsets.networks])

    def _table(self, rows: list[tuple[int, ...]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=self.device)

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=torch.float32)

    # ---------------------------------------------------------------- parameters

    def pack(self, parameters: Tensor, learning: bool = False) -> Packed:
        """Prepare to score, and with ``learning`` to differentiate; ``parameters`` end with a zero."""
        sections = [self._layout.biases.numel(), self._layout.forward.numel()]
        index = self._train_index if learning else self._score_index
        packed, waves, affine = self._prepare(parameters, index)
        biases, weights = packed[: sections[0]], packed[sections[0] : sum(sections)]
        return Packed(parameters, weights, biases, packed[sum(sections) :] if learning else None, None, waves, affine)

    def pack_inverse(self, parameters: Tensor) -> Packed:
        """Prepare to invert."""
        packed, waves, affine = self._prepare(parameters, self._sample_index)
        first = self._layout.biases.numel()
        second = first + self._inverse.weights.numel()
        return Packed(parameters, packed[first:second], packed[:first], None, packed[second:], waves, affine)

    def _prepare(self, parameters: Tensor, index: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        shape = self._shape
        packed = self._empty(len(index))
        waves = affine = None
        if not shape.conditional:
            waves = self._empty(shape.blocks, shape.scales, 3 * shape.waves + 1, shape.features)
            affine = self._empty(2, shape.features)
        arguments = PrepareArguments(
            parameters=parameters,
            index=index,
            offsets=self._wave_offsets,
            packed=packed,
            waves=waves,
            affine=affine,
            count=len(index),
        )
        blocks = min(8 * self._launcher.processors, -(-len(index) // _PREPARE_THREADS))
        self._launcher.launch("prepare", 8, _WARPS, (blocks,), _PREPARE_THREADS, 0, arguments)
        return packed, waves, affine

    # ---------------------------------------------------------------- data to noise

    def forward(self, packed: Packed, x: Tensor, context: Tensor | None, keep: bool) -> Scored:
        """Score a batch of shape (D, B)."""
        shape, batch = self._shape, x.shape[-1]
        z, ladj, log_density = torch.empty_like(x), self._empty(batch), self._empty(batch)
        kept = self._room(batch) if keep else None
        arguments = ForwardArguments(
            x=x,
            context=context,
            weights=packed.weights,
            spans=self._layout.forward_spans,
            biases=packed.biases,
            waves=packed.waves,
            affine=packed.affine,
            z=z,
            ladj=ladj,
            log_density=log_density,
            kept_inputs=kept and kept.inputs,
            kept_hidden=kept and kept.hidden,
            kept_outputs=kept and kept.outputs,
            kept_x=kept and kept.x,
            batch=batch,
            network_size=self._layout.forward_size,
        )
        rows = self._rows(batch)
        self._over_rows("flow_forward", batch, rows, shape.forward_shared(rows, _WARPS), arguments)
        return Scored(z, ladj, log_density, kept)

    def _room(self, batch: int) -> Kept:
        shape = self._shape
        networks, depth = shape.networks, len(shape.hidden)
        return Kept(
            self._empty(networks, batch, shape.inputs),
            self._empty(networks, depth, batch, shape.units),
            self._empty(networks, batch, shape.head) if shape.conditional else None,
            self._empty(networks if shape.conditional else shape.blocks * shape.scales, shape.features, batch),
        )

    # ---------------------------------------------------------------- gradients

    def backward(
        self,
        packed: Packed,
        z: Tensor,
        kept: Kept,
        grad_z: Tensor | None,
        grad_ladj: Tensor | None,
        nll_scale: float = 0.0,
        out: Tensor | None = None,
    ) -> Gradients:
        """The chain rule through :meth:`forward`.

        Without ``grad_z`` and ``grad_ladj``, of minus the log-densities, times ``nll_scale``. The gradient
        of the parameters goes to ``out``, if it is given: it must have zeros where weights are masked.
        """
        shape, batch = self._shape, z.shape[-1]
        networks, depth = shape.networks, len(shape.hidden)
        grad_x = torch.empty_like(z)
        grad_context = self._empty(shape.context, batch) if shape.context else None
        grad_outputs = self._empty(networks, batch, shape.head)
        grad_hidden = self._empty(networks, depth, batch, shape.units)
        grad_values = None if shape.conditional else torch.empty_like(kept.x)
        gradient = torch.zeros(self._offsets.total, device=self.device, dtype=torch.float32) if out is None else out
        arguments = BackwardArguments(
            z=z,
            grad_z=grad_z,
            grad_ladj=grad_ladj,
            weights=packed.transposed,
            spans=self._layout.backward_spans,
            waves=packed.waves,
            affine=packed.affine,
            kept_inputs=kept.inputs,
            kept_hidden=kept.hidden,
            kept_outputs=kept.outputs,
            kept_x=kept.x,
            grad_x=grad_x,
            grad_context=grad_context,
            grad_outputs=grad_outputs,
            grad_hidden=grad_hidden,
            grad_values=grad_values,
            nll_scale=nll_scale,
            batch=batch,
            network_size=self._layout.backward_size,
        )
        rows = self._rows(batch)
        self._over_rows("flow_backward", batch, rows, shape.backward_shared(rows, _WARPS), arguments)
        weights = WeightArguments(
            kept_inputs=kept.inputs,
            kept_hidden=kept.hidden,
            grad_outputs=grad_outputs,
            grad_hidden=grad_hidden,
            jobs=self._layout.jobs,
            reach=self._layout.reach,
            weight_offsets=self._weight_offsets,
            bias_offsets=self._bias_offsets,
            gradient=gradient,
            batch=batch,
        )
        grid = (len(self._layout.jobs), networks)
        self._launcher.launch("weight_gradients", 8, _WARPS, grid, _WEIGHT_THREADS, 0, weights)
        if not shape.conditional:
            waves = WaveArguments(
                parameters=packed.parameters,
                waves=packed.waves,
                affine=packed.affine,
                kept_x=kept.x,
                grad_values=grad_values,
                z=z,
                grad_z=grad_z,
                grad_ladj=grad_ladj,
                offsets=self._wave_offsets,
                gradient=gradient,
                nll_scale=nll_scale,
                batch=batch,
            )
            jobs = (shape.blocks * shape.scales + 1) * shape.features
            self._launcher.launch("wave_gradients", 8, _WARPS, (-(-jobs // 4),), _WAVE_THREADS, 0, waves)
        return Gradients(grad_x, grad_context, gradient)

    # ---------------------------------------------------------------- noise to data

    def inverse(self, packed: Packed, z: Tensor, context: Tensor | None, limit: int) -> Inverted:
        """Invert a batch of shape (D, B), with a certificate for every layer."""
        shape, batch = self._shape, z.shape[-1]
        layers = shape.networks if shape.conditional else 3 * shape.blocks + 1
        found = Inverted(
            torch.empty_like(z),
            self._empty(batch),
            torch.empty((layers, batch), dtype=torch.int32, device=self.device),
            self._empty(layers, batch),
            torch.empty((layers, batch), dtype=torch.bool, device=self.device),
        )
        arguments = InverseArguments(
            z=z,
            context=context,
            weights=packed.weights,
            spans=self._inverse.spans,
            inner=packed.inner,
            groups=self._inverse.groups,
            pieces=self._inverse.pieces,
            ends=self._inverse.ends,
            biases=packed.biases,
            waves=packed.waves,
            affine=packed.affine,
            batch=batch,
            network_size=self._inverse.size,
            inner_size=self._inverse.inner_size,
            group_count=len(self._inverse.groups),
            limit=limit,
            **found._asdict(),
        )
        rows = 8
        if batch > 8 * self._launcher.processors and self._inverse_shared(16) <= self._launcher.shared_bytes:
            rows = 16
        self._over_rows("flow_inverse", batch, rows, self._inverse_shared(rows), arguments)
        return found

    def fits(self) -> bool:
        """Whether a block's shared memory is enough for all kernels."""
        least = self._launcher.shared_bytes
        return self._shape.fits(8, _WARPS, least) and self._inverse_shared(8) <= least

    def _inverse_shared(self, rows: int) -> int:
        return self._shape.inverse_shared(rows, self._inverse.most_inner)

    # ---------------------------------------------------------------- blocks

    def _rows(self, batch: int) -> int:
        """Rows to a block: few while there are processors to spare, more when weights are read too often."""
        launcher = self._launcher
        for rows in (8, 16):
            too_large = not self._shape.fits(2 * rows, _WARPS, launcher.shared_bytes)
            if batch <= rows * launcher.processors or too_large:
                return rows
        return 32

    def _over_rows(self, name: str, batch: int, rows: int, shared: int, arguments: Arguments) -> None:
        if batch:
            self._launcher.launch(name, rows, _WARPS, (-(-batch // rows),), 32 * _WARPS, shared, arguments)


Tables = TypeVar("Tables", Layout, InverseLayout)


def _moved(tables: Tables, device: torch.device) -> Tables:
    moved: dict[str, Any] = {name: t.to(device) for name, t in tables._asdict().items() if isinstance(t, Tensor)}
    return tables._replace(**moved)
