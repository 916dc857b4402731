"""Toy densities: their samples and their log-densities tell the same story."""

from __future__ import annotations

import math
from functools import lru_cache

import pytest
import torch

from sinuflow.data.toys import TOYS, gaussian_row, toy
from sinuflow.errors import ArgumentError

KNOWN = [name for name, found in TOYS.items() if found.log_prob is not None]


@lru_cache
def grid(name):
    """The middles of equal cells that cover nearly all of a density, its logarithm there, and the size of a cell."""
    found = TOYS[name]
    points = 130 if found.features == 2 else 5000
    edge = 1.2 * found.limit
    axis = (torch.arange(points, dtype=torch.float64) + 0.5) * 2 * edge / points - edge
    cells = torch.cartesian_prod(*[axis] * found.features).view(-1, found.features)
    return cells, found.log_prob(cells), (2 * edge / points) ** found.features


@pytest.mark.parametrize("name", KNOWN)
def test_log_densities_integrate_to_one(name):
    _, log_p, size = grid(name)
    total = float(log_p.exp().sum()) * size
    # A cell cannot see the edges of the checkerboard's squares; all others are smooth.
    assert total == pytest.approx(1, abs=0.02 if name == "checkerboard" else 1e-4)


@pytest.mark.parametrize("name", KNOWN)
def test_samples_have_the_entropy_of_the_density(name):
    """The mean of -log p over samples is the entropy only if both belong to the same density."""
    found = TOYS[name]
    _, log_p, size = grid(name)
    entropy = -float((log_p.exp() * log_p.clamp(min=-1e3)).sum()) * size
    scores = -found.log_prob(found.sample(4000, torch.Generator().manual_seed(0)))
    spread = float(scores.std()) / math.sqrt(len(scores))
    assert float(scores.mean()) == pytest.approx(entropy, abs=5 * spread + (0.08 if name == "checkerboard" else 1e-3))


@pytest.mark.parametrize("name", KNOWN)
def test_samples_fall_where_the_density_is(name):
    """In every quarter (or half) as many as its integral says."""
    found = TOYS[name]
    cells, log_p, size = grid(name)
    x = found.sample(4000, torch.Generator().manual_seed(1)).double()
    p = log_p.exp() * size
    for corner in (lambda t: t[:, 0] > 0.3, lambda t: t[:, -1] > -0.4, lambda t: (t > 0.2).all(-1)):
        share = float(p[corner(cells)].sum())
        off = math.sqrt(share * (1 - share) / len(x))
        assert float(corner(x).double().mean()) == pytest.approx(share, abs=5 * off + 0.02)


@pytest.mark.parametrize("name", TOYS)
def test_samples_are_repeatable_and_within_the_limit(name):
    found = TOYS[name]
    first, second = (found.sample(1000, torch.Generator().manual_seed(7)) for _ in range(2))
    assert first.equal(second)
    assert first.shape == (1000, found.features)
    assert first.dtype == torch.float32
    assert float((first.abs() <= 1.1 * found.limit).double().mean()) > 0.995


def test_the_paper_has_seven_gaussians():
    found = gaussian_row()
    x = torch.tensor([[-40.0], [0.0], [40.0 / 3], [6.7]])
    peak = -math.log(7) - 0.5 * math.log(2 * math.pi)
    log_p = found.log_prob(x)
    assert log_p[:3].tolist() == pytest.approx([peak] * 3, abs=1e-6)
    assert float(log_p[3]) < -20


def test_far_away_the_log_density_is_a_number():
    for name in KNOWN:
        if name != "checkerboard":
            assert bool(TOYS[name].log_prob(torch.full((2, TOYS[name].features), 30.0)).isfinite().all()), name


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(ArgumentError, match="8gaussians"):
        toy("cat")
