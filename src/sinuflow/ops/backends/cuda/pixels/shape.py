"""Constants that are compiled into the kernels of a PixelCNN, named as in network.cuh, and their shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ....conditional_waves import LOG_SCALE_MAX
from ..shape import round_up

#: Places that the first convolution sees, up to the centre in raster order, and that a residual block sees.
FAR_PLACES, NEAR_PLACES = 25, 5
#: Width of the first convolution's kernel, and its reach.
FAR_SIDE, FAR = 7, 3
#: Pixels of a front are one row and so many columns apart.
SKEW = 4
#: Warps of a thread block, and the turns that they take in sums over pixels.
WARPS, TURNS = 16, 4


@dataclass(frozen=True)
class PixelShape:
    """The shape of a PixelCNN."""

    channels: int
    height: int
    width: int
    maps: int  # inside a residual block
    blocks: int
    tf32: bool = False  # in training
    outputs: int = 1  # a shift; or a shift and a free log-scale
    groups: ClassVar[int] = 1  # of the head's rows, which are those of all outputs together

    def defines(self, _: Any = None) -> dict[str, str]:
        """The shape as the preprocessor takes it."""
        names = ("channels", "height", "width", "maps", "blocks", "outputs", "tf32")
        values = {name.upper(): str(int(getattr(self, name))) for name in names}
        return values | {"LOG_SCALE_MAX": repr(LOG_SCALE_MAX)}

    @property
    def pixels(self) -> int:
        return self.height * self.width

    @property
    def narrow(self) -> int:
        """Maps inside a residual block, padded to a multiple of 16."""
        return round_up(self.maps, 16)

    @property
    def wide(self) -> int:
        """Maps between blocks, padded."""
        return round_up(2 * self.maps, 16)

    @property
    def head(self) -> int:
        """Outputs of a pixel, padded."""
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
    def stripe(self) -> int:
        """Rows of its transpose for one kernel row, [column][channel], padded."""
        return round_up(FAR_SIDE * self.channels, 16)

    @property
    def saved(self) -> tuple[int, int]:
        """Saved maps of an image, and float32 words of each; with TF32, a word holds two halves."""
        tiles = -(-self.pixels // 8)
        mine = -(-tiles // WARPS)
        at_once = mine if mine < 3 else 4
        pixels = round_up(mine, at_once) * WARPS * 8
        return self.blocks * (self.wide + 2 * self.narrow) + self.wide, pixels // 2 if self.tf32 else pixels

    # ---------------------------------------------------------------- shared memory, as the kernels lay it out

    @property
    def _wide_bytes(self) -> int:
        return 4 * self.wide * _plane(round_up(self.pixels, 8))

    @property
    def _narrow_bytes(self) -> int:
        return 4 * self.narrow * _plane((self.height + 1) * (self.width + 1) + 1)

    @property
    def _x_bytes(self) -> int:
        return self._image_bytes + 4 * self.columns

    @property
    def _image_bytes(self) -> int:
        return self._planes_bytes(self.channels)

    @property
    def _float64_x_bytes(self) -> int:
        return 2 * self._image_bytes + 4 * self.columns

    @property
    def forward_shared(self) -> int:
        """Bytes that pixel_forward takes."""
        return self._wide_bytes + self._narrow_bytes + self._x_bytes

    @property
    def float64_shared(self) -> int:
        """Bytes that pixel_float64_forward takes."""
        return self._wide_bytes + self._narrow_bytes + self._float64_x_bytes

    @property
    def backward_shared(self) -> int:
        """Bytes that pixel_backward takes."""
        stripes = 4 * WARPS * round_up(FAR_SIDE * self.channels * (self.width + 2 * FAR), 2)
        outputs = self._planes_bytes(self.heads)  # their gradient, and later the image
        return self._wide_bytes + max(self._narrow_bytes, stripes) + outputs + 4 * self.columns

    @property
    def inverse_shared(self) -> int:
        """Bytes that pixel_inverse takes."""
        wide, narrow, blocks = self.wide, self.narrow, self.blocks
        block = narrow * _stride(wide) + narrow * _stride(NEAR_PLACES * narrow) + wide * _stride(narrow)
        matrices = wide * _stride(self.columns) + blocks * block + self.heads * _stride(wide)
        maps = (blocks + 1) * wide + 2 * blocks * narrow
        biases = wide + blocks * (2 * narrow + wide) + self.head
        single = blocks * self._narrow_bytes + 4 * (matrices + self._front * maps + biases + self.columns)
        return single + self._sums_bytes

    @property
    def float64_inverse_shared(self) -> int:
        """Bytes that pixel_float64_inverse takes."""
        return self.inverse_shared + self._sums_bytes

    @property
    def _sums_bytes(self) -> int:
        """What the inverse holds in the dtype of the pixels, if that is float32."""
        return self._image_bytes + 4 * self._front * (self.channels + self.wide + self.blocks * self.narrow)

    @property
    def _front(self) -> int:
        """Pixels of a front."""
        return round_up(-(-self.width // SKEW), 8)

    def _planes_bytes(self, planes: int) -> int:
        return 4 * round_up(planes * ((self.height + FAR) * (self.width + FAR) + FAR), 2)


def _stride(columns: int) -> int:
    """The distance from one row of a matrix to the next."""
    whole = round_up(columns, 4)
    return whole if whole % 16 else whole + 4


def _plane(size: int) -> int:
    """The distance from one map to the next."""
    return round_up(size - 8, 32) + 8
