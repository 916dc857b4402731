"""Images with class labels, from tensors, arrays, NumPy files and folders of PNG files; writing PNG files."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import DataError, SinuflowError
from ..files import replacing
from .formats import open_array

#: An array of shape (N, H, W, C) with at most this many channels is recognized if H is larger.
_CHANNELS = 4
#: Larger pictures are refused before decompression, because a small file could exhaust all memory.
_MOST_PIXELS = 2**26
#: In a grid: the height to which small images are enlarged, the pixels between images, and their value.
_HEIGHT, _GAP, _WHITE = 32, 2, 255


@dataclass(frozen=True)
class Pictures:
    """8-bit images (N, C, H, W), with their labels."""

    images: Tensor
    labels: Tensor | None = None
    classes: list[str] | None = None  # their names, if they have any
    files: list[str] | None = None  # of each image, relative to the folder
    name: str = "images"

    @property
    def known_labels(self) -> list[Any] | None:
        """The class of each image, by name if the classes have names."""
        if self.labels is None:
            return None
        indices = self.labels.tolist()
        return indices if self.classes is None else [self.classes[i] for i in indices]

    def select(self, rows: Tensor) -> Pictures:
        """Some of the images, with their labels."""
        return Pictures(self.images[rows], None if self.labels is None else self.labels[rows])


def open_pictures(data: Any, labels: Any = None) -> Pictures:
    """Images from a tensor, an array, a ``.npy`` file, or a folder of PNG files of one size.

    Subfolders are classes; otherwise ``labels`` may be the class of each image, from 0, or the path of a ``.npy`` file.

    Example:
        >>> open_pictures(np.zeros((3, 8, 8), dtype=np.uint8), labels=[0, 1, 0]).labels.tolist()
        [0, 1, 0]
    """
    if not isinstance(data, (str, os.PathLike)):
        pictures = Pictures(as_images(data))
    elif (path := Path(data)).is_dir():
        pictures = _open_folder(path)
    else:
        pictures = Pictures(as_images(_load(path), str(path)), name=path.name)
    if labels is None:
        return pictures
    if pictures.labels is not None:
        raise DataError(f"{pictures.name} has its classes as subfolders already: leave out the labels")
    name = "labels"
    if isinstance(labels, (str, os.PathLike)):
        name, labels = str(labels), _load(Path(labels))
    return replace(pictures, labels=_as_labels(labels, len(pictures.images), name))


def as_images(data: Any, name: str = "images") -> Tensor:
    """Images as a tensor of bytes (N, C, H, W), from a tensor or an array; (N, H, W) are greyscale images."""
    array = data.detach().cpu().numpy() if isinstance(data, Tensor) else np.asarray(data)
    if array.dtype != np.uint8:
        raise DataError(f"{name} must hold bytes, dtype uint8 with values from 0 to 255; got {_described(array)}")
    if array.ndim not in (3, 4) or 0 in array.shape[1:]:
        raise DataError(
            f"{name} must have shape (N, C, H, W), or (N, H, W) if they are greyscale; got {tuple(array.shape)}"
        )
    if not len(array):
        raise DataError(f"{name} holds no images")
    if array.ndim == 4 and array.shape[1] > _CHANNELS >= array.shape[3]:
        raise DataError(
            f"{name} must have shape (N, C, H, W), with the channels before the pixels; got {tuple(array.shape)}: "
            "numpy.moveaxis(images, -1, 1) puts them there"
        )
    images = torch.from_numpy(np.array(array))  # a copy: files may be read-only, and arrays may change
    return images.unsqueeze(1) if images.dim() == 3 else images


def _described(array: Any) -> str:
    """The dtype and the range of values, and how to convert them to bytes."""
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool) or np.iscomplexobj(array) or not array.size:
        return str(array.dtype)
    low, high = array.min(), array.max()
    scale = "multiply by 255, " if high <= 1 else ""
    remedy = f"{scale}round, and convert with .astype('uint8')" if low >= 0 and high <= 255 else "rescale the values"
    return f"{array.dtype} from {low:g} to {high:g}: {remedy}"


def holds_pictures(path: Path) -> bool:
    """Whether a file or folder holds images rather than a table: a ``.npy`` with three or more axes, or PNG files."""
    if os.path.isdir(path):
        return any(_pngs(folder) for folder in (path, *_subfolders(path)))
    if path.suffix.lower() != ".npy":
        return False
    try:
        return open_array(path, "").ndim > 2
    except DataError:
        return False  # opening it raises a precise error


def _open_folder(folder: Path) -> Pictures:
    files = _pngs(folder)
    classes = {sub.name: pngs for sub in _subfolders(folder) if (pngs := _pngs(sub))}
    if files and classes:
        raise DataError(
            f"{folder} has PNG files both in itself and in subfolders: put all of them into one folder, or each of "
            "them into the subfolder of its class"
        )
    files += [file for pngs in classes.values() for file in pngs]
    if not files:
        raise DataError(f"{folder} holds no PNG files, neither in itself nor in subfolders")
    pictures = Pictures(read_pngs(files), files=[str(f.relative_to(folder)) for f in files], name=folder.name)
    if not classes:
        return pictures
    sizes = torch.tensor([len(pngs) for pngs in classes.values()])
    return replace(pictures, labels=torch.arange(len(sizes)).repeat_interleave(sizes), classes=list(classes))


def _pngs(folder: Path) -> list[Path]:
    # Names that begin with a dot are not the user's, such as those that macOS leaves in archives.
    pngs = (f for f in folder.iterdir() if f.suffix.lower() == ".png" and not f.name.startswith("."))
    return sorted(f for f in pngs if f.is_file())


def _subfolders(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))


def _load(path: Path) -> Any:
    if not os.path.exists(path):  # Path.exists raises for names that are too long
        raise DataError(f"there is no {path}")
    if path.suffix.lower() != ".npy":
        raise DataError(f"{path} is neither a .npy file nor a folder of PNG files")
    return open_array(path, "write it with numpy.save")


def _as_labels(labels: Any, count: int, name: str = "labels") -> Tensor:
    """Labels as a tensor: an integer of at least 0 for each of ``count`` images."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(f"{name} must be integers, the classes counted from 0; got dtype {array.dtype}")
    if array.shape != (count,):
        raise DataError(f"{name} must have one integer for each of the {count} images; got shape {array.shape}")
    if array.size and array.min() < 0:
        raise DataError(f"{name} must count the classes from 0; got {array.min()}")
    return torch.from_numpy(array.astype(np.int64))


def class_counts(labels: Tensor) -> list[int]:
    """How many images every class has; classes must be numbered without gaps."""
    unique, counts = labels.unique(return_counts=True)  # in increasing order
    gaps = (unique != torch.arange(len(unique))).nonzero()
    if len(gaps):
        raise DataError(
            f"labels go up to {int(labels.max())}, but no image has the label {int(gaps[0])}: "
            "number the classes from 0 without gaps"
        )
    return [int(n) for n in counts]


def class_indices(labels: Any, classes: Sequence[str], count: int) -> Tensor:
    """Labels, or names of classes, as the indices of known classes."""
    if isinstance(labels, (list, tuple)) and any(isinstance(label, str) for label in labels):
        unknown = [label for label in labels if label not in classes]
        if unknown:
            raise DataError(f"there is no class {unknown[0]!r}; the model has {listed(classes)}")
        labels = [classes.index(label) for label in labels]
    indices = _as_labels(labels, count)
    if count and int(indices.max()) >= len(classes):
        raise DataError(f"labels must be below {len(classes)}, the number of the model's classes; got {indices.max()}")
    return indices


def listed(classes: Sequence[str]) -> str:
    """The names of classes, abbreviated if there are many."""
    return ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")


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
            if picture.mode not in ("L", "RGB"):
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
