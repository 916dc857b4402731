"""Rendering a report as one HTML file that needs no network and no script."""

from __future__ import annotations

import math
import os
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SinuflowError
from ..files import write_atomically
from . import statistics
from .content import MISSING, ColumnView, ReportContent, Score
from .wording import NOTHING, bound, compact, number, plural, share

#: Columns that are listed at most, and those whose values are shown of unlikely rows.
MAX_COLUMNS, MAX_VALUES = 200, 40


def render(content: ReportContent) -> str:
    """The report as HTML; the same content gives the same text."""
    try:
        from jinja2 import Environment, StrictUndefined

        from . import columns, noise, training
    except ModuleNotFoundError as error:
        raise SinuflowError("the report needs matplotlib and jinja2: pip install 'sinuflow[cli]'") from error
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": number, "bound": bound, "plural": plural}
    template = environment.from_string(resources.files(__package__).joinpath("page.html").read_text("utf-8"))
    normality, normality_summary = noise.normality(content)
    page: str = template.render(
        content=content,
        verdict=verdict(content),
        difference=lambda score: difference(score, content.model),
        bits=math.log(2),
        certificate=certificate(content),
        training=training.curves(content),
        histograms=columns.histograms(content.columns),
        max_columns=MAX_COLUMNS,
        summary=summary,
        statistics=statistics,
        pairs=columns.pairs(content.columns),
        normality=normality,
        normality_summary=normality_summary,
        correlation=noise.correlation(content),
        max_values=MAX_VALUES,
        cell=cell,
    )
    return page


def write(content: ReportContent, path: str | os.PathLike[str]) -> None:
    """Render the report, and write it atomically."""
    # Names may hold lone surrogates, which UTF-8 cannot encode.
    write_atomically(Path(path), render(content).encode("utf-8", errors="replace"))


def difference(score: Score, model: Score) -> str:
    """NLL(baseline) − NLL(model), with its standard error."""
    if score is model:
        return ""
    lead, error = score.lead_of(model)
    return f"{'+' if lead > 0 else ''}{number(lead)} ± {number(error)}"


def verdict(content: ReportContent) -> str:
    """The comparison with the best baseline; differences below two standard errors are not significant."""
    if not math.isfinite(content.model.nll):
        return "The model's score is not finite: at least one held-out row has density zero."
    known = [score for score in content.baselines if not math.isnan(score.nll)]
    if not known:
        return "There is no baseline to compare with."
    best = min(known, key=lambda score: score.nll)
    lead, error = best.lead_of(content.model)
    if abs(lead) < 2 * error:
        return (
            f"The difference between the model and the best baseline, {best.name}, is not significant: "
            f"{number(abs(lead))} nats per row."
        )
    if lead > 0:
        return f"The model is better than the best baseline, {best.name}, by {number(lead)} nats per row."
    return f"The model is worse than a baseline: {best.name} is better by {number(-lead)} nats per row."


def certificate(content: ReportContent) -> str:
    """The round-trip errors, and what they mean."""
    rows = len(content.z)
    return (
        f"{plural(rows, 'held-out row')} {'was' if rows == 1 else 'were'} mapped to noise and back. The largest "
        f"round-trip error is {bound(content.round_trip)} standard deviations in the prepared columns, and "
        f"{bound(content.residual)} in the noise: {content.accuracy.meaning}."
    )


def summary(column: ColumnView, values: np.ndarray) -> str:
    """Median and central 90 % of numbers and the share of missing ones, or the most frequent category."""
    if column.kind == "category":
        names, counts = np.unique(values.astype(str), return_counts=True)
        top = int(np.argmax(counts))
        if len(names) == 1:
            return f"always {names[0]}"
        return f"{names[top]} ({share(counts[top] / len(values))}), {plural(len(names), 'value')}"
    finite = statistics.finite(values)
    if not len(finite):
        return NOTHING
    missing = float(np.isnan(values).mean())
    low, middle, high = np.quantile(finite, [0.05, 0.5, 0.95])
    whole = column.kind == "integer" and float(middle).is_integer()
    spread = 1e3 if whole else float(high - low)  # no decimals for counts
    known = f"{compact(middle, spread)} ({compact(low, spread)} to {compact(high, spread)})"
    return known + (f", {share(missing)} {MISSING}" if missing else "")


def cell(column: ColumnView, value: Any) -> str:
    """One value of a column."""
    if column.kind == "category":
        return str(value)
    return MISSING if value != value else f"{value:{'.0f' if column.kind == 'integer' else '.6g'}}"
