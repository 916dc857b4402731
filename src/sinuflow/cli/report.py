"""``sinuflow report``: the quality of a fit, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..models.table import TableModel
from .files import claim_output, load_table_model
from .terminal import echo


def command(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(help="A model file, from `sinuflow fit`.")],
    data: Annotated[Path, typer.Argument(help="The training table, or another one with the same columns.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .html file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
) -> None:
    """Write a report on a model: one page that needs no network.

    Of the training table, only the test rows are evaluated.
    """
    claim_output(ctx, output, force, [model, data], (".html", ".htm"))
    write_report(load_table_model(model), data, output)


def write_report(model: TableModel, data: Path, output: Path) -> None:
    """Write the page and print a summary."""
    from ..report import write
    from ..report.collect import collect
    from ..report.wording import at_most

    content = collect(model, data)
    write(content, output)
    best = min(content.baselines, key=lambda score: score.nll, default=None)
    baseline = "" if best is None else f" ({best.name}: {best.nll:.3f})"
    echo(
        f"test NLL {content.model.nll:.3f} ± {content.model.standard_error:.3f} nats{baseline}; "
        f"round-trip error of {len(content.z):,} rows: at most {at_most(content.round_trip):.1g}"
    )
    judgement = content.accuracy
    if not judgement.good:
        echo(f"warning: {judgement.meaning}")
    echo(f"report: {output}")
