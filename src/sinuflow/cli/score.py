"""``sinuflow score``: log-densities and anomaly percentiles of rows or images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..data import open_table
from ..data.image_files import Pictures, open_pictures
from ..data.tables import Table, read_rows
from ..errors import DataError
from ..models.image import ImageModel
from ..models.table import TableModel
from .files import ROW_FORMATS, Force, ModelFile, claim_output, load_fitted, write_rows
from .fit import Missing
from .inputs import Sql, input_path, open_input
from .terminal import echo

_ADDED = ("log_density", "anomaly_percentile")


def command(
    ctx: typer.Context,
    model: ModelFile,
    data: Annotated[str, typer.Argument(help="A table with the model's columns, - for stdin, or images.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .csv or .parquet file to write.")],
    sql: Sql = None,
    missing: Annotated[
        Missing, typer.Option(help="Rows with missing values: score them, or leave no score.")
    ] = "model",
    labels: Annotated[Path | None, typer.Option(help="Images: a .npy file with their classes, from 0.")] = None,
    force: Force = False,
) -> None:
    """Add the columns log_density and anomaly_percentile to a table, or list the bits per dimension of images.

    The anomaly percentile is the percentage of held-out rows or images that are less anomalous: 99 is exceeded by one
    clean row in a hundred. With n held-out rows it has steps of 100 / (n + 1). Rows keep their order; tables are read
    and written in batches.
    """
    claim_output(ctx, output, force, [model, input_path(data, sql), labels], ROW_FORMATS)
    fitted = load_fitted(model)
    if isinstance(fitted, ImageModel):
        if sql is not None:
            raise DataError(f"--sql is for tables, and {model} is a model of images")
        batches, what = iter([_scored_images(fitted, open_pictures(data, labels))]), "images"
    else:
        if labels is not None:
            raise DataError(f"--labels is for images, and {model} is a model of a table")
        batches, what = scored(fitted, open_table(open_input(ctx, data, sql)), missing), "rows"
    echo(f"scored {write_rows(output, batches):,} {what}: {output}")


def scored(model: TableModel, table: Table, missing: Missing) -> Iterator[Any]:
    """The table's record batches with unchanged cells, and two more columns."""
    import pyarrow

    existing = [name for name in _ADDED if name in table.stored_columns]
    if existing:
        raise DataError(f"{table.name} has a column {existing[0]!r} already: rename or remove it first")
    for rows in read_rows(table, model.preprocessor, all_columns=True):
        scored = model.can_score(rows) if missing == "model" else rows.complete
        if not scored.all() and missing != "drop":
            first = rows.first + int((~scored).argmax()) + 1
            raise DataError(
                f"{table.name} has missing values, first in row {first}: fill them in, or leave the scores of "
                "such rows empty with --missing drop"
            )
        score = model.score_rows(rows)
        score[~scored] = np.nan
        batch = rows.batch
        percentile = model.percentile_of_score(model.anomaly_score_rows(rows, score))
        for name, values in zip(_ADDED, (score, percentile), strict=True):
            batch = batch.append_column(name, pyarrow.array(values, mask=np.isnan(values)))
        yield batch


def _scored_images(model: ImageModel, images: Pictures) -> Any:
    import pyarrow

    labels = images.known_labels
    log_density = model.log_prob(images.images, None if model.classes is None else labels)
    bits = model.in_bits(log_density)
    columns: dict[str, Any] = {"image": range(len(images.images)) if images.files is None else images.files}
    if labels is not None:
        columns["label"] = labels
    columns["bits_per_dimension"] = bits.numpy()
    columns["log_density"] = log_density.numpy()
    columns["anomaly_percentile"] = model.anomaly_percentile(bits).numpy()
    return pyarrow.record_batch({name: pyarrow.array(values) for name, values in columns.items()})
