"""Ways through a flow, and the blocks of threads that take them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import torch

from .arguments import Arguments
from .shape import LANES, WARPS, Block, FlowShape
from .streams import NetworkOffsets, Stage, Streams, backward_stages, forward_stages, inverse_stages, streams

#: For the kernels that do not go through a flow row by row.
ANY_BLOCK = Block(8, True, 4)


class Launcher(Protocol):
    """Whoever runs the kernels."""

    processors: int
    shared_bytes: int  # that a block can have

    def launch(
        self, name: str, block: Block, grid: tuple[int, ...], threads: int, shared: int, arguments: Arguments
    ) -> None:
        """Run a kernel on a grid of blocks."""


SharedBytes = Callable[[Block, int, int], int]


class Way(NamedTuple):
    """Of going through a flow: forward, backward, or to its inverse."""

    streams: Streams
    shared_bytes: SharedBytes
    few: int = 0  # rows that a block may take where processors are to spare

    def shared(self, block: Block) -> int:
        """Bytes of shared memory."""
        return self.shared_bytes(block, self.streams.tiles, self.streams.parts)

    def arguments(self) -> dict[str, Any]:
        """What the kernel has to know of its streams."""
        return {name: getattr(self.streams, name) for name in ("starts", "tables", "tiles", "parts")}


class Ways(NamedTuple):
    """All of them."""

    forward: Way
    backward: Way
    inverse: Way


def ways_of(shape: FlowShape, networks: list[NetworkOffsets], zero: int, device: torch.device) -> Ways:
    """The ways through a flow whose numbers are there; ``zero`` is where a number is that is always zero."""

    def way(stages: list[Stage], order: list[NetworkOffsets], shared: SharedBytes) -> Way:
        found = streams(stages, order, zero)
        return Way(
            found._replace(**{name: getattr(found, name).to(device) for name in ("gather", "starts", "tables")}), shared
        )

    # Inside a group warps are busy with their rows; otherwise a block takes as long for four rows as for eight.
    few = 4 if shape.group.degrees > 1 else 0
    return Ways(
        way(forward_stages(shape), networks, shape.forward_shared),
        way(backward_stages(shape), networks[::-1], shape.backward_shared),
        way(inverse_stages(shape), networks[::-1], shape.inverse_shared)._replace(few=few),
    )


class Blocks:
    """Starts kernels that take rows through a flow, with blocks that suit the GPU and the batch."""

    def __init__(self, shape: FlowShape, launcher: Launcher) -> None:
        self._shape, self._launcher = shape, launcher

    def fit(self, way: Way) -> bool:
        """Whether there is a block with enough shared memory."""
        return self._block(way, 8) is not None

    def run(self, name: str, way: Way, batch: int, arguments: Arguments) -> None:
        """Run a kernel over a batch."""
        if not batch:
            return
        block = self._block_for(way, batch)
        grid = (-(-batch // (block.live or block.rows)),)
        self._launcher.launch(name, block, grid, LANES * WARPS, way.shared(block), arguments)

    def _block_for(self, way: Way, batch: int) -> Block:
        """Few rows while there are processors to spare, more when weights are read too often."""
        found = self._block(way, 8)
        assert found is not None
        if way.few and batch <= way.few * self._launcher.processors:
            return replace(found, live=way.few)
        for rows in (16, 32):
            larger = self._block(way, rows)
            if larger is None or batch <= found.rows * self._launcher.processors:
                break
            found = larger
        return found

    def _block(self, way: Way, rows: int) -> Block | None:
        """The fastest block of so many rows that there is shared memory for."""
        # To store activations split costs memory traffic, and saves work only where they are rectified on their way.
        splits = (True, False) if self._shape.streams else (False,)
        blocks = [Block(rows, split, slots) for slots in (4, 3, 2) for split in splits]
        return next((block for block in blocks if way.shared(block) <= self._launcher.shared_bytes), None)
