"""Opening images: tensors, arrays, NumPy files, and folders of PNG files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .arrays import open_array
from .image_arrays import as_images
from .labels import as_labels
from .png import read_pngs


@dataclass(frozen=True)
class Pictures:
    """Images of bytes (N, C, H, W), with what was found beside them.

    Args:
        images: the bytes.
        labels: the class of each, as a number.
        classes: the names of the classes; their subfolders, if they have any.
        files: the file of each, relative to the folder.
        name: what to call them all.
    """

    images: Tensor
    labels: Tensor | None = None
    classes: list[str] | None = None
    files: list[str] | None = None
    name: str = "images"

    @property
    def known_labels(self) -> list[Any] | None:
        """The class of each image, by its name if it has one, and else by its number."""
        if self.labels is None:
            return None
        numbers = self.labels.tolist()
        return numbers if self.classes is None else [self.classes[i] for i in numbers]


def open_pictures(data: Any, labels: Any = None) -> Pictures:
    """Images from a tensor, an array, a ``.npy`` file, or a folder of PNG files.

    Args:
        data: bytes of shape (N, C, H, W), or (N, H, W) for greyscale; or the path of a ``.npy`` file with such, or
            of a folder with PNG files of one size and kind. If they are in subfolders, these are the classes.
        labels: a whole number for each image, counted from 0, or the path of a ``.npy`` file with such.

    Example:
        >>> import numpy as np
        >>> open_pictures(np.zeros((3, 8, 8), dtype=np.uint8), labels=[0, 1, 0]).labels.tolist()
        [0, 1, 0]
    """
    found = _open_path(Path(data)) if isinstance(data, (str, os.PathLike)) else Pictures(as_images(data))
    if labels is None:
        return found
    if found.labels is not None:
        raise DataError(f"{found.name} has its classes as subfolders already: leave out the labels")
    name = str(labels) if isinstance(labels, (str, os.PathLike)) else "labels"
    values = _load(Path(labels)) if isinstance(labels, (str, os.PathLike)) else labels
    return Pictures(found.images, as_labels(values, len(found.images), name), None, found.files, found.name)


def holds_pictures(path: Path) -> bool:
    """Whether a file or folder holds images, and not a table: a ``.npy`` with three or more axes, or PNG files.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> file = Path(tempfile.mkdtemp()) / "x.npy"
        >>> np.save(file, np.zeros((3, 8, 8)))
        >>> holds_pictures(file)
        True
    """
    if os.path.isdir(path):
        return bool(_pngs(path)) or any(_pngs(folder) for folder in _subfolders(path))
    if path.suffix.lower() != ".npy":
        return False
    try:
        return open_array(path, "").ndim > 2
    except DataError:
        return False  # whoever opens it says what is wrong


def _open_path(path: Path) -> Pictures:
    if path.is_dir():
        return _open_folder(path)
    return Pictures(as_images(_load(path), str(path)), name=path.name)


def _open_folder(folder: Path) -> Pictures:
    loose = _pngs(folder)
    classes = {sub.name: files for sub in _subfolders(folder) if (files := _pngs(sub))}
    if loose and classes:
        raise DataError(
            f"{folder} has PNG files both in itself and in subfolders: put all of them into one folder, or each of "
            "them into the subfolder of its class"
        )
    files = loose or [file for of_class in classes.values() for file in of_class]
    if not files:
        raise DataError(f"{folder} holds no PNG files, neither in itself nor in subfolders")
    names = [str(file.relative_to(folder)) for file in files]
    images = read_pngs(files)
    if loose:
        return Pictures(images, None, None, names, folder.name)
    sizes = torch.tensor([len(of_class) for of_class in classes.values()])
    labels = torch.arange(len(sizes)).repeat_interleave(sizes)
    return Pictures(images, labels, list(classes), names, folder.name)


def _pngs(folder: Path) -> list[Path]:
    # Names that begin with a dot are the system's own, such as those that macOS leaves in archives.
    found = (f for f in folder.iterdir() if f.suffix.lower() == ".png" and not f.name.startswith(".") and f.is_file())
    return sorted(found)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))


def _load(path: Path) -> Any:
    if not os.path.exists(path):  # Path.exists raises for names that are too long
        raise DataError(f"there is no {path}")
    if path.suffix.lower() != ".npy":
        raise DataError(f"{path} is neither a .npy file nor a folder of PNG files")
    return open_array(path, "write it with numpy.save")
