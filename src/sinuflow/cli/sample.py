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
    seed: Annotated[int | None, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same rows.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
) -> None:
    """Draw rows from a model. They can resemble rows that the model was trained on."""
    check_rows_output(output, force)
    fitted = load_table_model(model)
    values: dict[str, str] = {}
    for text in given or []:
        name, value = _assignment(text, fitted.columns)
        if name in values:
            raise DataError(f"--given names {name!r} twice")
        values[name] = value
    rows = write_rows(output, fitted.sample_batches(count, values, seed))
    typer.echo(f"drew {rows:,} rows: {output}")


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
