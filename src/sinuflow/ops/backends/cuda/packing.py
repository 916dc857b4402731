"""Gathers the parameters of a flow into the layout of its kernels, by one kernel that reads them in place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .driver import Launcher
from .shape import ANY_BLOCK, TILE, FlowShape
from .streams import NetworkOffsets, Streams, inner_index

_THREADS = 256
#: Numbers after the last stream of tiles, which prefetching reads.
_PADDING = 4 * TILE * TILE
#: Cached tables of addresses; each is small.
_MOST_TABLES = 1024


class Offsets(NamedTuple):
    """Where each part begins among the parameters of a flow, one after the other."""

    networks: list[NetworkOffsets]
    waves: list[int]  # for every block: frequency, phase, weight, strength, shift; then mean, log-scale
    parameters: list[int]  # where each parameter begins, and the total


class Packed(NamedTuple):
    """The parameters in the layout of the kernels."""

    weights: Tensor
    biases: Tensor
    transposed: Tensor | None = None  # for the backward pass
    inner: Tensor | None = None  # for the inverse
    waves: Tensor | None = None
    affine: Tensor | None = None
    free: Tensor | None = None  # the unconstrained parameters of the waves


class Packer:
    """Packs the parameters of a flow."""

    def __init__(
        self,
        shape: FlowShape,
        offsets: Offsets,
        streams: Sequence[Streams],  # forward, backward and inverse
        device: torch.device,
        launcher: Launcher,
    ) -> None:
        self._shape, self._offsets, self._launcher, self._device = shape, offsets, launcher, device
        zero, (forward, backward, inverse) = offsets.parameters[-1], streams
        biases = bias_index(shape, offsets.networks, zero).flatten().to(device)
        free, inner = self._free_index(), inner_index(shape, offsets.networks, zero).to(device)
        self._biases, self._free, self._inner = len(biases), len(free), len(inner)
        self._forward_index = self._encoded(torch.cat([biases, forward.gather]))
        self._backward_index = torch.cat([self._forward_index, self._encoded(torch.cat([free, backward.gather]))])
        self._inverse_index = self._encoded(torch.cat([biases, inner, inverse.gather]))
        sources = [offsets.parameters.index(start) for start in offsets.waves]
        self._wave_sources = torch.tensor(sources, dtype=torch.int32, device=device)
        self._zero = torch.zeros(1, dtype=torch.float32, device=device)
        self._tables: dict[tuple[int, ...], Tensor] = {}

    def fits(self) -> bool:
        """Whether 32 bits can encode every place."""
        return max(b - a for a, b in pairwise(self._offsets.parameters)) <= 1 << self._shape.source_bits

    def _encoded(self, index: Tensor) -> Tensor:
        """Places among all parameters, as a parameter's number and a place in it."""
        starts = torch.tensor(self._offsets.parameters, device=self._device)
        number = torch.bucketize(index, starts, right=True) - 1
        code = number << self._shape.source_bits | (index - starts[number])
        return torch.where(code >= 2**31, code - 2**32, code).to(torch.int32)

    def _free_index(self) -> Tensor:
        """Gathers frequency, phase, weight and strength of each block, padded because tiles of weights follow."""
        shape = self._shape
        each = shape.scales * shape.features
        parts = [
            torch.arange(self._offsets.waves[5 * block + kind], self._offsets.waves[5 * block + kind] + count)
            for block in range(0 if shape.conditional else shape.blocks)
            for kind, count in enumerate([each * shape.waves] * 3 + [each])
        ]
        index = torch.cat([torch.empty(0, dtype=torch.int64), *parts])
        return F.pad(index, (0, -len(index) % 4), value=self._offsets.parameters[-1]).to(self._device)

    def _addresses(self, parameters: Sequence[Tensor]) -> Tensor:
        """The addresses of the parameters and of a zero, cached: a captured CUDA graph may read old tables."""
        key = tuple(p.data_ptr() for p in parameters)
        if key not in self._tables:
            if len(self._tables) == _MOST_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = torch.tensor([*key, self._zero.data_ptr()], dtype=torch.int64).to(self._device)
        return self._tables[key]

    def pack(self, parameters: Sequence[Tensor], learning: bool = False) -> Packed:
        """For the forward pass and, with ``learning``, the backward pass."""
        packed, waves, affine = self._gather(parameters, self._backward_index if learning else self._forward_index)
        end = len(self._forward_index)
        weights, biases = packed[self._biases : end], packed[: self._biases]
        if not learning:
            return Packed(weights, biases, waves=waves, affine=affine)
        free = packed[end : end + self._free] if self._free else None
        return Packed(weights, biases, packed[end + self._free :], None, waves, affine, free)

    def pack_inverse(self, parameters: Sequence[Tensor]) -> Packed:
        """For the inverse."""
        packed, waves, affine = self._gather(parameters, self._inverse_index)
        biases, inner, weights = packed.tensor_split((self._biases, self._biases + self._inner))
        return Packed(weights, biases, None, inner, waves, affine)

    def _gather(self, parameters: Sequence[Tensor], index: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        shape, parameters = self._shape, [p.contiguous() for p in parameters]
        packed = self._empty(len(index) + _PADDING)
        waves = None if shape.conditional else self._empty(shape.blocks, shape.wave_size)
        affine = None if shape.conditional else self._empty(2, shape.features)
        blocks = min(8 * self._launcher.processors, -(-len(index) // _THREADS))
        sources = {"sources": self._addresses(parameters), "wave_sources": self._wave_sources, "index": index}
        values = {**sources, "packed": packed, "waves": waves, "affine": affine, "count": len(index)}
        self._launcher.launch("prepare", ANY_BLOCK, (blocks,), _THREADS, 0, values)
        return packed, waves, affine

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self._device, dtype=torch.float32)


def bias_index(shape: FlowShape, networks: list[NetworkOffsets], zero: int) -> Tensor:
    """Gathers the biases of all networks, (networks, biases); ``zero`` is where a zero is."""
    index = torch.full((len(networks), shape.biases), zero, dtype=torch.int32)
    for row, network in zip(index, networks, strict=True):
        for i, offset in enumerate(network.biases):
            count = shape.hidden[0] if i < len(shape.hidden) else shape.features * shape.outputs
            row[i * shape.units : i * shape.units + count] = offset + torch.arange(count, dtype=torch.int32)
    return index
