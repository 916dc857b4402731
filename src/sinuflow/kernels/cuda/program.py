"""All that the kernels can do for one flow: score, differentiate, invert."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, Protocol

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
from .layout import bias_index, gradient_jobs
from .shape import TILE, WARPS, Block, FlowShape
from .streams import (
    NetworkOffsets,
    Stage,
    Streams,
    backward_stages,
    forward_stages,
    inner_index,
    inverse_stages,
    streams,
)

_PREPARE_THREADS, _WEIGHT_THREADS, _WAVE_THREADS = 256, 128, 128
#: Numbers after the last stream of tiles, which it may run into.
_BEYOND = 4 * TILE * TILE
#: From so many rows on, memory matters more than another launch.
_MANY_ROWS = 2048
#: Of addresses; each is small.
_MOST_TABLES = 1024
#: For the kernels that do not go through a flow row by row.
_ANY_BLOCK = Block(8, True, 4)


class Launcher(Protocol):
    """Whoever runs the kernels."""

    processors: int
    shared_bytes: int  # that a block can have

    def launch(
        self, name: str, block: Block, grid: tuple[int, ...], threads: int, shared: int, arguments: Arguments
    ) -> None:
        """Run a kernel on a grid of blocks."""


class Offsets(NamedTuple):
    """Where the numbers of a flow are among its parameters, put one after the other."""

    networks: list[NetworkOffsets]
    waves: list[int]  # for every block: frequency, phase, weight, strength, shift; then mean, log-scale
    parameters: list[int]  # where each parameter begins; the last one is the total


class Packed(NamedTuple):
    """The parameters as the kernels want them."""

    weights: Tensor
    biases: Tensor
    transposed: Tensor | None
    inner: Tensor | None
    waves: Tensor | None
    affine: Tensor | None
    free: Tensor | None  # the waves' free numbers


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


SharedBytes = Callable[[Block, int, int], int]


class _Way(NamedTuple):
    """Of going through a flow: forward, backward, or to its inverse."""

    streams: Streams
    shared_bytes: SharedBytes

    def shared(self, block: Block) -> int:
        """Bytes of shared memory."""
        return self.shared_bytes(block, self.streams.tiles, self.streams.parts)


class Program:
    """A flow's kernels, and the tables that they work with."""

    def __init__(self, shape: FlowShape, offsets: Offsets, device: torch.device, launcher: Launcher) -> None:
        self._shape, self._offsets, self._launcher = shape, offsets, launcher
        self.device = device
        self._total = zero = offsets.parameters[-1]
        reverse = offsets.networks[::-1]
        self._forward = self._way(forward_stages(shape), offsets.networks, shape.forward_shared)
        self._backward = self._way(backward_stages(shape), reverse, shape.backward_shared)
        self._inverse = self._way(inverse_stages(shape), reverse, shape.inverse_shared)
        biases = bias_index(shape, offsets.networks, zero).flatten().to(device)
        self._biases = len(biases)
        self._score_index = self._coded(torch.cat([biases, self._forward.streams.gather]))
        free = self._coded(self._free_index()).to(device)
        self._train_index = torch.cat([self._score_index, free, self._coded(self._backward.streams.gather)])
        self._free = len(free)
        inner = inner_index(shape, offsets.networks, zero).to(device)
        self._inner = len(inner)
        self._sample_index = self._coded(torch.cat([biases, inner, self._inverse.streams.gather]))
        layers = shape.plan.layers
        self._jobs = gradient_jobs(layers).to(device)
        self._reach = torch.cat([torch.tensor(layer.reach, dtype=torch.int32) for layer in layers]).to(device)
        self._ends = self._table([layers[0].rows[: shape.features]])  # all hidden layers have the same degrees
        self._wave_offsets = torch.tensor(offsets.waves, dtype=torch.int32, device=device)
        self._wave_sources = torch.tensor(
            [offsets.parameters.index(w) for w in offsets.waves], dtype=torch.int32, device=device
        )
        self._zero = torch.zeros(1, dtype=torch.float32, device=device)
        self._tables: dict[tuple[int, ...], Tensor] = {}
        self._weight_offsets = self._table([n.weights for n in offsets.networks])
        self._bias_offsets = self._table([n.biases for n in offsets.networks])

    def _table(self, rows: list[tuple[int, ...]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=self.device)

    def _way(self, stages: list[Stage], networks: list[NetworkOffsets], shared: SharedBytes) -> _Way:
        found = streams(stages, networks, self._total)
        moved = found._replace(**{n: getattr(found, n).to(self.device) for n in ("gather", "starts", "tables")})
        return _Way(moved, shared)

    def _coded(self, index: Tensor) -> Tensor:
        """Places among all parameters as a parameter's number, and a place in it."""
        starts = torch.tensor(self._offsets.parameters, device=self.device)
        number = torch.bucketize(index, starts, right=True) - 1
        code = number << self._shape.source_bits | (index - starts[number])
        return torch.where(code >= 2**31, code - 2**32, code).to(torch.int32)

    def _free_index(self) -> Tensor:
        """What to gather for the waves' free numbers but the shifts: frequency, phase, weight, strength of each block.

        Rounded up, because tiles of weights come after them.
        """
        shape = self._shape
        each = shape.scales * shape.features
        parts = [
            torch.arange(self._offsets.waves[5 * block + kind], self._offsets.waves[5 * block + kind] + count)
            for block in range(0 if shape.conditional else shape.blocks)
            for kind, count in enumerate([each * shape.waves] * 3 + [each])
        ]
        found = torch.cat([torch.empty(0, dtype=torch.int64), *parts])
        return torch.nn.functional.pad(found, (0, -len(found) % 4), value=self._total).to(self.device)

    def _sources(self, parameters: list[Tensor]) -> Tensor:
        """The addresses of the parameters, and of a zero.

        They are seldom new. Old tables are kept: a recorded graph may read them.
        """
        key = tuple(p.data_ptr() for p in parameters)
        if key not in self._tables:
            if len(self._tables) == _MOST_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = torch.tensor([*key, self._zero.data_ptr()], dtype=torch.int64).to(self.device)
        return self._tables[key]

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=torch.float32)

    # ---------------------------------------------------------------- parameters

    def pack(self, parameters: list[Tensor], learning: bool = False) -> Packed:
        """Prepare to score, and with ``learning`` to differentiate."""
        sources = self._sources(parameters)
        packed, waves, affine = self._prepare(sources, self._train_index if learning else self._score_index)
        last, free = len(self._score_index), None
        transposed = packed[last + self._free :] if learning else None
        if learning and self._free:
            free = packed[last : last + self._free]
        return Packed(packed[self._biases : last], packed[: self._biases], transposed, None, waves, affine, free)

    def pack_inverse(self, parameters: list[Tensor]) -> Packed:
        """Prepare to invert."""
        sources = self._sources(parameters)
        packed, waves, affine = self._prepare(sources, self._sample_index)
        weights = packed[self._biases + self._inner :]
        inner = packed[self._biases : self._biases + self._inner]
        return Packed(weights, packed[: self._biases], None, inner, waves, affine, None)

    def _prepare(self, sources: Tensor, index: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        shape = self._shape
        packed = self._empty(len(index) + _BEYOND)
        waves = affine = None
        if not shape.conditional:
            waves = self._empty(shape.blocks, shape.wave_numbers)
            affine = self._empty(2, shape.features)
        arguments = PrepareArguments(
            sources=sources,
            wave_sources=self._wave_sources,
            index=index,
            packed=packed,
            waves=waves,
            affine=affine,
            count=len(index),
        )
        blocks = min(8 * self._launcher.processors, -(-len(index) // _PREPARE_THREADS))
        self._launcher.launch("prepare", _ANY_BLOCK, (blocks,), _PREPARE_THREADS, 0, arguments)
        return packed, waves, affine

    # ---------------------------------------------------------------- data to noise

    def forward(self, packed: Packed, x: Tensor, context: Tensor | None, keep: bool) -> Scored:
        """Score a batch of shape (D, B)."""
        batch = x.shape[-1]
        z, ladj, log_density = torch.empty_like(x), self._empty(batch), self._empty(batch)
        kept = self._room(batch) if keep else None
        arguments = ForwardArguments(
            x=x,
            context=context,
            weights=packed.weights,
            starts=self._forward.streams.starts,
            tables=self._forward.streams.tables,
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
            tiles=self._forward.streams.tiles,
            parts=self._forward.streams.parts,
        )
        self._over_rows("flow_forward", self._forward, batch, arguments)
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
        grad_x = torch.empty_like(z)
        grad_context = self._empty(shape.context, batch) if shape.context else None
        grad_values = None if shape.conditional else torch.empty_like(kept.x)
        gradient = torch.zeros(self._total, device=self.device, dtype=torch.float32) if out is None else out
        parts = self._backward_parts(batch)
        most = max(upper - lower for lower, upper in parts)
        grad_outputs = self._empty(most, batch, shape.head)
        grad_hidden = self._empty(most, len(shape.hidden), batch, shape.units)
        for lower, upper in parts:
            chain = BackwardArguments(
                z=z,
                grad_z=grad_z,
                grad_ladj=grad_ladj,
                weights=packed.transposed,
                starts=self._backward.streams.starts,
                tables=self._backward.streams.tables,
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
                tiles=self._backward.streams.tiles,
                parts=self._backward.streams.parts,
                lower=lower,
                upper=upper,
            )
            self._over_rows("flow_backward", self._backward, batch, chain)
            weights = WeightArguments(
                kept_inputs=kept.inputs,
                kept_hidden=kept.hidden,
                grad_outputs=grad_outputs,
                grad_hidden=grad_hidden,
                jobs=self._jobs,
                reach=self._reach,
                weight_offsets=self._weight_offsets,
                bias_offsets=self._bias_offsets,
                gradient=gradient,
                batch=batch,
                lower=lower,
            )
            grid = (len(self._jobs), upper - lower)
            self._launcher.launch("weight_gradients", _ANY_BLOCK, grid, _WEIGHT_THREADS, 0, weights)
        if not shape.conditional:
            waves = WaveArguments(
                free=packed.free,
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
            self._launcher.launch("wave_gradients", _ANY_BLOCK, (-(-jobs // 4),), _WAVE_THREADS, 0, waves)
        return Gradients(grad_x, grad_context, gradient)

    def _backward_parts(self, batch: int) -> list[tuple[int, int]]:
        """Networks that go together; with many rows, in two parts, which need half the memory."""
        networks = self._shape.networks
        half = networks // 4 * 2  # whole blocks of an upper and a lower shift
        return [(half, networks), (0, half)] if batch >= _MANY_ROWS and half else [(0, networks)]

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
            starts=self._inverse.streams.starts,
            tables=self._inverse.streams.tables,
            inner=packed.inner,
            ends=self._ends,
            biases=packed.biases,
            waves=packed.waves,
            affine=packed.affine,
            batch=batch,
            tiles=self._inverse.streams.tiles,
            parts=self._inverse.streams.parts,
            limit=limit,
            **found._asdict(),
        )
        self._over_rows("flow_inverse", self._inverse, batch, arguments)
        return found

    # ---------------------------------------------------------------- blocks

    def fits(self) -> bool:
        """Whether a block's shared memory is enough for all kernels, and 32 bits to say where a number is."""
        starts = self._offsets.parameters
        largest = max(b - a for a, b in pairwise(starts))
        if largest > 1 << self._shape.source_bits:
            return False
        return all(self._block(way, 8) is not None for way in (self._forward, self._backward, self._inverse))

    def _over_rows(self, name: str, way: _Way, batch: int, arguments: Arguments) -> None:
        if not batch:
            return
        block = self._block_for(way, batch)
        self._launcher.launch(name, block, (-(-batch // block.rows),), 32 * WARPS, way.shared(block), arguments)

    def _block_for(self, way: _Way, batch: int) -> Block:
        """Few rows while there are processors to spare, more when weights are read too often."""
        found = self._block(way, 8)
        assert found is not None
        for rows in (16, 32):
            larger = self._block(way, rows)
            if larger is None or batch <= found.rows * self._launcher.processors:
                break
            found = larger
        return found

    def _block(self, way: _Way, rows: int) -> Block | None:
        """The fastest block of so many rows that there is shared memory for."""
        # To store activations split costs memory traffic, and saves work only where they are rectified on their way.
        splits = (True, False) if self._shape.streams else (False,)
        blocks = [Block(rows, split, slots) for slots in (4, 3, 2) for split in splits]
        return next((block for block in blocks if way.shared(block) <= self._launcher.shared_bytes), None)
