"""Samples of toy densities agree with their log-densities."""

from __future__ import annotations

import math
from functools import lru_cache

import pytest
import torch

from sinuflow.data.toys import TOYS, toy
from sinuflow.errors import ArgumentError

KNOWN = [name for name, density in TOYS.items() if density.log_prob is not None]


@lru_cache
def grid(name):
    """The centres of a grid's cells, the log-density there, and the size of a cell."""
    density = TOYS[name]
    points = 90 if density.features == 2 else 5000
    edge = 1.2 * density.limit
    axis = (torch.arange(points, dtype=torch.float64) + 0.5) * 2 * edge / points - edge
    cells = torch.cartesian_prod(*[axis] * density.features).view(-1, density.features)
    return cells, density.log_prob(cells), (2 * edge / points) ** density.features


@pytest.mark.parametrize("name", KNOWN)
def test_log_densities_integrate_to_one(name):
    _, log_p, size = grid(name)
    total = float(log_p.exp().sum()) * size
    # A cell cannot see the edges of the checkerboard's squares; all others are smooth.
    assert total == pytest.approx(1, abs=0.02 if name == "checkerboard" else 1e-4)


@pytest.mark.parametrize("name", KNOWN)
def test_samples_have_the_entropy_of_the_density(name):
    """The mean of -log p over samples is the entropy only if both belong to the same density."""
    density = TOYS[name]
    _, log_p, size = grid(name)
    entropy = -float((log_p.exp() * log_p.clamp(min=-1e3)).sum()) * size
    scores = -density.log_prob(density.sample(4000, torch.Generator().manual_seed(0)))
    spread = float(scores.std()) / math.sqrt(len(scores))
    assert float(scores.mean()) == pytest.approx(entropy, abs=5 * spread + (0.08 if name == "checkerboard" else 1e-3))


@pytest.mark.parametrize("name", KNOWN)
def test_samples_have_the_probabilities_of_regions(name):
    """The share of samples in a half or quarter is the integral of the density."""
    density = TOYS[name]
    cells, log_p, size = grid(name)
    x = density.sample(4000, torch.Generator().manual_seed(1)).double()
    p = log_p.exp() * size
    for corner in (lambda t: t[:, 0] > 0.3, lambda t: t[:, -1] > -0.4, lambda t: (t > 0.2).all(-1)):
        share = float(p[corner(cells)].sum())
        off = math.sqrt(share * (1 - share) / len(x))
        assert float(corner(x).double().mean()) == pytest.approx(share, abs=5 * off + 0.02)


@pytest.mark.parametrize("name", TOYS)
def test_samples_are_repeatable_and_within_the_limit(name):
    density = TOYS[name]
    first, second = (density.sample(1000, torch.Generator().manual_seed(7)) for _ in range(2))
    assert first.equal(second)
    assert first.shape == (1000, density.features)
    assert first.dtype == torch.float32
    assert float((first.abs() <= 1.1 * density.limit).double().mean()) > 0.995


def test_the_paper_has_seven_gaussians():
    density = toy("gaussians")
    x = torch.tensor([[-40.0], [0.0], [40.0 / 3], [6.7]])
    peak = -math.log(7) - 0.5 * math.log(2 * math.pi)
    log_p = density.log_prob(x)
    assert log_p[:3].tolist() == pytest.approx([peak] * 3, abs=1e-6)
    assert float(log_p[3]) < -20


def test_log_densities_are_finite_far_away():
    for name in KNOWN:
        if name != "checkerboard":
            assert bool(TOYS[name].log_prob(torch.full((2, TOYS[name].features), 30.0)).isfinite().all()), name


def test_the_error_of_an_unknown_name_lists_all_names():
    with pytest.raises(ArgumentError, match="8gaussians"):
        toy("cat")
