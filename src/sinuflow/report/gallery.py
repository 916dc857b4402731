"""Which figures the page has, with their captions, and which it leaves out."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from . import agreement, figures, normality
from .content import ColumnView, ReportContent
from .figures.noise import REACH
from .figures.training import cut_off
from .wording import number, plural, share, shorten, small

MOST_HISTOGRAMS = 30
MOST_PAIRED = 5
MOST_QUANTILE_PLOTS = 12
MOST_CORRELATED = 64


@dataclass(frozen=True)
class Picture:
    """A figure with its heading and a line below; the SVG is markup, the rest is text."""

    svg: str
    title: str
    note: str = ""


@dataclass(frozen=True)
class Gallery:
    """Pictures, and a sentence on what is not among them."""

    pictures: list[Picture]
    left_out: str = ""


def training(content: ReportContent) -> Gallery:
    """The curves of training."""
    curve = figures.training_curve("training", content.history, content.best_step)
    rate = figures.learning_rate_curve("rate", content.history)
    note = (
        f"The dashed line marks step {content.best_step:,}, whose weights were kept. The curves are in the units "
        "of the prepared columns, the scores above in those of the table."
    )
    if cut_off(content.history):
        note += " High values, as in the first steps, are cut off."
    pictures = [Picture(curve, "Negative log-likelihood", note)] if curve else []
    return Gallery(pictures + ([Picture(rate, "Learning rate")] if rate else []))


def columns(content: ReportContent) -> Gallery:
    """A histogram per column that varies; of very many, those where samples and data differ most."""
    drawn = [column for column in content.columns if column.kind != "constant"]
    constant = len(content.columns) - len(drawn)
    left_out = [f"{constant} constant column{'s' * (constant > 1)}"] if constant else []
    if len(drawn) > MOST_HISTOGRAMS:
        gaps = [agreement.gap(column) for column in drawn]
        order = sorted(range(len(drawn)), key=lambda i: (-math.inf if math.isnan(gaps[i]) else -gaps[i], i))
        left_out.append(f"the {len(drawn) - MOST_HISTOGRAMS} columns where samples and data agree best")
        drawn = [drawn[i] for i in sorted(order[:MOST_HISTOGRAMS])]
    pictures = [_histogram(f"column{i}", column) for i, column in enumerate(drawn)]
    return Gallery(pictures, f"Not drawn: {' and '.join(left_out)}." if left_out else "")


def _histogram(key: str, column: ColumnView) -> Picture:
    scale = figures.scale_of(column)
    notes = ["Logarithmic axis."] if scale.log else []
    beyond = [(share(scale.outside(values)), name) for values, name in _sides(column) if scale.outside(values) > 0]
    if beyond and not scale.categories:
        notes.append(f"Cut off: {' and '.join(f'{size} of the {name}' for size, name in beyond)}.")
    return Picture(figures.histogram(key, column, scale), shorten(column.name, 60), " ".join(notes))


def _sides(column: ColumnView) -> tuple[tuple[np.ndarray, str], tuple[np.ndarray, str]]:
    return (column.data, "data"), (column.samples, "samples")


def pairs(content: ReportContent) -> Gallery:
    """Every pair of up to five columns: the ones with the strongest rank correlations, if there are more."""
    varying = [column for column in content.columns if column.kind != "constant"]
    chosen = _most_related(varying)
    left_out = ""
    if len(varying) > len(chosen):
        left_out = (
            f"These are the {len(chosen)} of {len(varying)} columns with the strongest rank correlations; the others' "
            "pairs are not drawn."
        )
    scales = [figures.scale_of(column) for column in chosen]
    pictures = []
    for i, j in itertools.combinations(range(len(chosen)), 2):
        title = f"{shorten(chosen[j].name, 60)} against {shorten(chosen[i].name, 60)}"
        svg = figures.pair_plot(f"pair{i}and{j}", (chosen[i], chosen[j]), (scales[i], scales[j]))
        pictures.append(Picture(svg, title))
    return Gallery(pictures, left_out)


def _most_related(varying: list[ColumnView]) -> list[ColumnView]:
    if len(varying) <= MOST_PAIRED:
        return varying
    strength = np.array([_ranks(column) for column in varying])
    r = np.abs(np.nan_to_num(normality.correlations(strength.T)))
    np.fill_diagonal(r, 0.0)
    chosen: list[int] = []
    for place in np.argsort(-np.triu(r), axis=None, kind="stable"):
        chosen += [i for i in map(int, divmod(int(place), len(varying))) if i not in chosen]
        if len(chosen) >= MOST_PAIRED:
            break
    return [varying[i] for i in sorted(chosen[:MOST_PAIRED])]


def _ranks(column: ColumnView) -> np.ndarray:
    """Ranks of numbers; categories have no order, so they count as unrelated and are drawn last."""
    if column.kind == "category":
        return np.zeros(len(column.data))
    values = np.asarray(column.data, dtype=np.float64)
    _, ranks = np.unique(values, return_inverse=True)
    return ranks.astype(np.float64)


@dataclass(frozen=True)
class Noise:
    """The noise's galleries and the sentences that sum them up."""

    quantiles: Gallery
    correlation: Picture | None
    summary: str


def noise(content: ReportContent) -> Noise:
    """Quantile plots, the least normal dimension first, and the map of correlations."""
    z = np.asarray(content.z, dtype=np.float64)
    tests = [normality.kolmogorov_smirnov(z[:, i]) for i in range(z.shape[1])] if len(z) else []
    order = sorted(range(len(tests)), key=lambda i: (-tests[i].statistic, i))
    pictures = [
        Picture(
            figures.quantile_plot(f"quantiles{i}", content.z_names[i], z[:, i]),
            shorten(content.z_names[i], 60),
            f"KS {number(tests[i].statistic)}, {_p_value(tests[i].p_value)}{_beyond(z[:, i])}",
        )
        for i in order[:MOST_QUANTILE_PLOTS]
    ]
    rest = len(order) - len(pictures)
    left_out = f"Not drawn: {rest} dimension{'s' * (rest > 1)}, all nearer to normal than these." if rest else ""
    if not tests:
        return Noise(Gallery([], "There is no noise to show."), None, "")
    rejected = sum(test.p_value < 0.05 / len(tests) for test in tests)
    worst = tests[order[0]].statistic
    summary = (
        f"Of {len(tests)} dimension{'s' * (len(tests) > 1)}, {rejected} differ{'s' * (rejected == 1)} from normal by "
        f"more than chance explains (5 % level, corrected for their number); the largest "
        f"Kolmogorov-Smirnov distance is {number(worst)}. Chance alone gives up to about "
        f"{number(1.358 / math.sqrt(len(z)))} in {plural(len(z), 'row')}. With many rows even a tiny distance is "
        "beyond chance, so judge by its size: below 0.02 it hardly matters, above 0.1 the fit is poor."
    )
    correlation, sentence = _correlation(content.z_names, z)
    return Noise(Gallery(pictures, left_out), correlation, f"{summary} {sentence}".strip())


def _p_value(p: float) -> str:
    return f"p = {small(p)}" if p > 1e-12 else f"p < {small(1e-12)}"


def _beyond(z: np.ndarray) -> str:
    count = int((~(np.abs(z) <= REACH)).sum())
    return f"; {count} beyond \N{PLUS-MINUS SIGN}{REACH:g}" if count else ""


def _correlation(names: list[str], z: np.ndarray) -> tuple[Picture | None, str]:
    if len(names) < 2:
        return None, ""
    r = normality.correlations(z)
    strength = np.abs(np.nan_to_num(r))
    np.fill_diagonal(strength, 0.0)
    first, second = sorted(map(int, np.unravel_index(np.argmax(strength), r.shape)))
    sentence = f"The strongest correlation between two dimensions is {number(float(r[first, second]), 2)}."
    note = f"Strongest: {shorten(names[first])} with {shorten(names[second])}, {number(float(r[first, second]), 2)}."
    if len(names) > MOST_CORRELATED:
        kept = np.sort(np.argsort(-strength.max(axis=1), kind="stable")[:MOST_CORRELATED])
        note += f" Drawn are the {MOST_CORRELATED} of {len(names)} dimensions with the strongest correlations."
        names, r = [names[i] for i in kept], r[np.ix_(kept, kept)]
    return Picture(figures.correlation_map("correlation", names, r), "Correlations", note), sentence
