"""Whitening: estimated from rows, with shrinkage where they are few."""

from __future__ import annotations

import pytest
import torch

from sinuflow.bijections import whitening as module
from sinuflow.bijections.whitening import Whitening, estimate_whitening


def test_a_round_trip_is_exact_and_the_jacobian_is_the_factor():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 200, generator=generator, dtype=torch.float64).cumsum(0) + 5
    layer = Whitening(3)
    z = layer.initialize(x, None)
    torch.testing.assert_close(layer(x.mT)[0], z.mT)
    _, ladj = layer(x.mT)
    assert torch.allclose(ladj, -layer.factor.logdet())
    back, back_ladj = layer.inverse(z.mT)
    torch.testing.assert_close(back, x.mT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(back_ladj, -ladj)


def test_whitening_makes_rows_uncorrelated():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(5000, 3, generator=generator, dtype=torch.float64)
    y = y @ torch.tensor([[1.0, 0.9, 0.2], [0.0, 0.3, 0.5], [0.0, 0.0, 0.7]], dtype=torch.float64) + 5
    mean, factor = estimate_whitening(y)
    z = torch.linalg.solve_triangular(factor, (y - mean).T, upper=False)
    torch.testing.assert_close(torch.cov(z), torch.eye(3, dtype=torch.float64), atol=1e-2, rtol=0)
    assert torch.equal(factor, factor.tril())


def test_few_rows_are_shrunk_and_duplicate_columns_survive():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(15, 12, generator=generator, dtype=torch.float64)
    _, factor = estimate_whitening(y)
    fresh = torch.randn(1000, 12, generator=generator, dtype=torch.float64)
    z = torch.linalg.solve_triangular(factor, fresh.T, upper=False)
    assert float((z * z).mean()) < 5  # the plain covariance would be singular, or nearly so
    y = torch.cat([y, y[:, :1]], dim=1)
    _, factor = estimate_whitening(y)
    assert factor.isfinite().all()
    assert float(factor.diagonal().min()) > 1e-5


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (32, 40), (24, 100), (33, 32), (200, 3)])
def test_held_out_densities_are_those_of_the_shrunk_covariance(rows, columns):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(columns, columns, generator=generator, dtype=torch.float64)
    y = torch.randn(rows + 8, columns, generator=generator, dtype=torch.float64) @ mixing
    if columns > 3:
        y[:, 3] = 2.0
    inner, outer = y[:rows], y[rows:]
    covariance = torch.cov(inner.mT, correction=0)
    diagonal = covariance.diagonal().clamp(min=1e-12).diag()
    scores = module._log_densities(outer, inner)
    assert bool(scores[0].isfinite()) == (rows > columns)
    for shrinkage, score in list(zip(module._SHRINKAGES, scores, strict=True))[1:]:
        factor = torch.linalg.cholesky((1 - shrinkage) * covariance + shrinkage * diagonal)
        z = torch.linalg.solve_triangular(factor, (outer - inner.mean(0)).mT, upper=False)
        distance = z.square().sum(0).clamp(max=50.0 * columns)
        expected = -0.5 * distance.sum() - len(outer) * factor.diagonal().log().sum()
        torch.testing.assert_close(score, expected)
