"""Rendering a report as one HTML file that needs no network and no script."""

from __future__ import annotations

import math
import os
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np

from ..errors import SinuflowError
from ..files import write_atomically
from . import statistics
from .content import ColumnView, ReportContent, Score
from .wording import NOTHING, at_most, compact, number, plural, share, small

#: What the page lists at most.
MAX_COLUMNS, MAX_ROWS, MAX_VALUES = 200, 50, 40


def render(content: ReportContent) -> str:
    """The report as HTML; the same content gives the same text."""
    jinja2, gallery = _requirements()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "small": lambda error: small(at_most(error, 2)), "plural": plural}
    names = list(dict.fromkeys(name for row in content.anomalies[:MAX_ROWS] for name in row.values))
    more = [(len(content.anomalies) - MAX_ROWS, "more row"), (len(names) - MAX_VALUES, "more column")]
    distances = [statistics.chance(len(column.data), len(column.samples)) for column in content.columns]
    template = environment.from_string(resources.files(__package__).joinpath("page.html").read_text("utf-8"))
    page: str = template.render(
        content=content,
        verdict=verdict(content),
        difference=lambda score: difference(score, content),
        bits=math.log(2),
        certificate=certificate(content),
        training=gallery.training(content),
        columns=gallery.columns(content),
        max_columns=MAX_COLUMNS,
        summary=summary,
        distance=statistics.distance,
        noticeable=statistics.noticeable,
        chance=min(distances, default=0.0),
        pairs=gallery.pairs(content),
        noise=gallery.noise(content),
        anomalies=content.anomalies[:MAX_ROWS],
        anomaly_names=names[:MAX_VALUES],
        not_shown=", ".join(plural(count, what) for count, what in more if count > 0),
    )
    return page


def write(content: ReportContent, path: str | os.PathLike[str]) -> None:
    """Render the report, and write it atomically."""
    # Names may hold lone surrogates, which UTF-8 cannot encode.
    write_atomically(Path(path), render(content).encode("utf-8", errors="replace"))


def difference(score: Score, content: ReportContent) -> str:
    """NLL(baseline) − NLL(model), with its standard error if that is known."""
    if score is content.model:
        return ""
    lead = score.nll - content.model.nll
    text = ("+" if lead > 0 else "") + number(lead)
    return text if score.lead_error is None else f"{text} ± {number(score.lead_error)}"


def verdict(content: ReportContent) -> str:
    """The comparison with the best baseline; differences below two standard errors are not significant."""
    known = [score for score in content.baselines if not math.isnan(score.nll)]
    if not math.isfinite(content.model.nll):
        return "The model's score is not finite: at least one held-out row has density zero."
    if not known:
        return "There is no baseline to compare with."
    best = min(known, key=lambda score: score.nll)
    lead, error = best.nll - content.model.nll, best.lead_error
    if error is None:  # as for independent scores, which overestimates it
        error = math.hypot(best.standard_error, content.model.standard_error)
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
    if content.inverted == 0:
        return "No held-out row was mapped to noise and back, so nothing is certified here."
    return (
        f"{plural(content.inverted, 'held-out row')} {'was' if content.inverted == 1 else 'were'} mapped to noise and "
        f"back. The largest round-trip error is {small(at_most(content.round_trip, 2))} standard deviations in the "
        f"prepared columns, and {small(at_most(content.residual, 2))} in the noise: {content.accuracy.meaning}."
    )


def summary(column: ColumnView, values: np.ndarray) -> str:
    """Median and central 90 % of numbers, the most frequent category, or the value of a constant."""
    if column.discrete:
        names, counts = np.unique(np.array([str(v) for v in values.tolist()]), return_counts=True)
        if not len(names):
            return NOTHING
        top = int(np.argmax(counts))
        if len(names) == 1:
            return f"always {names[0]}"
        return f"{names[top]} ({share(counts[top] / len(values))}), {plural(len(names), 'value')}"
    finite = statistics.finite(values)
    if not len(finite):
        return NOTHING
    low, middle, high = np.quantile(finite, [0.05, 0.5, 0.95])
    whole = column.kind == "integer" and float(middle).is_integer()
    spread = 1e3 if whole else float(high - low)  # no decimals for counts
    return f"{compact(middle, spread)} ({compact(low, spread)} to {compact(high, spread)})"


def _requirements() -> tuple[ModuleType, ModuleType]:
    try:
        import jinja2

        from . import gallery
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("jinja2", "matplotlib"):
            raise
        raise SinuflowError("the report needs matplotlib and jinja2: pip install 'sinuflow[cli]'") from error
    return jinja2, gallery
