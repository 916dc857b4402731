"""Gathers the parameters of a flow into the layout of its kernels, by one kernel that reads them in place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .driver import CudaLauncher
from .shape import TILE, FlowShape
from .streams import LayerOffsets, Streams, inner_index

_THREADS = 256
#: Numbers after the last stream of tiles, which prefetching reads.
_PADDING = 4 * TILE * TILE
#: Cached tables of addresses; each is small.
_MOST_TABLES = 1024

Purpose = Literal["score", "learn", "invert"]


class Layout(NamedTuple):
    """What kernels are compiled for, and where each part begins among the parameters of a flow, one after the other."""

    shape: FlowShape
    weights: LayerOffsets
    biases: LayerOffsets
    waves: list[int]  # for every block: frequency, phase, weight, strength, shift; then mean, log-scale
    parameters: list[int]  # where each parameter begins, and the total


class Packed(NamedTuple):
    """The parameters in the layout of the kernels."""

    weights: Tensor
    biases: Tensor
    waves: Tensor | None
    affine: Tensor | None
    transposed: Tensor | None = None  # for the backward pass
    free: Tensor | None = None  # likewise: the unconstrained parameters of the waves
    inner: Tensor | None = None  # for the inverse


class Packer:
    """Packs the parameters of a flow."""

    def __init__(
        self, layout: Layout, streams: Sequence[Streams], device: torch.device, launcher: CudaLauncher
    ) -> None:
        self._layout, self._launcher = layout, launcher
        zero, (forward, backward, inverse) = layout.parameters[-1], (each.gather for each in streams)
        biases, free = bias_index(layout), free_index(layout)
        inner = inner_index(layout.shape, layout.weights, zero)
        parts: dict[Purpose, dict[str, Tensor]] = {
            "score": {"biases": biases, "weights": forward},
            "learn": {"biases": biases, "weights": forward, "free": free, "transposed": backward},
            "invert": {"biases": biases, "inner": inner, "weights": inverse},
        }
        self._sizes = {purpose: {name: len(part) for name, part in each.items()} for purpose, each in parts.items()}
        for sizes in self._sizes.values():
            sizes[list(sizes)[-1]] += _PADDING  # the last part is a stream of tiles
        self._indices = {purpose: self._encoded(torch.cat([*p.values()]).to(device)) for purpose, p in parts.items()}
        sources = [layout.parameters.index(start) for start in layout.waves]
        self._wave_sources = torch.tensor(sources, dtype=torch.int32, device=device)
        self._zero = torch.zeros(1, dtype=torch.float32, device=device)
        self._tables: dict[tuple[int, ...], Tensor] = {}

    def fits(self) -> bool:
        """Whether 32 bits can encode every place."""
        return max(b - a for a, b in pairwise(self._layout.parameters)) <= 1 << self._layout.shape.source_bits

    def _encoded(self, index: Tensor) -> Tensor:
        """Places among all parameters, as a parameter's number and a place in it."""
        starts = torch.tensor(self._layout.parameters, device=index.device)
        number = torch.bucketize(index, starts, right=True) - 1
        code = number << self._layout.shape.source_bits | (index - starts[number])
        return torch.where(code >= 2**31, code - 2**32, code).to(torch.int32)

    def _addresses(self, parameters: Sequence[Tensor]) -> Tensor:
        """The addresses of the parameters and of a zero, cached: a captured CUDA graph may read old tables."""
        key = tuple(p.data_ptr() for p in parameters)
        if key not in self._tables:
            if len(self._tables) == _MOST_TABLES:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = torch.tensor([*key, self._zero.data_ptr()]).to(self._zero.device)
        return self._tables[key]

    def pack(self, parameters: Sequence[Tensor], purpose: Purpose) -> Packed:
        """The parameters as a purpose needs them."""
        shape, parameters = self._layout.shape, [p.contiguous() for p in parameters]
        index, sizes = self._indices[purpose], self._sizes[purpose]
        packed = self._zero.new_empty(sum(sizes.values()))
        waves = None if shape.conditional else self._zero.new_empty(shape.blocks, shape.wave_size)
        affine = None if shape.conditional else self._zero.new_empty(2, shape.features)
        sources = {"sources": self._addresses(parameters), "wave_sources": self._wave_sources, "index": index}
        values = {**sources, "packed": packed, "waves": waves, "affine": affine, "count": len(index)}
        blocks = min(8 * self._launcher.processors, -(-len(index) // _THREADS))
        self._launcher.launch("prepare", (blocks,), _THREADS, values)
        parts = dict(zip(sizes, packed.split([*sizes.values()]), strict=True))
        return Packed(waves=waves, affine=affine, **parts)


def bias_index(layout: Layout) -> Tensor:
    """Gathers the biases of all networks, padded to tiles."""
    counts = [*layout.shape.hidden, layout.shape.features * layout.shape.outputs]
    pairs = [pair for network in layout.biases for pair in zip(network, counts, strict=True)]
    parts = [F.pad(_range(begin, n), (0, -n % TILE), value=layout.parameters[-1]) for begin, n in pairs]
    return torch.cat(parts)


def free_index(layout: Layout) -> Tensor:
    """Gathers frequency, phase, weight and strength of each block, padded because tiles of weights follow."""
    shape, each = layout.shape, layout.shape.scales * layout.shape.features
    counts = [*[each * shape.waves] * 3, each]
    begins = [layout.waves[5 * block : 5 * block + 4] for block in range(0 if shape.conditional else shape.blocks)]
    parts = [_range(begin, n) for block in begins for begin, n in zip(block, counts, strict=True)]
    index = torch.cat([_range(0, 0), *parts])
    return F.pad(index, (0, -len(index) % 4), value=layout.parameters[-1])


def _range(begin: int, count: int) -> Tensor:
    return torch.arange(begin, begin + count)
