"""From content to a page: one HTML file that needs no network and no script."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from types import ModuleType

from ..errors import SinuflowError
from ..files import write_atomically
from . import tables
from .accuracy import accuracy
from .agreement import chance
from .content import ReportContent
from .wording import at_most, number, small


def render(content: ReportContent) -> str:
    """The report as HTML; the same content gives the same text."""
    jinja2, gallery = _requirements()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(resources.files(__package__).joinpath("page.html").read_text("utf-8"))
    names, rows, rows_left_out = tables.anomalies(content)
    sizes = [(len(column.data), len(column.samples)) for column in content.columns]
    page: str = template.render(
        title=content.title,
        facts=content.facts,
        scores=tables.scores(content),
        verdict=tables.verdict(content),
        certificate=tables.certificate(content),
        accuracy=accuracy(content),
        round_trip=small(at_most(content.round_trip, 2)),
        residual=small(at_most(content.residual, 2)),
        inverted=f"{content.inverted:,}",
        training=gallery.training(content),
        column_rows=tables.columns(content),
        columns_unlisted=max(0, len(content.columns) - tables.MOST_COLUMNS),
        chance=number(min((chance(*size) for size in sizes), default=0.0)),
        columns=gallery.columns(content),
        pairs=gallery.pairs(content),
        noise=gallery.noise(content),
        anomaly_names=names,
        anomalies=rows,
        anomalies_left_out=rows_left_out,
        notes=content.notes,
    )
    return page


def write(content: ReportContent, path: str | os.PathLike[str]) -> None:
    """Render the report into a file: all of it, or nothing."""
    # A name may hold half a surrogate pair, which UTF-8 cannot say.
    write_atomically(Path(path), render(content).encode("utf-8", errors="replace"))


def _requirements() -> tuple[ModuleType, ModuleType]:
    try:
        import jinja2

        from . import gallery
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("jinja2", "matplotlib"):
            raise
        raise SinuflowError("the report needs matplotlib and jinja2: pip install 'sinuflow[cli]'") from error
    return jinja2, gallery
