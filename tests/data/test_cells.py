"""Cells: a column's probabilities and densities have mass 1, and points of a cell go back to the value that owns it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sinuflow.data import Column, Preprocessor
from sinuflow.data.cells import draw_points
from tests.builders import trained_flow
from tests.data.tables import any_column

CONTINUOUS = ("normal", "lognormal", "heavy", "bimodal", "zero-inflated", "far")
GRIDS = ("heaps", "counts", "large counts", "tenths", "few", "category")


def on_axes(*columns):
    """A preprocessor without levels: atoms and missing values are cells of the axes."""
    return Preprocessor(list(columns), levels="none")


def standard_normal(y):
    return (-0.5 * y.square() - 0.5 * math.log(2 * math.pi)).sum(1)


def scores(preprocessor, *columns, log_prob=standard_normal):
    """The log-density of rows with these values, for a flow that is the identity, or for another one."""
    rows = np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64).reshape(-1, len(columns))
    _, cells = preprocessor.locate(torch.from_numpy(rows))
    return preprocessor.score_points(log_prob, cells).numpy()


def normal_scores(column, x):
    """The continuous part's normal scores c(x), infinite outside of the map, and log c'(x)."""
    z, log_slope = (t[0].numpy() for t in on_axes(column).normal_scores(torch.from_numpy(np.atleast_1d(x) * 1.0)[None]))
    outside = np.where(np.atleast_1d(x) < (column.low + column.high) / 2, -np.inf, np.inf)
    return np.where(np.isnan(z), outside, z), log_slope


def continuous_mass(column):
    return 0.0 if column.discrete else 1 - column.missing - math.fsum(column.masses)


# ---------------------------------------------------------------- the mass


@given(any_column(kinds=CONTINUOUS))
@settings(max_examples=40)
def test_atoms_missing_values_and_densities_have_the_mass_1(case):
    column, _ = case
    own = on_axes(column)
    mass = np.exp(scores(own, np.array(column.atoms))).sum() if column.atoms else 0.0
    np.testing.assert_allclose(mass, math.fsum(column.masses), atol=1e-9)
    if column.missing:
        missing = np.exp(scores(own, [math.nan]))[0]
        assert missing == pytest.approx(column.missing, rel=1e-9)
        mass += missing
    if not column.discrete:
        points = torch.linspace(-7, 7, 20_001, dtype=torch.float64)[:, None] + 1e-9
        x = own.maps.inverse(points)[0][:, 0].numpy()
        z, log_slope = normal_scores(column, x)
        inside = np.abs(z - points[:, 0].numpy()) < 1e-9  # 10⁶ standard deviations away, values are clamped
        x, z, log_slope = x[inside], z[inside], log_slope[inside]
        density = np.exp(scores(own, x))
        np.testing.assert_allclose(density, continuous_mass(column) * stats.norm.pdf(z) * np.exp(log_slope), rtol=1e-8)
        mass += np.trapezoid(density, x) + continuous_mass(column) * (stats.norm.cdf(z[0]) + stats.norm.sf(z[-1]))
    assert mass == pytest.approx(1, abs=1e-3)


@given(any_column(kinds=GRIDS))
@settings(max_examples=40)
def test_values_of_a_grid_have_their_cell_of_the_mass(case):
    column, _ = case
    own, q, step = on_axes(column), continuous_mass(column), column.cell or 1.0
    if column.discrete:
        values = np.array(column.atoms)
        masses = np.array(column.masses)
    else:
        values = column.low + step * np.arange(-40, round((column.high - column.low) / step) + 40)
        ends = [stats.norm.cdf(normal_scores(column, values + side * step / 2)[0]) for side in (-1, 1)]
        atoms = dict(zip(column.atoms, column.masses, strict=True))
        near = {int(np.abs(values - atom).argmin()): mass for atom, mass in atoms.items()}
        masses = q * (ends[1] - ends[0]) + [near.get(i, 0.0) for i in range(len(values))]
        values[list(near)] = list(atoms)  # the grid is rounded elsewhere
        beyond = q * (ends[0][0] + 1 - ends[1][-1])
        assert masses.sum() + column.missing + beyond == pytest.approx(1, abs=1e-9)
    probabilities = np.exp(scores(own, values)) * step
    possible = masses > 1e-14
    # Without a grid, this is the midpoint rule, which is inexact where the spline has a knot.
    np.testing.assert_allclose(probabilities[possible], masses[possible], rtol=0.02 if column.cell else 0.1)
    assert probabilities[possible].sum() == pytest.approx(masses.sum(), abs=1e-4)
    if column.missing:
        assert np.exp(scores(own, [math.nan])) == pytest.approx(column.missing)


def test_cells_of_repeated_values_without_a_grid_are_averages_of_the_density():
    values = np.random.default_rng(0).normal(size=300)
    column = replace(Column("c", "number", "double", low=-3.0, high=3.0, rows=300, cell=0.5, step=0.5))
    own = on_axes(column)
    expected = (stats.norm.cdf(values + 0.25) - stats.norm.cdf(values - 0.25)) / 0.5
    np.testing.assert_allclose(np.exp(scores(own, values)), expected, rtol=1e-3)
    x = np.linspace(-9, 9, 20_001)
    assert np.trapezoid(np.exp(scores(own, x)), x) == pytest.approx(1, abs=1e-5)


def test_rows_of_several_columns_multiply():
    columns = [
        Column("a", "number", "double", high=9.0, rows=50, atoms=(0.0, 2.0), masses=(0.2, 0.3), missing=0.1),
        Column("b", "number", "double", low=-1.0, rows=50),
        Column("c", "number", "int64", high=7.0, step=1.0, cell=1.0, rounded=True, rows=50, centre=3.0, scale=2.0),
    ]
    a, b, c = np.array([0.0, 2.0, math.nan, 0.7]), 0.3, 4.0
    single = sum(scores(on_axes(column), v) for column, v in zip(columns, (a, b, c), strict=True))
    np.testing.assert_allclose(scores(on_axes(*columns), a, b, c), single, rtol=1e-6)
    expected = np.array([0.2, 0.3, 0.1, 0.4 * stats.norm.pdf(0.7)]) * stats.norm.pdf(0.3)
    expected *= stats.norm.cdf(0.75) - stats.norm.cdf(0.25)
    np.testing.assert_allclose(np.exp(scores(on_axes(*columns), a, b, c)), expected, rtol=1e-6)


# ---------------------------------------------------------------- values come back


def returned(preprocessor, x, noise):
    """The values that own points of the cells of x."""
    cells, size = preprocessor.prepare(x), x.shape[1]
    return preprocessor.inverse(draw_points(cells[:, :size], cells[:, size:], noise))


@given(any_column(kinds=CONTINUOUS + GRIDS), st.integers(0, 2**32 - 1))
@settings(max_examples=80)
def test_points_of_a_cell_come_back_to_its_value(case, seed):
    column, values = case
    x = torch.from_numpy(values)[:, None]
    noise = np.random.default_rng(seed).random((5, *x.shape))
    for part in torch.from_numpy(
        np.concatenate([noise, np.full((1, *x.shape), 1e-6), np.full((1, *x.shape), 1 - 1e-6)])
    ):
        back = returned(on_axes(column), x, part)
        assert torch.equal(back.isnan(), x.isnan())
        exact = torch.from_numpy(np.isin(values, column.atoms) | np.isnan(values) | column.rounded)[:, None]
        if column.atoms and not column.rounded:
            assert torch.equal(back[exact].nan_to_num(1e99), x[exact].nan_to_num(1e99))
        torch.testing.assert_close(back[exact], x[exact], rtol=1e-14, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(back[~exact], x[~exact], rtol=1e-9, atol=1e-9 * column.scale)


@pytest.mark.parametrize("name", ["linear", "log"])
@pytest.mark.parametrize("atoms", [(), ((1e5, 0.3),)])
def test_narrow_cells_and_those_in_the_tails_come_back(name, atoms):
    column = Column(
        "c", "number", "int64", map=name, arguments={"offset": -1.0} if name == "log" else {}, step=1.0, cell=1.0,
        rounded=True, high=2e9, centre=10.0 if name == "log" else 1e5, scale=1.5 if name == "log" else 1e5, tail=3.0,
        rows=1000, atoms=tuple(a for a, _ in atoms), masses=tuple(m for _, m in atoms),
    )  # fmt: skip
    x = torch.tensor([0, 1, 2, 17, 99_999, 100_000, 100_001, 10**6, 10**8, 2 * 10**9], dtype=torch.float64)[:, None]
    own = on_axes(column)
    for share in (1e-3, 0.3, 0.5, 1 - 1e-3):
        assert torch.equal(returned(own, x, torch.full_like(x, share)), x)
    z = normal_scores(column, x[:, 0].numpy())[0]
    assert np.abs(z).max() > 4.9  # Φ has lost several digits there
    cells = own.locate(x)[1]
    assert bool((cells.width <= 0)[0, x[:, 0] != 1e5].all())  # on the axis itself
    assert bool(torch.isfinite(cells.log_measure).all())


@pytest.mark.parametrize("far", [5.0, 12.0, 37.0])
def test_tails_of_a_column_without_atoms_are_as_precise_as_its_curve(far):
    column = Column("c", "number", "double", low=-99.0, high=99.0, rows=1000, centre=3.0, scale=2.0, tail=8.0)
    x = torch.tensor([[3 - far], [3 + far]], dtype=torch.float64)
    torch.testing.assert_close(returned(on_axes(column), x, torch.zeros_like(x)), x, rtol=1e-12, atol=0)
    z, log_slope = normal_scores(column, x[:, 0].numpy())
    np.testing.assert_allclose(scores(on_axes(column), x[:, 0].numpy()), stats.norm.logpdf(z) + log_slope)


def test_upper_and_lower_tails_keep_their_precision_beside_atoms():
    # In the tail above all atoms, u is 1 in float64: that tail is computed from 1 - u.
    column = Column("c", "number", "double", low=-9.0, high=9.0, rows=1000, atoms=(0.0,), masses=(0.5,))
    x = torch.tensor([[-9.0], [-7.0], [7.0], [9.0]], dtype=torch.float64)
    torch.testing.assert_close(returned(on_axes(column), x, torch.zeros_like(x)), x, rtol=1e-9, atol=0)
    expected = math.log(0.5) + stats.norm.logpdf(x[:, 0].numpy())
    np.testing.assert_allclose(scores(on_axes(column), x[:, 0].numpy()), expected, rtol=1e-9)


def test_every_point_of_the_axis_has_a_value():
    z = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    mixed = Column(
        "c", "number", "double", low=-3.0, high=3.0, rows=99, atoms=(0.0, 1.0), masses=(0.3, 0.1), missing=0.2
    )
    only = Column("c", "number", "double", high=2.0, rows=99, atoms=(0.0, 1.0, 2.0), masses=(0.3, 0.5, 0.1),
                  missing=0.1, discrete=True)  # fmt: skip
    grid = replace(mixed, cell=0.5, step=0.5, origin=-3.0, rounded=True)
    for column in (mixed, only, grid):
        x = on_axes(column).inverse(z[:, None])[:, 0]
        u = stats.norm.cdf(z.numpy())
        assert torch.equal(x.isnan(), torch.from_numpy(u < column.missing))
        known = x[~x.isnan()]
        assert bool((known.diff() >= 0).all())
        if column.discrete:
            bounds = column.missing + np.cumsum([0.0, *column.masses])
            expected = np.array(column.atoms)[np.clip(np.searchsorted(bounds, u, side="right") - 1, 0, 2)]
            np.testing.assert_array_equal(known.numpy(), expected[u >= column.missing])


def test_the_ends_of_the_axis_belong_to_the_last_values():
    few = Column("c", "number", "double", high=1.0, rows=99, atoms=(0.0, 1.0), masses=(0.1, 0.9), discrete=True)
    more = replace(few, name="d", high=5.0, atoms=(0.0, 1.0, 4.0, 5.0), masses=(0.1, 0.2, 0.3, 0.4))
    bounded = Column("e", "number", "double", low=0.5, high=20.0, rows=99)
    free = replace(bounded, name="f", low=-0.5, high=200.0)
    z = torch.tensor([[-12.0], [12.0]], dtype=torch.float64).expand(2, 4)
    assert on_axes(few, more, bounded, free).inverse(z).tolist() == [[0, 0, 0.5, -12], [1, 5, 12, 12]]
    ceiling = replace(bounded, high=3.0)
    assert on_axes(ceiling).inverse(z[:, :1]).flatten().tolist() == [0.5, 3.0]


# ---------------------------------------------------------------- values that a column cannot have


def test_a_value_that_a_column_cannot_have_is_unlikely_and_does_not_affect_the_others():
    atoms = {"atoms": (0.0, 1.0), "masses": (0.4, 0.6), "discrete": True}
    columns = [
        Column("a", "category", "string", step=1.0, high=1.0, rounded=True, rows=98, categories=("u", "v"), **atoms),
        Column("b", "number", "double", high=1.0, rows=98, **atoms),
        Column("c", "number", "double", map="log", arguments={"offset": 0.0}, low=0.5, high=20.5, rows=98),
        Column("d", "number", "double", map="logit", arguments={"lower": 0.0, "upper": 1.0}, high=1.0, rows=98),
        Column("e", "number", "double", low=-1.0, high=1.0, rows=98),
    ]
    preprocessor = on_axes(*columns)
    preprocessor.whitening.factor = torch.linalg.cholesky(0.5 * torch.eye(5, dtype=torch.float64) + 0.5)
    usual = [0.0, 1.0, 1.0, 0.5, 0.0]
    rare = -math.log(100)  # 1 / (98 + 2)
    for place, value, spread in [
        (0, math.inf, 1), (0, math.nan, 1), (1, 0.3, 1), (1, math.inf, 1), (2, -1.0, 20), (2, 0.0, 20),
        (2, math.inf, 20), (2, -math.inf, 20), (2, math.nan, 1), (3, 0.0, 1), (3, 1.0, 1), (3, 1.5, 1),
        (4, math.nan, 1),
    ]:  # fmt: skip
        row = [*usual[:place], value, *usual[place + 1 :]]
        cells = preprocessor.locate(torch.tensor([row], dtype=torch.float64))[1]
        assert (cells.start[place, 0], cells.width[place, 0]) == (0, 1)  # the whole axis: integrated out
        alone = on_axes(columns[place])
        assert scores(alone, [value])[0] == pytest.approx(rare - math.log(spread), abs=1e-9), (place, value)
        assert np.isfinite(scores(preprocessor, *row)).all()


@pytest.mark.parametrize("values", [[-2.0, -1.0], [-1e9, -0.9, -0.6]])
def test_cells_that_reach_beyond_the_end_of_a_map_have_finite_scores(values):
    column = Column("c", "number", "int64", map="log", arguments={"offset": -1.0}, step=1.0, cell=1.0, rounded=True,
                    high=5e4, centre=4.4, scale=1.2, tail=8.0, rows=100)  # fmt: skip
    score = scores(on_axes(column), values)
    possible = stats.norm.cdf(normal_scores(column, np.array(values) + 0.5)[0])
    expected = np.where(possible > 0, np.log(np.where(possible > 0, possible, 1)), -math.log(102) - math.log(5e4))
    np.testing.assert_allclose(score, expected, rtol=1e-3)


# ---------------------------------------------------------------- the fixed points


MIXED = [
    Column("a", "number", "double", low=-3.0, high=3.0, rows=500, atoms=(0.0,), masses=(0.4,), missing=0.1),
    Column("b", "category", "string", step=1.0, high=2.0, rounded=True, rows=500, categories=("u", "v", "w"),
           atoms=(0.0, 1.0, 2.0), masses=(0.5, 0.3, 0.2), discrete=True),
]  # fmt: skip


def test_the_same_row_has_the_same_score_whatever_the_batch():
    preprocessor = on_axes(*MIXED)
    a, b = np.array([0.0, math.nan, 0.4, -2.5, 0.0, 1.1]), np.array([0, 1, 2, 0, 2, math.inf])
    together = scores(preprocessor, a, b)
    alone = np.concatenate([scores(preprocessor, *row) for row in zip(a, b, strict=True)])
    np.testing.assert_allclose(alone, together, rtol=1e-13)
    np.testing.assert_array_equal(scores(preprocessor, a, b), together)
    torch.manual_seed(5)
    np.testing.assert_array_equal(scores(on_axes(*MIXED), a[::-1], b[::-1])[::-1], together)
    points = on_axes(Column("a", "number", "double", low=-3.0, high=3.0, rows=500))
    x = np.array([0.3, math.nan])  # beside a row that has a cell, a row that has none
    np.testing.assert_allclose(scores(points, x)[:1], scores(points, x[:1]), rtol=1e-13)


def test_correlated_cells_have_the_probability_of_their_rectangle():
    """With a flow that is the identity, whitening leads to a Gaussian copula."""
    preprocessor = on_axes(*MIXED)
    covariance = np.array([[1.1, 0.6], [0.6, 0.9]])
    preprocessor.whitening.factor = torch.from_numpy(np.linalg.cholesky(covariance))
    preprocessor.whitening.mean = torch.tensor([0.2, -0.1], dtype=torch.float64)
    normal = stats.multivariate_normal([0.2, -0.1], covariance)
    ends = stats.norm.ppf([0, 0.5, 0.8, 1])  # of the categories
    for value, low, high in ((math.nan, 0.0, 0.1), (0.0, 0.35, 0.75)):
        low, high = stats.norm.ppf([low, high])
        for code in range(3):
            probability = normal.cdf([high, ends[code + 1]], lower_limit=[low, ends[code]])
            assert scores(preprocessor, value, code)[0] == pytest.approx(math.log(probability), abs=0.03)
    # Points of continuous columns have the density of the normal distribution itself.
    free = [replace(MIXED[0], atoms=(), masses=(), missing=0.0, name=name, centre=1.0, scale=2.0) for name in "ab"]
    copula = on_axes(*free)
    copula.whitening.mean, copula.whitening.factor = preprocessor.whitening.mean, preprocessor.whitening.factor
    x = np.random.default_rng(0).normal(size=(2, 20))
    expected = normal.logpdf((x.T - 1) / 2) - 2 * math.log(2)
    np.testing.assert_allclose(scores(copula, *x), expected, rtol=1e-9)


def exact_scores(preprocessor, flow, rows, count=60):
    """The log-density of rows of two columns by Gauss-Legendre quadrature over their cells."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    nodes, weights = (nodes + 1) / 2, weights / 2
    noise = torch.from_numpy(np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2))
    log_weights = torch.from_numpy(np.log(np.multiply.outer(weights, weights)).reshape(-1))
    result = []
    for row in rows:
        cells = preprocessor.locate(row[None])[1]
        y, offset = preprocessor.points(cells, noise.mT)
        result.append((flow().log_prob(y) + offset + log_weights).logsumexp(0).item())
    return np.array(result)


def test_fixed_points_are_close_to_the_integral_over_a_cell():
    preprocessor = on_axes(*MIXED)
    preprocessor.whitening.factor = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    a, b = (t.reshape(-1) for t in torch.meshgrid(
        torch.tensor([torch.nan, 0.0, -1.5, 0.3, 2.0], dtype=torch.float64), torch.arange(3, dtype=torch.float64),
        indexing="ij",
    ))  # fmt: skip
    rows = torch.stack([a, b], dim=1)
    errors = []
    for seed in range(5):
        flow = trained_flow(2, conditioning="full", seed=seed)
        with torch.no_grad():
            exact = exact_scores(preprocessor, flow, rows)
            approximate = scores(preprocessor, a.numpy(), b.numpy(), log_prob=lambda y, flow=flow: flow().log_prob(y))
        errors.append(approximate - exact)
    # These flows are rougher than trained ones: points of another sequence, or half as many, are off by more.
    assert np.abs(errors).mean() < 0.04
    assert np.abs(np.median(errors)) < 0.01
    assert np.abs(errors).max() < 0.6


def test_one_random_point_estimates_the_density_without_bias():
    preprocessor = on_axes(*MIXED)
    flow = trained_flow(2, conditioning="full", seed=0)
    row = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    with torch.no_grad():
        y, offset = preprocessor.draw(row.expand(20_000, 2), torch.Generator().manual_seed(0))
        density = (flow().log_prob(y) + offset).exp().numpy()
        exact = math.exp(exact_scores(preprocessor, flow, row)[0])
    assert density.mean() == pytest.approx(exact, abs=4 * density.std() / 20_000**0.5)
    assert density.std() > 0.01 * exact
