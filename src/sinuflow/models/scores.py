"""The log-densities of rows, from their levels and cells."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..data import Preprocessor
from ..data.cells import RowCells, fixed_points
from ..data.levels import LevelCodes
from ..flows.distribution import FlowDistribution
from ..flows.mixed import MixedFlow
from ..flows.sinusoidal import SinusoidalFlow


def score(
    flow: SinusoidalFlow | MixedFlow,
    preprocessor: Preprocessor,
    levels: LevelCodes,
    cells: RowCells,
    context: Tensor | None,
) -> Tensor:
    """The log-density (B,) in the table's units, given the flow's context (B, context) if there is one."""
    if not isinstance(flow, MixedFlow):
        return preprocessor.score_points(_log_prob(flow(context, validate_args=False)), cells) + levels.log_within
    terms = flow.categories.log_probs(levels.codes, context).double().sum(1) + levels.log_within
    distribution = flow.given_codes(levels.codes, context, validate_args=False)
    result = preprocessor.score_points(_log_prob(distribution), cells) + terms
    unknown = levels.unknown.any(1).nonzero().flatten()
    if len(unknown):
        levels = LevelCodes(*(t[unknown] for t in levels))
        cells = RowCells(cells.start[:, unknown], cells.width[:, unknown], cells.log_measure[unknown])
        context = None if context is None else context[unknown]
        result[unknown] = _score_unknown(flow, preprocessor, levels, cells, context)
    return result


def _score_unknown(
    flow: MixedFlow, preprocessor: Preprocessor, levels: LevelCodes, cells: RowCells, context: Tensor | None
) -> Tensor:
    r"""The log-density of rows with unknown codes, which are integrated out by quasi-Monte Carlo.

    At each of the fixed points, an unknown code is the u-quantile of :math:`p(k_i \mid k_{<i})`. The result is the
    log-mean of the density of the other codes and the cells, given these codes.
    """
    axes, scores = len(preprocessor.axis_features), []
    for point in fixed_points(axes + len(preprocessor.level_features)).to(cells.start.device):
        codes = flow.categories.fill_unknown(levels.codes, levels.unknown, point[axes:], context)
        terms = flow.categories.log_probs(codes, context).double().masked_fill(levels.unknown, 0.0).sum(1)
        y, offset = preprocessor.points(cells, point[:axes].unsqueeze(1))
        scores.append(_log_prob(flow.given_codes(codes, context, validate_args=False))(y) + offset + terms)
    return torch.stack(scores).logsumexp(0) - math.log(len(scores)) + levels.log_within


def _log_prob(distribution: FlowDistribution) -> Callable[[Tensor], Tensor]:
    """The log-density as a function of float64 points; it is -∞ outside of the domain of a logarithm or logit."""
    like = next(distribution.bijection.parameters())

    def log_prob(y: Tensor) -> Tensor:
        inside = y.isfinite().all(1)
        density = distribution.log_prob(torch.where(inside.unsqueeze(1), y, 0.0).to(like)).double()
        return torch.where(inside, density, -torch.inf)

    return log_prob
