"""``sinuflow sample``: new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import DataError
from .files import check_rows_output, load_table_model, write_rows


def command(
    model: Annotated[Path, typer.Argument(help="A model file, from `sinuflow fit`.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many rows.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .csv or .parquet file to write.")],
    given: Annotated[
        list[str] | None,
        typer.Option(metavar="COL=VALUE", help="The value of a context column; may be repeated."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same rows.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
) -> None:
    """Draw rows from a model. They can resemble rows that the model was trained on."""
    check_rows_output(output, force)
    fitted = load_table_model(model)
    values = {}
    for text in given or []:
        name, found, value = text.partition("=")
        if not found:
            raise DataError(f"--given takes COLUMN=VALUE, such as --given species=setosa; got {text!r}")
        values[name] = value
    rows = write_rows(output, fitted.sample_batches(count, values, seed))
    typer.echo(f"drew {rows:,} rows: {output}")
