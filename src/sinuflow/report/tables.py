"""The page's numbers, as words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from . import agreement
from .accuracy import accuracy
from .content import Anomaly, ColumnView, ReportContent, Score
from .wording import NOTHING, at_most, compact, number, plural, share, small

MOST_COLUMNS = 200
MOST_ROWS = 50
MOST_VALUES = 40


@dataclass(frozen=True)
class ScoreRow:
    """One density's line in the comparison."""

    name: str
    nats: str
    error: str
    bits: str
    nats_per_column: str
    behind: str
    worst: str
    is_model: bool


@dataclass(frozen=True)
class ColumnRow:
    """One column's line in the list of columns."""

    name: str
    kind: str
    map: str
    data: str
    samples: str
    gap: str
    stands_out: bool


@dataclass(frozen=True)
class AnomalyRow:
    """One unlikely row's line."""

    row: str
    log_density: str
    percentile: str
    values: list[str]


def scores(content: ReportContent) -> list[ScoreRow]:
    """The model first, then the baselines; what they are behind is NLL(baseline) − NLL(model)."""
    return [_score(score, content) for score in (content.model, *content.baselines)]


def _score(score: Score, content: ReportContent) -> ScoreRow:
    is_model = score is content.model
    behind = score.nll - content.model.nll
    return ScoreRow(
        name=score.name,
        nats=number(score.nll),
        error=number(score.standard_error),
        bits=number(score.nll / math.log(2)),
        nats_per_column=number(score.nll / max(content.features, 1)),
        behind="" if is_model else _behind(behind, score.lead_error),
        worst=number(score.worst, 1),
        is_model=is_model,
    )


def _behind(difference: float, error: float | None) -> str:
    text = ("+" if difference > 0 else "") + number(difference)
    return text if error is None else f"{text} ± {number(error)}"


def verdict(content: ReportContent) -> str:
    """Who is ahead, in one sentence: a difference under two standard errors is not called."""
    known = [score for score in content.baselines if not math.isnan(score.nll)]
    if not math.isfinite(content.model.nll):
        return "The model's score is not finite: at least one held-out row has no density under it."
    if not known:
        return "There is no baseline to compare with."
    rival = min(known, key=lambda score: score.nll)
    lead = rival.nll - content.model.nll
    error = rival.lead_error
    if error is None:  # as if the scores had nothing in common, which errs on the cautious side
        error = math.hypot(rival.standard_error, content.model.standard_error)
    name = rival.name
    if abs(lead) < 2 * error:
        return f"The model and the best baseline, {name}, are too close to call: {number(abs(lead))} nats apart."
    if lead > 0:
        return f"The model beats the best baseline, {name}, by {number(lead)} nats per row."
    return f"The model is worse than a baseline: {name} is ahead by {number(-lead)} nats per row."


def certificate(content: ReportContent) -> str:
    """How large the errors of the round trip are, and what that means."""
    if content.inverted == 0:
        return "No held-out row was mapped to noise and back, so nothing is certified here."
    return (
        f"{plural(content.inverted, 'held-out row')} went through the model to noise and back. The largest error is "
        f"{small(at_most(content.round_trip, 2))} standard deviations in the prepared columns, and "
        f"{small(at_most(content.residual, 2))} in the noise: {accuracy(content).meaning}."
    )


def columns(content: ReportContent) -> list[ColumnRow]:
    """Every column, up to a number that a page can bear."""
    return [_column(column) for column in content.columns[:MOST_COLUMNS]]


def _column(column: ColumnView) -> ColumnRow:
    gap = agreement.gap(column)
    return ColumnRow(
        name=column.name,
        kind=column.kind,
        map=column.map,
        data=_summary(column, column.data),
        samples=_summary(column, column.samples),
        gap=number(gap),
        stands_out=gap > agreement.noticeable(column),
    )


def _summary(column: ColumnView, values: np.ndarray) -> str:
    """Median and central 90 % of numbers, the commonest category, or a constant's value."""
    if column.kind in ("category", "constant"):
        names, counts = np.unique(np.array([str(v) for v in values.tolist()]), return_counts=True)
        if not len(names):
            return NOTHING
        top = int(np.argmax(counts))
        if len(names) == 1:
            return f"always {names[0]}"
        return f"{names[top]} ({share(counts[top] / len(values))}), {plural(len(names), 'value')}"
    finite = agreement.numbers(values)
    if not len(finite):
        return NOTHING
    low, middle, high = np.quantile(finite, [0.05, 0.5, 0.95])
    whole = column.kind == "integer" and float(middle).is_integer()
    spread = 1e3 if whole else float(high - low)  # no decimals for counts
    return f"{compact(middle, spread)} ({compact(low, spread)} to {compact(high, spread)})"


def anomalies(content: ReportContent) -> tuple[list[str], list[AnomalyRow], str]:
    """The names of the values shown, the rows, and a sentence on what was left out."""
    rows = content.anomalies[:MOST_ROWS]
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    left_out = [plural(len(content.anomalies) - len(rows), "more row")] if len(content.anomalies) > len(rows) else []
    if len(names) > MOST_VALUES:
        left_out.append(plural(len(names) - MOST_VALUES, "more column"))
    names = names[:MOST_VALUES]
    return names, [_anomaly(row, names) for row in rows], f"Not shown: {', '.join(left_out)}." if left_out else ""


def _anomaly(anomaly: Anomaly, names: list[str]) -> AnomalyRow:
    return AnomalyRow(
        row=str(anomaly.row),
        log_density=number(anomaly.log_density, 2),
        percentile=number(anomaly.percentile, 2),
        values=[anomaly.values.get(name, "") for name in names],
    )
