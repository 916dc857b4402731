"""Constants that are compiled into the kernels of a PixelCNN, named as in network.cuh, and their shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ....conditional_waves import LOG_SCALE_MAX
from ....pixelcnn_inverse import SKEW
from ..shape import Block, CompiledShape, round_up

#: Places that the first convolution sees, up to the centre in raster order, and that a residual block sees.
FAR_PLACES, NEAR_PLACES = 25, 5
#: Width of the first convolution's kernel, and its reach.
FAR_SIDE, FAR = 7, 3
#: Warps of a thread block, and the turns that they take in sums over pixels.
WARPS, TURNS = 16, 4


@dataclass(frozen=True)
class PixelShape(CompiledShape):
    """The shape of a PixelCNN."""

    channels: int
    height: int
    width: int
    maps: int  # inside a residual block
    blocks: int
    tf32: bool = False  # in training
    outputs: int = 1  # a shift; or a shift and a free log-scale
    groups: ClassVar[int] = 1  # of the head's rows, which are those of all outputs together

    COMPILED = "channels height width maps blocks outputs tf32"

    def defines(self, block: Block) -> dict[str, str]:
        return super().defines(block) | {"LOG_SCALE_MAX": repr(LOG_SCALE_MAX)}

    @property
    def pixels(self) -> int:
        return self.height * self.width

    # Maps inside a residual block and between blocks, and outputs of a pixel, padded.

    @property
    def narrow(self) -> int:
        return round_up(self.maps, 16)

    @property
    def wide(self) -> int:
        return round_up(2 * self.maps, 16)

    @property
    def head(self) -> int:
        return round_up(self.heads, 16)

    @property
    def heads(self) -> int:
        """Outputs of a pixel."""
        return self.outputs * self.channels

    @property
    def columns(self) -> int:
        """Columns of the first convolution, [place][channel], padded."""
        return round_up(FAR_PLACES * self.channels, 8)

    @property
    def saved(self) -> tuple[int, int]:
        """Saved maps of an image, and float32 words of each; with TF32, a word holds two halves."""
        mine = -(-self.pixels // (8 * WARPS))
        pixels = round_up(mine, mine if mine < 3 else 4) * WARPS * 8
        return self.blocks * (self.wide + 2 * self.narrow) + self.wide, pixels // 2 if self.tf32 else pixels

    # ---------------------------------------------------------------- bytes of shared memory, as kernels lay it out

    @property
    def forward_shared(self) -> int:
        return 4 * (self._wide_maps + self._narrow_maps + self._planes(self.channels) + self.columns)

    @property
    def float64_shared(self) -> int:
        return self.forward_shared + 4 * self._planes(self.channels)

    @property
    def backward_shared(self) -> int:
        stripes = WARPS * round_up(FAR_SIDE * self.channels * (self.width + 2 * FAR), 2)
        outputs = self._planes(self.heads)  # their gradient, and later the image
        return 4 * (self._wide_maps + max(self._narrow_maps, stripes) + outputs + self.columns)

    @property
    def inverse_shared(self) -> int:
        wide, narrow, blocks = self.wide, self.narrow, self.blocks
        block = narrow * _stride(wide) + narrow * _stride(NEAR_PLACES * narrow) + wide * _stride(narrow)
        matrices = wide * _stride(self.columns) + blocks * block + self.heads * _stride(wide)
        maps = (blocks + 1) * wide + 2 * blocks * narrow
        biases = wide + blocks * (2 * narrow + wide) + self.head
        single = blocks * self._narrow_maps + matrices + self._front * maps + biases + self.columns
        return 4 * (single + self._sums)

    @property
    def float64_inverse_shared(self) -> int:
        return self.inverse_shared + 4 * self._sums

    @property
    def _sums(self) -> int:
        """Numbers that the inverse holds in the dtype of the pixels."""
        return self._planes(self.channels) + self._front * (self.channels + self.wide + self.blocks * self.narrow)

    @property
    def _front(self) -> int:
        """Pixels of a front."""
        return round_up(-(-self.width // SKEW), 8)

    @property
    def _wide_maps(self) -> int:
        return self.wide * _plane(round_up(self.pixels, 8))

    @property
    def _narrow_maps(self) -> int:
        return self.narrow * _plane((self.height + 1) * (self.width + 1) + 1)

    def _planes(self, count: int) -> int:
        return round_up(count * ((self.height + FAR) * (self.width + FAR) + FAR), 2)


def _stride(columns: int) -> int:
    """The distance from one row of a matrix to the next."""
    whole = round_up(columns, 4)
    return whole if whole % 16 else whole + 4


def _plane(size: int) -> int:
    """The distance from one map to the next."""
    return round_up(size - 8, 32) + 8
