"""The parameters of a flow as its kernels want them: one gather, by a kernel that reads them where they are."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import PrepareArguments
from .blocks import ANY_BLOCK, Launcher, Ways
from .layout import bias_index
from .shape import TILE, FlowShape
from .streams import NetworkOffsets, inner_index

_THREADS = 256
#: Numbers after the last stream of tiles, which it may run into.
_BEYOND = 4 * TILE * TILE
#: Of addresses; each is small.
_MOST_TABLES = 1024


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


class Packer:
    """Packs the parameters of a flow."""

    def __init__(
        self, shape: FlowShape, offsets: Offsets, ways: Ways, device: torch.device, launcher: Launcher
    ) -> None:
        self._shape, self._offsets, self._launcher, self._device = shape, offsets, launcher, device
        zero = offsets.parameters[-1]
        biases = bias_index(shape, offsets.networks, zero).flatten().to(device)
        free, inner = self._free_index(), inner_index(shape, offsets.networks, zero).to(device)
        self._biases, self._free, self._inner = len(biases), len(free), len(inner)
        self._score_index = self._coded(torch.cat([biases, ways.forward.streams.gather]))
        self._train_index = torch.cat([self._score_index, self._coded(torch.cat([free, ways.backward.streams.gather]))])
        self._sample_index = self._coded(torch.cat([biases, inner, ways.inverse.streams.gather]))
        sources = [offsets.parameters.index(start) for start in offsets.waves]
        self._wave_sources = torch.tensor(sources, dtype=torch.int32, device=device)
        self._zero = torch.zeros(1, dtype=torch.float32, device=device)
        self._tables: dict[tuple[int, ...], Tensor] = {}

    def fits(self) -> bool:
        """Whether 32 bits can say where a number is."""
        return max(b - a for a, b in pairwise(self._offsets.parameters)) <= 1 << self._shape.source_bits

    def _coded(self, index: Tensor) -> Tensor:
        """Places among all parameters as a parameter's number, and a place in it."""
        starts = torch.tensor(self._offsets.parameters, device=self._device)
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
        return torch.nn.functional.pad(found, (0, -len(found) % 4), value=self._offsets.parameters[-1]).to(self._device)

    def _sources(self, parameters: list[Tensor]) -> Tensor:
        """The addresses of the parameters, and of a zero.

        They are seldom new. Old tables are kept: a recorded graph may read them.
        """
        key = tuple(p.data_ptr() for p in parameters)
        if key not in self._tables:
            if len(self._tables) == _MOST_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = torch.tensor([*key, self._zero.data_ptr()], dtype=torch.int64).to(self._device)
        return self._tables[key]

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
        blocks = min(8 * self._launcher.processors, -(-len(index) // _THREADS))
        self._launcher.launch("prepare", ANY_BLOCK, (blocks,), _THREADS, 0, arguments)
        return packed, waves, affine

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self._device, dtype=torch.float32)
