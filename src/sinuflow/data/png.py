"""PNG files, by Pillow, and grids of images as one picture."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import DataError, SinuflowError
from ..files import replacing

#: Pillow's modes that can be read.
_MODES = ("L", "RGB")
#: Larger pictures are refused before decompression, because a small file could exhaust all memory.
_MOST_PIXELS = 2**26
#: In a grid, small images are enlarged by a whole factor to about this height.
_HEIGHT = 32
#: Pixels between images, and their value.
_GAP, _WHITE = 2, 255


def read_pngs(files: list[Path]) -> Tensor:
    """Pictures of one size and kind as bytes (N, C, H, W)."""
    first = _read(files[0])
    images = np.empty((len(files), *first.shape), dtype=np.uint8)
    for i, file in enumerate(files):
        picture = _read(file)
        if picture.shape != first.shape:
            raise DataError(
                f"all pictures must have the same size and kind: {files[0]} is {_kind(first)}, and {file} is "
                f"{_kind(picture)}"
            )
        images[i] = picture
    return torch.from_numpy(images)


def write_png(path: Path, picture: Tensor) -> None:
    """Write bytes (C, H, W), with one channel or three, to a PNG file, atomically."""
    channels = len(picture)
    if channels not in (1, 3):
        raise DataError(f"a PNG picture has 1 or 3 channels, and these images have {channels}: write .npy instead")
    array = picture[0].numpy() if channels == 1 else picture.permute(1, 2, 0).contiguous().numpy()
    image = pillow_image().fromarray(array)
    with replacing(path) as temporary:
        image.save(temporary, format="PNG")


def _read(file: Path) -> Any:
    image = pillow_image()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image.DecompressionBombWarning)
            # The decoders of some other formats start programs.
            opened = image.open(file, formats=("PNG",))
        with opened as picture:
            if picture.width * picture.height > _MOST_PIXELS:
                raise DataError(f"{file} has {picture.width:,} x {picture.height:,} pixels, more than {_MOST_PIXELS:,}")
            if picture.mode not in _MODES:
                raise DataError(
                    f"{file} has mode {picture.mode}; expected are greyscale (L) and colour (RGB) pictures with 8 bits "
                    "a channel: convert it first"
                )
            array = np.asarray(picture)
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError, image.DecompressionBombWarning) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"cannot read the picture {file}: {str(error).splitlines()[0]}") from error
    return array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)


def _kind(picture: Any) -> str:
    channels, height, width = picture.shape
    return f"{width}x{height} {'greyscale' if channels == 1 else 'colour'}"


def pillow_image() -> Any:
    """The module ``PIL.Image``, imported on first use."""
    try:
        from PIL import Image
    except ImportError:
        raise SinuflowError("pictures need Pillow: pip install 'sinuflow[images]'") from None
    return Image


def grid_of(images: Tensor, columns: int | None = None) -> Tensor:
    """Images of bytes (N, C, H, W), row by row, as one image (C, H', W').

    Without ``columns``, the grid is about square.
    """
    count = len(images)
    columns = math.ceil(math.sqrt(count)) if columns is None else min(columns, count)
    rows = math.ceil(count / columns)
    times = max(1, round(_HEIGHT / images.shape[2]))
    large = images.repeat_interleave(times, 2).repeat_interleave(times, 3)
    tiles = F.pad(large, (0, _GAP, 0, _GAP, 0, 0, 0, rows * columns - count), value=_WHITE)
    _, channels, height, width = tiles.shape
    grid = tiles.view(rows, columns, channels, height, width).permute(2, 0, 3, 1, 4)
    return grid.reshape(channels, rows * height, columns * width)[:, :-_GAP, :-_GAP]
