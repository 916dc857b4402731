"""``sinuflow sample``: draw rows or images from a model."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from torch import Tensor

from ..data.columns import quoted_list
from ..data.image_files import grid_of, write_png
from ..errors import DataError
from ..files import replacing
from ..flows.inversion import Certify
from ..models.image import ImageModel
from ..models.table import TableModel
from ..report.wording import at_most
from .files import ROW_FORMATS, Force, ModelFile, claim_output, load_fitted, write_rows
from .terminal import echo


def command(
    ctx: typer.Context,
    model: ModelFile,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="The number of rows or images.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .csv or .parquet file; for images, .png or .npy.")],
    context: Annotated[
        list[str] | None,
        typer.Option("--given", metavar="COL=VALUE", help="The value of a context column; may be repeated."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="Images: their class.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="Equal seeds give equal samples.")] = None,
    certify: Annotated[
        bool, typer.Option("--certify", help="Fail unless all samples map back to their noise.")
    ] = False,
    complete: Annotated[
        bool, typer.Option("--complete", help="Tables: draw no missing values, instead of as many as in the table.")
    ] = False,
    force: Force = False,
    spreadsheet_safe: Annotated[
        bool,
        typer.Option("--spreadsheet-safe", help="In CSV, put an apostrophe before what spreadsheets evaluate."),
    ] = False,
) -> None:
    """Sample rows or images from a model. They can resemble training data.

    Images are written as one picture of all of them (.png), or as an array of bytes (.npy).

    Each layer of the flow is inverted to working precision, or nothing is written. With --certify, each sample is also
    mapped back to its noise through the whole flow, before integers, categories and bytes are rounded, and nothing is
    written unless all meet the tolerance.
    """
    mode: Certify = "end-to-end" if certify else "layers"
    fitted = load_fitted(model)
    residuals: list[float | None] = []
    if isinstance(fitted, ImageModel):
        if complete:
            raise DataError("--complete is for tables")
        if context:
            raise DataError("--given is for tables: choose a class of images with --label")
        if spreadsheet_safe:
            raise DataError("--spreadsheet-safe is for tables written as CSV")
        claim_output(ctx, output, force, [model], (".png", ".npy"))
        images, residual = fitted.draw(count, label, secrets.randbits(63) if seed is None else seed, certify=mode)
        _write_images(output, images)
        residuals.append(residual)
        echo(f"drew {count:,} images: {output}")
    else:
        if label is not None:
            raise DataError("--label is for images: set a context column of a table with --given")
        claim_output(ctx, output, force, [model], ROW_FORMATS)
        is_csv = output.suffix.lower() == ".csv"
        if spreadsheet_safe and not is_csv:
            raise DataError(f"--spreadsheet-safe is for CSV: {output} stores text unchanged")
        given = _assignments(context or [], fitted.columns)

        def batches() -> Iterator[Any]:
            for batch, residual in fitted.draw_batches(count, given, seed, mode, complete):
                residuals.append(residual)
                yield batch

        echo(f"drew {write_rows(output, batches(), spreadsheet_safe):,} rows: {output}")
        if is_csv and not spreadsheet_safe:
            _warn_of_formulas(fitted)
    measured = [residual for residual in residuals if residual is not None]
    if measured:
        largest = at_most(max(measured))
        echo(f"certified end to end: residual at most {largest:.1g} standard deviations of the noise")


def _assignments(texts: list[str], columns: list[str]) -> dict[str, str]:
    """Values by column, from COLUMN=VALUE; the name of a column may contain an equals sign."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        known = max((column for column in columns if text.startswith(f"{column}=")), key=len, default=None)
        if known is not None:
            name, value = known, text[len(known) + 1 :]
        elif not equals:
            raise DataError(f"--given takes COLUMN=VALUE, such as --given species=setosa; got {text!r}")
        if name in values:
            raise DataError(f"--given names {name!r} twice")
        values[name] = value
    return values


def _warn_of_formulas(model: TableModel) -> None:
    """Name the columns whose text a spreadsheet would evaluate; it comes from the training table."""
    import pyarrow

    from .csv_writer import formulas

    columns = []
    for column in model.preprocessor.columns:
        texts = [column.name, *(value for value in column.categories if isinstance(value, str))]
        if formulas(pyarrow.array(texts)).true_count:
            columns.append(column.name)
    if columns:
        echo(
            f"note: a spreadsheet would evaluate text in {quoted_list(columns)} as formulas: sample with "
            "--spreadsheet-safe for spreadsheets",
            err=True,
        )


def _write_images(path: Path, images: Tensor) -> None:
    if path.suffix.lower() == ".png":
        write_png(path, grid_of(images))
    else:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.save(file, images.numpy())
