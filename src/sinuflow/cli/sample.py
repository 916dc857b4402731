"""``sinuflow sample``: new rows, or new images."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from torch import Tensor

from ..errors import DataError
from ..images import ImageModel
from ..images.grid import grid_of
from ..images.png import write_png
from ..storage import replacing
from .files import check_output, check_rows_output, load_fitted, write_rows

#: What images can be written as.
IMAGES = (".png", ".npy")


def command(
    model: Annotated[Path, typer.Argument(help="A model file, from `sinuflow fit`.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many rows or images.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The .csv or .parquet file to write; of images, .png or .npy.")
    ],
    given: Annotated[
        list[str] | None,
        typer.Option(metavar="COL=VALUE", help="The value of a context column; may be repeated."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Of images: their class.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same draws.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
) -> None:
    """Draw rows or images from a model. They can resemble those that the model was trained on.

    Images are written as one picture of all of them (.png), or as an array of bytes (.npy).
    """
    fitted = load_fitted(model)
    if isinstance(fitted, ImageModel):
        if given:
            raise DataError("--given is for tables: choose a class of images with --label")
        check_output(output, force, IMAGES)
        _write_images(output, fitted.sample(count, label, _seed(seed)))
        typer.echo(f"drew {count:,} images: {output}")
        return
    if label is not None:
        raise DataError("--label is for images: give a column of a table its value with --given")
    check_rows_output(output, force)
    values: dict[str, str] = {}
    for text in given or []:
        name, value = _assignment(text, fitted.columns)
        if name in values:
            raise DataError(f"--given names {name!r} twice")
        values[name] = value
    rows = write_rows(output, fitted.sample_batches(count, values, seed))
    typer.echo(f"drew {rows:,} rows: {output}")


def _seed(seed: int | None) -> int:
    return secrets.randbits(63) if seed is None else seed


def _write_images(path: Path, images: Tensor) -> None:
    if path.suffix.lower() == ".png":
        write_png(path, grid_of(images))
        return
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.save(file, images.numpy())


def _assignment(text: str, columns: list[str]) -> tuple[str, str]:
    """COLUMN and VALUE; a column's name may itself have an equals sign in it."""
    known = [name for name in columns if text.startswith(f"{name}=")]
    if known:
        name = max(known, key=len)
        return name, text[len(name) + 1 :]
    name, found, value = text.partition("=")
    if not found:
        raise DataError(f"--given takes COLUMN=VALUE, such as --given species=setosa; got {text!r}")
    return name, value
