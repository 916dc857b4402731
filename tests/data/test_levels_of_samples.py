"""Levels: the codes of atoms, missing values and continuous ones, and the values that codes stand for."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow import fit_table
from sinuflow.data import Column, Preprocessor
from sinuflow.data.inspect import inspect_numbers
from sinuflow.data.levels import Levels
from tests.data.tables import VALUES, any_column

KINDS = ("zero-inflated", "heaps", "counts", "few", "category", "far", "normal")


def column(atoms, masses, missing=0.0, **options):
    """A column with these atoms; continuous unless they have all of the probability."""
    discrete = math.isclose(missing + math.fsum(masses), 1)
    options = {"low": min(atoms, default=0.0) - 1, "high": max(atoms, default=0.0) + 1, "rows": 98} | options
    return Column("c", "number", "double", atoms=tuple(atoms), masses=tuple(masses), missing=missing,
                  discrete=discrete, **options)  # fmt: skip


def rows_of(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


@given(any_column(kinds=KINDS).filter(lambda case: case[0].atoms or case[0].missing), st.integers(0, 99))
@settings(max_examples=80)
def test_codes_stand_for_their_values(case, seed):
    own, values = case
    levels, x = Levels([own]), torch.from_numpy(values)[:, None]
    codes, within, unknown, continuous = levels.encode(x)
    assert not bool(unknown.any())
    assert bool((codes >= 0).all() & (codes < levels.sizes[0]).all())
    np.testing.assert_array_equal(continuous[:, 0], ~np.isnan(values) & ~np.isin(values, own.atoms))
    back, from_flow = levels.decode(codes, torch.Generator().manual_seed(seed))
    assert torch.equal(from_flow, continuous)
    known = ~continuous
    assert len(own.atoms) <= 128
    assert torch.equal(back[known].nan_to_num(1e99), x[known].nan_to_num(1e99))
    # On a grid, probabilities are divided by its step.
    step = own.cell if own.kind == "number" and own.cell else 1.0
    np.testing.assert_allclose(within, np.where(np.isin(values, own.atoms), -math.log(step), 0.0))


def test_each_atom_missing_values_and_the_rest_have_a_level():
    levels = Levels([column([0.0, 5.0], [0.3, 0.2], missing=0.1), column([1.0, 2.0], [0.5, 0.5]), column([], [], 0.4)])
    assert levels.sizes == [4, 2, 2]
    nan = torch.nan
    x = torch.tensor([[0.0, 1.0, 0.7], [5.0, 2.0, nan], [nan, 1.0, 3.0], [2.5, 2.0, 0.0]], dtype=torch.float64)
    codes, within, unknown, continuous = levels.encode(x)
    assert codes.tolist() == [[0, 0, 1], [1, 1, 0], [2, 0, 1], [3, 1, 1]]
    assert continuous.tolist() == [[False, False, True], [False] * 3, [False, False, True], [True, False, True]]
    assert not bool(within.any() | unknown.any())


def test_values_that_a_column_cannot_have_are_unlikely():
    levels = Levels([column([0.0, 5.0], [0.5, 0.5]), column([0.0], [0.5], low=0.0, high=20.0)])
    x = torch.tensor([[2.0, 0.0], [torch.nan, 0.0], [torch.inf, 0.0], [0.0, torch.inf], [0.0, torch.nan], [0.0, 0.0]],
                     dtype=torch.float64)  # fmt: skip
    codes, within, unknown, _ = levels.encode(x)
    assert unknown.tolist() == [[True, False]] * 3 + [[False, True]] * 2 + [[False, False]]
    assert bool((codes[unknown] == 0).all())
    assert within.tolist() == pytest.approx([-math.log(100)] * 5 + [0.0])


@given(st.integers(129, 600), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1]), st.booleans())
@settings(max_examples=40)
def test_of_many_atoms_neighbouring_rare_ones_share_levels(count, seed, missing, rest):
    random = np.random.default_rng(seed)
    masses = random.dirichlet(np.full(count, 0.3)) + 1e-9
    masses *= (1 - missing - 0.2 * rest) / masses.sum()
    own = column(np.arange(count) * 2.0, masses, missing)
    levels = Levels([own])
    assert levels.sizes[0] <= 128 + 2 * 64 + 2
    codes, within, unknown, _ = levels.encode(rows_of(*own.atoms))
    assert not bool(unknown.any())
    assert bool((codes.diff(dim=0) >= 0).all())  # neighbours
    assert bool((codes.diff(dim=0) <= 1).all())
    codes, shares = codes[:, 0].numpy(), within.exp().numpy()
    np.testing.assert_allclose(np.bincount(codes, shares), 1, rtol=1e-9)  # each level's probability is divided
    totals = np.bincount(codes, masses)
    np.testing.assert_allclose(shares, masses / totals[codes], rtol=1e-9)
    frequent, rare = np.split(np.argsort(-masses), [64])
    assert (np.bincount(codes)[codes] == 1)[frequent].all()
    assert totals[codes[rare]].max() <= masses[rare].sum() / 64 + 1e-12 + masses[rare].max()
    drawn, _ = levels.decode(torch.from_numpy(codes[frequent])[:, None], torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(drawn[:, 0], np.array(own.atoms)[frequent])


def test_values_of_a_shared_level_are_drawn_by_their_probabilities():
    masses = np.r_[np.full(64, 0.01), np.tile([1.0, 3.0], 100) * 0.36 / 400]
    levels = Levels([column(np.arange(264.0), masses)])
    codes, _, _, _ = levels.encode(rows_of(*range(264)))
    shared = int(codes[100])
    members = np.flatnonzero(codes[:, 0].numpy() == shared)
    assert len(members) > 1
    drawn, continuous = levels.decode(torch.full((20_000, 1), shared), torch.Generator().manual_seed(0))
    assert not bool(continuous.any())
    frequencies = np.bincount(drawn[:, 0].long().numpy(), minlength=264)[members] / 20_000
    expected = masses[members] / masses[members].sum()
    np.testing.assert_allclose(frequencies, expected, atol=4 * math.sqrt(0.25 / 20_000))


def test_the_probability_within_a_level_belongs_to_a_row():
    many = column(np.arange(264.0), np.r_[np.full(64, 0.01), np.tile([1.0, 3.0], 100) * 0.36 / 400])
    preprocessor = Preprocessor([many, column([], [], low=-9.0, high=9.0)])
    x = torch.stack([torch.arange(264.0), torch.linspace(-2, 2, 264)], dim=1).double()
    levels, cells = preprocessor.locate(x)
    assert levels.log_within.min() < -0.5
    _, offset = preprocessor.draw(x, torch.Generator().manual_seed(0))
    torch.testing.assert_close(offset, levels.log_within + cells.log_measure)


# ---------------------------------------------------------------- with a flow


def test_probabilities_of_all_values_and_the_density_add_up_to_1():
    random = np.random.default_rng(0)
    rows = 300
    rain = np.where(random.random(rows) < 0.5, 0.0, random.normal(2, 1, rows))
    rain[random.random(rows) < 0.1] = np.nan
    frame = pd.DataFrame({"kind": random.choice(["a", "b", "c"], rows, p=[0.6, 0.3, 0.1]), "rain": rain})
    model = fit_table(frame, steps=40, architecture={"hidden": (8,), "blocks": 1}, progress=False, device="cpu")
    mass = 0.0
    for kind in "abc":
        alone = np.exp(model.log_prob(pd.DataFrame({"kind": kind, "rain": [0.0, np.nan]})))
        x = np.linspace(-30, 30, 20_001) + 1e-7
        density = np.exp(model.log_prob(pd.DataFrame({"kind": kind, "rain": x})))
        total = alone.sum() + np.trapezoid(density, x)
        assert total == pytest.approx((frame["kind"] == kind).mean(), abs=0.1)
        mass += total
    assert mass == pytest.approx(1, abs=2e-3)


def test_an_unseen_category_has_the_probability_of_the_rule_of_succession():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"kind": random.choice(["a", "b"], 300, p=[0.75, 0.25]), "x": random.normal(size=300)})
    model = fit_table(frame, steps=1, architecture={"hidden": (4,), "blocks": 1}, progress=False, device="cpu")
    seen, unseen = (model.log_prob(pd.DataFrame({"kind": kind, "x": frame["x"][:20]})) for kind in ("a", "?"))
    share = (frame["kind"][model.split.train] == "a").mean()
    expected = -math.log(len(model.split.train) + 2) - math.log(share)
    np.testing.assert_allclose(unseen - seen, expected, atol=0.05)


@pytest.mark.parametrize("kind", ["zero-inflated", "few", "category"])
def test_points_of_rows_come_back_with_their_codes(kind):
    random = np.random.default_rng(0)
    names = ["normal", kind, "zero-inflated", "lognormal"]
    frame = np.stack([VALUES[name](random, 400) for name in names], axis=1)
    frame[random.random(frame.shape) < 0.1] = np.nan
    columns = [inspect_numbers(f"{i}", values, "double") for i, values in enumerate(frame.T)]
    preprocessor = Preprocessor(columns)
    assert len(preprocessor.level_features) == 4
    x = torch.from_numpy(frame)
    preprocessor.initialize(x, torch.Generator().manual_seed(0))
    for seed in range(3):
        y, _ = preprocessor.draw(x, torch.Generator().manual_seed(seed))
        assert y.shape == (400, preprocessor.size)
        back = preprocessor.inverse(y)
        assert torch.equal(back.isnan(), x.isnan())
        torch.testing.assert_close(back, x, rtol=1e-9, atol=1e-9, equal_nan=True)
        exact = torch.from_numpy(np.stack([np.isin(v, c.atoms) for v, c in zip(frame.T, columns, strict=True)], axis=1))
        assert torch.equal(back[exact], x[exact])
    batch = preprocessor.encode(preprocessor.prepare(x), None, torch.Generator().manual_seed(0))
    assert torch.equal(batch.x[:, :4], preprocessor.locate(x)[0].codes.float())


def test_the_last_of_discrete_columns_stays_on_the_axis():
    columns = [column([0.0, 1.0], [0.4, 0.6]), column([0.0, 1.0, 2.0], [0.2, 0.3, 0.5])]
    preprocessor = Preprocessor(columns)
    assert (preprocessor.level_features, preprocessor.axis_features, preprocessor.sizes) == ([0], [1], [2])
    x = torch.cartesian_prod(torch.arange(2.0), torch.arange(3.0)).double()
    y, _ = preprocessor.draw(x, torch.Generator().manual_seed(0))
    assert torch.equal(preprocessor.inverse(y), x)
    levels, cells = preprocessor.locate(x)
    scores = preprocessor.score_points(lambda y: (-0.5 * y.square() - 0.5 * math.log(2 * math.pi)).sum(1), cells)
    np.testing.assert_allclose(scores.exp(), [0.2, 0.3, 0.5] * 2)
    assert levels.codes[:, 0].tolist() == [0, 0, 0, 1, 1, 1]


def test_the_continuous_part_of_a_grid_draws_no_atom():
    random = np.random.default_rng(0)
    values = np.round(random.normal(40, 8, 3_000))
    values[random.random(3_000) < 0.3] = 40.0
    column = inspect_numbers("age", values, "int64")
    assert 40.0 in column.atoms
    assert not column.discrete
    preprocessor = Preprocessor([column])
    rest = preprocessor.sizes[0] - 1
    y = torch.randn((5_000, 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = preprocessor.inverse(torch.cat([torch.full((5_000, 1), rest, dtype=torch.float64), y], dim=1))[:, 0]
    assert not np.isin(drawn.numpy(), column.atoms).any()
    assert drawn.min() >= column.low
    assert drawn.max() <= column.high
