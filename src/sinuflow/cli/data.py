"""``sinuflow data``: the benchmark sets, images and toy densities, and how to get them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..data.benchmarks import BENCHMARKS, PREPROCESSED, Benchmark, rows_present
from ..data.image_sets import IMAGE_SETS, ImageSet, images_present
from ..data.originals import prepare
from ..data.toys import TOYS
from ..errors import DataError
from .terminal import echo

app = typer.Typer(help="The benchmark sets, images and toy densities.", no_args_is_help=True)


@app.command("list")
def list_sets(
    data: Annotated[Path | None, typer.Option(help="The folder of the benchmark sets.")] = None,
) -> None:
    """Say what sets there are, where they are published, under which licence, and which ones are present."""
    if data is not None and not data.is_dir():
        raise DataError(f"there is no folder {data}: `sinuflow data prepare NAME --from ORIGINAL --to {data}` makes it")
    for found in BENCHMARKS.values():
        echo(f"{found.name}: {found.what}; {found.features} columns, {_sizes(found.sizes)} rows")
        _tell(found, data)
    echo(f"The authors' own files of the first five: {PREPROCESSED}")
    for images in IMAGE_SETS.values():
        shape = " x ".join(map(str, images.shape))
        echo(f"{images.name}: {images.what}; {shape} bytes, {_sizes(images.sizes)} images")
        _tell(images, data)
    for toy in TOYS.values():
        known = "with" if toy.log_prob else "without"
        echo(f"{toy.name}: a toy density, {known} its log-density; {toy.features} columns, any number of rows")
        echo("  source: drawn by Sinuflow itself; licence: MIT, as Sinuflow's; present: always")


@app.command("prepare")
def prepare_set(
    name: Annotated[str, typer.Argument(help="The set: see `sinuflow data list`.")],
    original: Annotated[Path, typer.Option("--from", help="The published file, or the folder that it is in.")],
    to: Annotated[Path, typer.Option("--to", help="The folder for the sets.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing set.")] = False,
) -> None:
    """Make a set of its published files: DIR/NAME with train.npy, val.npy and test.npy."""
    prepare(name, original, to, force=force, progress=echo)


def _sizes(rows: tuple[int, ...]) -> str:
    return " / ".join(f"{n:,}" for n in rows)


def _tell(found: Benchmark | ImageSet, data: Path | None) -> None:
    echo(f"  source: {found.source}")
    echo(f"  licence: {found.licence}")
    echo(f"  beside published figures: {found.comparable}")
    echo(f"  present: {_presence(found, data)}")


def _presence(found: Benchmark | ImageSet, data: Path | None) -> str:
    if data is None:
        return "say with --data where to look"
    try:
        rows = (images_present if isinstance(found, ImageSet) else rows_present)(found.name, data)
    except DataError as error:
        return f"damaged: {error}"
    if rows is None:
        return "no"
    of = "images" if isinstance(found, ImageSet) else "rows"
    return "yes" if rows == found.sizes else f"yes, with {_sizes(rows)} {of}"
