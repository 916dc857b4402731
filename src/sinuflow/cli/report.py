"""``sinuflow report``: the quality of a fit, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..data import Table
from ..errors import StorageError
from ..models.table import TableModel
from ..report import write
from ..report.collect import collect
from ..report.wording import at_most
from .files import Force, ModelFile, claim_output, load_fitted
from .inputs import Sql, input_path, open_input
from .terminal import echo


def command(
    ctx: typer.Context,
    model: ModelFile,
    data: Annotated[str, typer.Argument(help="The training table, or another one with the same columns.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .html file to write.")],
    sql: Sql = None,
    force: Force = False,
) -> None:
    """Write a report on a model: one page that needs no network.

    Of the training table, only the test rows are evaluated.
    """
    claim_output(ctx, output, force, [model, input_path(data, sql)], (".html", ".htm"))
    fitted = load_fitted(model)
    if not isinstance(fitted, TableModel):
        raise StorageError(f"{model} holds a model of images; this command needs a model of a table")
    write_report(fitted, open_input(ctx, data, sql), output)


def write_report(model: TableModel, data: Path | Table, output: Path) -> None:
    """Write the page and print a summary."""
    content = collect(model, data)
    write(content, output)
    best = min(content.baselines, key=lambda score: score.nll, default=None)
    baseline = "" if best is None else f" ({best.name}: {best.nll:.3f})"
    echo(
        f"test NLL {content.model.nll:.3f} ± {content.model.standard_error:.3f} nats{baseline}; "
        f"round-trip error of {len(content.z):,} rows: at most {at_most(content.round_trip):.1g}"
    )
    if not content.accuracy.good:
        echo(f"warning: {content.accuracy.meaning}")
    echo(f"report: {output}")
