"""The figures on the page with their captions, and those that are left out."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from . import figures
from .content import ColumnView, ReportContent
from .scale import scale_of
from .statistics import correlations, distance, kolmogorov_smirnov
from .wording import number, plural, share, shorten, small

MAX_HISTOGRAMS = 30
MAX_PAIRED = 5
MAX_QUANTILE_PLOTS = 12
MAX_CORRELATED = 64


@dataclass(frozen=True)
class Picture:
    """A figure with its heading and caption; the SVG is markup, the rest is text."""

    svg: str
    title: str
    note: str = ""


@dataclass(frozen=True)
class Gallery:
    """Figures of one section, a sentence on figures that are left out, and a summary."""

    pictures: list[Picture]
    left_out: str = ""
    summary: str = ""
    correlation: Picture | None = None


def training(content: ReportContent) -> Gallery:
    """Curves of the training."""
    curve = figures.training_curve("training", content.history, content.best_step)
    rate = figures.learning_rate_curve("rate", content.history)
    note = (
        f"The dashed line marks step {content.best_step:,}, whose weights were selected. The curves are in the units "
        "of the prepared columns, the scores above in those of the table."
    )
    if figures.is_cut_off(content.history):
        note += " High values, as in the first steps, are cut off."
    pictures = [Picture(curve, "Negative log-likelihood", note)] if curve else []
    return Gallery(pictures + ([Picture(rate, "Learning rate")] if rate else []))


def columns(content: ReportContent) -> Gallery:
    """A histogram of each column that varies; of very many, those where samples and data differ most."""
    drawn = [column for column in content.columns if column.kind != "constant"]
    constant = len(content.columns) - len(drawn)
    left_out = [plural(constant, "constant column")] if constant else []
    if len(drawn) > MAX_HISTOGRAMS:
        gaps = np.nan_to_num([distance(column) for column in drawn], nan=np.inf)
        left_out.append(f"the {len(drawn) - MAX_HISTOGRAMS} columns where samples and data agree best")
        drawn = [drawn[i] for i in np.sort(np.argsort(-gaps, kind="stable")[:MAX_HISTOGRAMS])]
    pictures = [_histogram(f"column{i}", column) for i, column in enumerate(drawn)]
    return Gallery(pictures, f"Not drawn: {' and '.join(left_out)}." if left_out else "")


def _histogram(key: str, column: ColumnView) -> Picture:
    scale = scale_of(column)
    notes = ["Logarithmic axis."] if scale.log else []
    beyond = [(scale.outside(values), name) for values, name in ((column.data, "data"), (column.samples, "samples"))]
    cut_off = " and ".join(f"{share(size)} of the {name}" for size, name in beyond if size > 0)
    if cut_off and not scale.categories:
        notes.append(f"Cut off: {cut_off}.")
    return Picture(figures.histogram(key, column, scale), shorten(column.name, 60), " ".join(notes))


def pairs(content: ReportContent) -> Gallery:
    """Every pair of up to five columns, those with the strongest rank correlations."""
    varying = [column for column in content.columns if column.kind != "constant"]
    chosen = _most_correlated(varying)
    left_out = ""
    if len(varying) > len(chosen):
        left_out = (
            f"Drawn are pairs of the {len(chosen)} of {len(varying)} columns with the strongest rank correlations."
        )
    scaled = [(column, scale_of(column), shorten(column.name, 60)) for column in chosen]
    pictures = []
    for (i, (x, x_scale, x_name)), (j, (y, y_scale, y_name)) in itertools.combinations(enumerate(scaled), 2):
        svg = figures.pair_plot(f"pair{i}and{j}", (x, y), (x_scale, y_scale))
        pictures.append(Picture(svg, f"{y_name} against {x_name}"))
    return Gallery(pictures, left_out)


def _most_correlated(varying: list[ColumnView]) -> list[ColumnView]:
    if len(varying) <= MAX_PAIRED:
        return varying
    r = np.abs(np.nan_to_num(correlations(np.array([_ranks(column) for column in varying]).T)))
    np.fill_diagonal(r, 0.0)
    strongest = np.argsort(-np.triu(r), axis=None, kind="stable")
    pairs = np.stack(np.unravel_index(strongest, r.shape), axis=1)
    chosen = list(dict.fromkeys(pairs.ravel().tolist()))[:MAX_PAIRED]
    return [varying[i] for i in sorted(chosen)]


def _ranks(column: ColumnView) -> np.ndarray:
    """Ranks of numbers; categories have no order, and count as uncorrelated."""
    if column.kind == "category":
        return np.zeros(len(column.data))
    return np.unique(np.asarray(column.data, dtype=np.float64), return_inverse=True)[1].astype(np.float64)


def noise(content: ReportContent) -> Gallery:
    """Quantile plots, the least normal dimension first, and correlations."""
    z = np.asarray(content.z, dtype=np.float64)
    tests = [kolmogorov_smirnov(z[:, i]) for i in range(z.shape[1])] if len(z) else []
    if not tests:
        return Gallery([], "There is no noise to show.")
    order = sorted(range(len(tests)), key=lambda i: (-tests[i].statistic, i))
    pictures = [
        Picture(
            figures.quantile_plot(f"quantiles{i}", content.z_names[i], z[:, i]),
            shorten(content.z_names[i], 60),
            f"KS {number(tests[i].statistic)}, {_p_value(tests[i].p_value)}{_beyond(z[:, i])}",
        )
        for i in order[:MAX_QUANTILE_PLOTS]
    ]
    rest = len(order) - len(pictures)
    left_out = f"Not drawn: {plural(rest, 'dimension')}, all closer to normal than these." if rest else ""
    rejected = sum(test.p_value < 0.05 / len(tests) for test in tests)
    summary = (
        f"Of {plural(len(tests), 'dimension')}, {rejected} differ{'s' * (rejected == 1)} significantly from normal "
        f"(5 % level, Bonferroni correction). The largest Kolmogorov-Smirnov distance is "
        f"{number(tests[order[0]].statistic)}; by chance alone it reaches about {number(1.358 / math.sqrt(len(z)))} in "
        f"{plural(len(z), 'row')}. With many rows even tiny distances are significant, so judge by their size: below "
        "0.02 is good, above 0.1 is poor."
    )
    correlation, sentence = _correlation(content.z_names, z)
    return Gallery(pictures, left_out, f"{summary} {sentence}".strip(), correlation)


def _p_value(p: float) -> str:
    return f"p = {small(p)}" if p > 1e-12 else f"p < {small(1e-12)}"


def _beyond(z: np.ndarray) -> str:
    count = int((~(np.abs(z) <= figures.REACH)).sum())
    return f"; {count} beyond \N{PLUS-MINUS SIGN}{figures.REACH:g}" if count else ""


def _correlation(names: list[str], z: np.ndarray) -> tuple[Picture | None, str]:
    if len(names) < 2:
        return None, ""
    r = correlations(z)
    strength = np.abs(np.nan_to_num(r))
    np.fill_diagonal(strength, 0.0)
    first, second = sorted(map(int, np.unravel_index(np.argmax(strength), r.shape)))
    strongest = number(float(r[first, second]), 2)
    note = f"Strongest: {shorten(names[first])} with {shorten(names[second])}, {strongest}."
    if len(names) > MAX_CORRELATED:
        chosen = np.sort(np.argsort(-strength.max(axis=1), kind="stable")[:MAX_CORRELATED])
        note += f" Drawn are the {MAX_CORRELATED} of {len(names)} dimensions with the strongest correlations."
        names, r = [names[i] for i in chosen], r[np.ix_(chosen, chosen)]
    picture = Picture(figures.correlation_map("correlation", names, r), "Correlations", note)
    return picture, f"The strongest correlation between two dimensions is {strongest}."
