"""Levels: every value has its code, every code its values, and shares are probabilities."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sinuflow.data.columns import Column
from sinuflow.data.levels import Levels, _group_atoms
from sinuflow.data.sources import seeded

ROWS = 98
#: The log-probability of a value that was not seen in these rows.
LOG_UNSEEN = -math.log(ROWS + 2)


def column(atoms=(), missing=0.0, discrete=True, weights=None):
    """A column of these atoms, whose probabilities are proportional to the weights."""
    weights = np.ones(len(atoms)) if weights is None else np.asarray(weights)
    total = 1.0 - missing if discrete else 0.7 * (1.0 - missing)
    masses = tuple((total * weights / weights.sum()).tolist()) if len(atoms) else ()
    return Column(
        "c", "number", "double", rows=ROWS, low=-30.0, high=30.0, atoms=tuple(map(float, atoms)), masses=masses,
        missing=missing, discrete=discrete,
    )  # fmt: skip


def rows_of(*values):
    """Rows of one column."""
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


@st.composite
def columns(draw):
    """A column with levels: atoms, missing values, or both, with or without a continuous part."""
    numbers = st.floats(-1e6, 1e6) | st.integers(-3, 3).map(float)
    atoms = sorted(set(draw(st.lists(numbers.map(lambda x: x + 0.0), max_size=6))))
    missing = draw(st.sampled_from([0.0, 0.25]))
    discrete = bool(atoms) and draw(st.booleans())
    if not atoms and not missing:
        atoms = [0.0]
    weights = [draw(st.floats(0.1, 9)) for _ in atoms]
    return column(atoms, missing, discrete, weights)


def all_values(c):
    """One value of each level of a column: atoms, a missing value, and one of the continuous part."""
    return [*c.atoms, *([math.nan] if c.missing else []), *([] if c.discrete else [1e6 + 0.5])]


@given(several=st.lists(columns(), min_size=1, max_size=4), seed=st.integers(0, 99))
@settings(max_examples=100)
def test_values_have_a_code_each_and_come_back_from_it(several, seed):
    levels = Levels(several)
    values = [all_values(c) for c in several]
    assert levels.sizes == [len(v) for v in values]
    most = max(levels.sizes)
    x = torch.tensor([[v[i % len(v)] for v in values] for i in range(most)], dtype=torch.float64)
    codes, within, unknown, continuous = levels.encode(x)
    expected = [[i % len(v) for v in values] for i in range(most)]
    assert codes.tolist() == expected  # atoms in increasing order, missing, the continuous part
    assert within.tolist() == [0.0] * most
    assert not unknown.any()
    own = torch.tensor([[not c.discrete and i % n == n - 1 for c, n in zip(several, levels.sizes, strict=True)]
                        for i in range(most)])  # fmt: skip
    assert torch.equal(continuous, own)
    back, from_flow = levels.decode(codes, seeded(seed))
    assert torch.equal(from_flow, own)
    assert torch.equal(back.masked_fill(own, 0.0).nan_to_num(nan=9e9), x.masked_fill(own, 0.0).nan_to_num(nan=9e9))


def test_atoms_are_exact():
    levels = Levels([column([0.0, 0.1], discrete=False)])
    next_to = [-0.0, math.nextafter(0.0, 1), 0.1, math.nextafter(0.1, 1), 0.1 + 0.2 - 0.2]
    codes, _, unknown, continuous = levels.encode(rows_of(*next_to))
    assert codes.flatten().tolist() == [0, 2, 1, 2, 2]
    assert continuous.flatten().tolist() == [False, True, False, True, True]
    assert not unknown.any()


@pytest.mark.parametrize(
    ("c", "value"),
    [
        (column([1.0, 2.0]), 1.5),
        (column([1.0, 2.0]), -7.0),
        (column([1.0, 2.0]), 7.0),
        (column([0.0, 1.0]), math.inf),  # a category that was never seen
        (column([0.0, 1.0]), math.nan),
        (column([1.0, 2.0], missing=0.5), math.inf),
        (column([1.0], discrete=False), math.nan),  # nothing was missing: a probability, and not a density
    ],
)
def test_a_value_that_the_column_cannot_have_has_a_known_probability(c, value):
    codes, within, unknown, continuous = Levels([column([0.0, 5.0]), c]).encode(
        torch.tensor([[5.0, value], [0.0, c.atoms[0]]], dtype=torch.float64)
    )
    assert codes.tolist() == [[1, 0], [0, 0]]
    assert unknown.tolist() == [[False, True], [False, False]]
    assert not continuous.any()
    assert within.tolist() == pytest.approx([LOG_UNSEEN, 0.0])


def test_values_on_a_grid_have_densities():
    """The probability of a value is divided by the step; those of missing values and categories are not."""
    grid = replace(column([0.0, 1.5], missing=0.2, discrete=False), cell=0.5, step=0.5)
    levels = Levels([grid, replace(column([0.0, 1.0]), kind="category", cell=2.0)])
    x = torch.tensor([[0.0, 0.0], [1.5, 1.0], [math.nan, 0.0], [7.0, 1.0], [math.inf, 0.0]], dtype=torch.float64)
    within = levels.encode(x).log_within.tolist()
    assert within == pytest.approx([math.log(2), math.log(2), 0.0, 0.0, LOG_UNSEEN + math.log(2)])


def test_the_probabilities_of_unknown_values_multiply():
    levels = Levels([column([0.0, 5.0])] * 3)
    within = levels.encode(torch.tensor([[1.0, 0.0, math.nan]], dtype=torch.float64)).log_within
    assert within.tolist() == pytest.approx([2 * LOG_UNSEEN])


# ---------------------------------------------------------------- rare atoms that share a level

#: 400 integers with the frequencies of a power law, in no order.
MANY = column(range(400), missing=0.1, weights=np.random.default_rng(0).permutation(1.0 / np.arange(1, 401)))


@given(
    count=st.integers(1, 600),
    seed=st.integers(0, 10**6),
    exponent=st.floats(0.0, 40.0),
)
@settings(max_examples=80)
def test_shares_within_a_level_sum_to_one(count, seed, exponent):
    weights = np.random.default_rng(seed).random(count) ** exponent + 1e-30
    level, share = _group_atoms((weights / weights.sum()).tolist())
    np.testing.assert_allclose(np.bincount(level, np.exp(share)), 1.0, rtol=1e-12)
    assert level[0] == 0
    assert set(np.diff(level)) <= {0, 1}  # neighbours
    assert level[-1] < 2 * 128 + 1  # as many as there is room for
    if count <= 128:
        assert level[-1] == count - 1
        assert not share.any()
    else:
        frequent = np.argsort(-weights, kind="stable")[:64]
        assert not share[frequent].any()


def test_a_grouped_atom_has_its_share_of_the_level():
    levels = Levels([MANY, column([3.0, 4.0])])
    x = torch.tensor([[atom, 3.0] for atom in MANY.atoms], dtype=torch.float64)
    codes, within, unknown, _ = levels.encode(x)
    codes = codes[:, 0].numpy()
    assert not unknown.any()
    assert levels.sizes[0] == codes.max() + 2 < 400  # and the missing values
    level_mass = np.bincount(codes, MANY.masses)
    np.testing.assert_allclose(np.exp(within.numpy()), np.array(MANY.masses) / level_mass[codes], rtol=1e-12)
    assert len(np.unique(codes)) > 128 / 2
    assert (np.bincount(codes) > 1).any()


def test_shares_are_those_of_atoms_alone():
    levels = Levels([replace(MANY, discrete=False, masses=tuple(m / 2 for m in MANY.masses))])
    codes, within, unknown, continuous = levels.encode(rows_of(math.nan, 0.5, -1.0, 1e9))
    assert codes.flatten().tolist() == [levels.sizes[0] - 2] + 3 * [levels.sizes[0] - 1]
    assert continuous.flatten().tolist() == [False, True, True, True]
    assert within.tolist() == [0.0] * 4
    assert not unknown.any()


def test_values_within_a_level_are_drawn_by_their_shares():
    levels = Levels([column([3.0, 4.0]), MANY])
    encoded = levels.encode(torch.tensor([[3.0, atom] for atom in MANY.atoms], dtype=torch.float64))
    own = encoded.codes[:, 1].numpy()
    largest = int(np.argmax(np.bincount(own)))
    members, count = np.flatnonzero(own == largest), 4000
    assert len(members) > 5
    drawn, continuous = levels.decode(torch.tensor([[1, largest]]).expand(count, 2), seeded(1))
    assert not continuous.any()
    assert set(drawn[:, 0].tolist()) == {4.0}
    assert set(drawn[:, 1].tolist()) <= set(members.astype(float))
    share = np.array(MANY.masses)[members]
    frequencies = (drawn[:, 1].numpy()[:, None] == members).sum(0)
    assert chisquare(frequencies, count * share / share.sum()).pvalue > 1e-3
    again, _ = levels.decode(torch.tensor([[1, largest]]).expand(count, 2), seeded(1))
    assert torch.equal(again, drawn)
    assert not torch.equal(levels.decode(torch.tensor([[1, largest]]).expand(count, 2), seeded(2))[0], drawn)


@given(seed=st.integers(0, 99))
@settings(max_examples=10)
def test_every_drawn_value_belongs_to_its_level(seed):
    levels = Levels([MANY, replace(MANY, discrete=False, masses=tuple(m / 2 for m in MANY.masses))])
    assert levels.sizes[1] == levels.sizes[0] + 1
    codes = torch.stack([torch.arange(levels.sizes[0]), torch.arange(levels.sizes[0])], dim=1).repeat(20, 1)
    values, continuous = levels.decode(codes, seeded(seed))
    assert not continuous.any()
    assert torch.equal(levels.encode(values).codes, codes)


def test_atoms_stay_exact_when_a_model_is_converted_to_another_dtype():
    levels = Levels([column([0.1, 0.2])]).float().half()
    assert levels.atoms.dtype == torch.float64
    assert levels.encode(rows_of(0.2)).codes.item() == 1
