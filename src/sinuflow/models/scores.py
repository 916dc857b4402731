"""The log-densities of rows whose levels and cells are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..data import Preprocessor
from ..data.cells import Located, fixed_points
from ..data.levels import Leveled
from ..flows.distribution import FlowDistribution
from ..flows.mixed import MixedFlow
from ..flows.sinusoidal import SinusoidalFlow


def score(
    flow: SinusoidalFlow | MixedFlow,
    preprocessor: Preprocessor,
    leveled: Leveled,
    located: Located,
    context: Tensor | None,
) -> Tensor:
    """The log-density (B,) in the table's units, given the flow's context (B, context) if there is one."""
    if not isinstance(flow, MixedFlow):
        return preprocessor.score_points(_log_prob(flow(context, validate_args=False)), located) + leveled.within
    terms = flow.categories.log_probs(leveled.codes, context).double().sum(1) + leveled.within
    distribution = flow.given_codes(leveled.codes, context, validate_args=False)
    result = preprocessor.score_points(_log_prob(distribution), located) + terms
    unknown = leveled.unknown.any(1).nonzero().flatten()
    if len(unknown):
        rows = Leveled(*(t[unknown] for t in leveled))
        cells = Located(located.start[:, unknown], located.width[:, unknown], located.log_measure[unknown])
        own = None if context is None else context[unknown]
        result[unknown] = _score_unknown(flow, preprocessor, rows, cells, own)
    return result


def _score_unknown(
    flow: MixedFlow, preprocessor: Preprocessor, leveled: Leveled, located: Located, context: Tensor | None
) -> Tensor:
    r"""The log-density of rows in which some codes are unknown: they are integrated out.

    It is the log-mean over fixed points of the density of everything else given the unknown codes, each of which is the
    u-quantile of :math:`p(k_i \mid k_{<i})`, at the same points of the rows' cells.
    """
    axes, scores = len(preprocessor.placed), []
    for point in fixed_points(axes + len(preprocessor.leveled)).to(located.start.device):
        codes = flow.categories.completed(leveled.codes, leveled.unknown, point[axes:], context)
        terms = flow.categories.log_probs(codes, context).double().masked_fill(leveled.unknown, 0.0).sum(1)
        y, offset = preprocessor.points(located, point[:axes].unsqueeze(1))
        scores.append(_log_prob(flow.given_codes(codes, context, validate_args=False))(y) + offset + terms)
    return torch.stack(scores).logsumexp(0) - math.log(len(scores)) + leveled.within


def _log_prob(distribution: FlowDistribution) -> Callable[[Tensor], Tensor]:
    """The log-density as a function of float64 points; outside of a logarithm's or logit's range it is -∞."""
    like = next(distribution.bijection.parameters())

    def log_prob(y: Tensor) -> Tensor:
        inside = y.isfinite().all(1)
        density = distribution.log_prob(torch.where(inside.unsqueeze(1), y, 0.0).to(like)).double()
        return torch.where(inside, density, -torch.inf)

    return log_prob
