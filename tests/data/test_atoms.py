"""Which values of a column are atoms, and how often they are sampled."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow import fit_table
from sinuflow.data import Column
from sinuflow.data.atoms import with_atoms
from sinuflow.data.inspect import inspect_numbers
from tests.data.tables import VALUES

RANDOM = np.random.default_rng(0)
ROWS = 1000


def atoms_of(values, step=0.0, missing=0):
    """The column of these values and as many missing ones, and its continuous part."""
    values = np.asarray(values, dtype=np.float64)
    bounds = {"low": float(values.min()), "high": float(values.max())}
    return with_atoms(Column("c", "number", "double", rows=len(values) + missing, cell=step, **bounds), values)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.95])
def test_zeros_among_real_numbers_are_an_atom(share):
    values = np.where(np.arange(ROWS) < share * ROWS, 0.0, RANDOM.gamma(2, 3, ROWS))
    column, rest = atoms_of(values, missing=250)
    assert column.atoms == (0.0,)
    assert column.masses == (share * ROWS / 1250,)
    np.testing.assert_array_equal(rest, np.sort(values[values > 0]))
    assert not column.discrete


def test_several_atoms_are_found_in_increasing_order():
    values = np.concatenate([RANDOM.normal(size=700), np.full(200, 5.0), np.full(100, -3.0)])
    column, rest = atoms_of(RANDOM.permutation(values))
    assert column.atoms == (-3.0, 5.0)
    assert column.masses == (0.1, 0.2)
    assert len(rest) == 700


@pytest.mark.parametrize("heap", [0.02, 0.1, 0.5])
def test_a_heap_on_a_grid_is_an_atom_of_its_excess(heap):
    values = np.where(RANDOM.random(20 * ROWS) < heap, 400.0, RANDOM.integers(0, 1000, 20 * ROWS))
    column, rest = atoms_of(values, step=1.0)
    assert column.atoms == (400.0,)
    usual = (rest == 400).sum()
    assert usual == pytest.approx(20 * (1 - heap), abs=4)
    assert len(values) * column.masses[0] == pytest.approx((values == 400).sum() - usual)
    few = np.where(np.arange(ROWS) < 30, 400.0, RANDOM.integers(395, 405, ROWS) + 10 * (np.arange(ROWS) % 50))
    column, rest = atoms_of(few, step=1.0)
    excess = ROWS * column.masses[column.atoms.index(400.0)]
    assert excess + (rest == 400).sum() == (few == 400).sum()
    assert 20 <= excess <= 40
    assert (rest == 400).sum() <= 8  # as many as its neighbours have, without the heap: 2


def test_neighbouring_heaps_do_not_hide_each_other():
    counts = np.where(np.arange(200) % 10 == 0, 30, 5)
    column, rest = atoms_of(np.repeat(np.arange(200), counts), step=1.0)
    assert column.atoms == tuple(range(0, 200, 10))
    assert len(rest) == ROWS  # five of every value


def test_a_value_of_a_sparse_grid_is_compared_with_the_rows_per_step():
    values = np.append(100 * np.arange(ROWS - 6), np.full(6, 5000.0))
    column, _ = atoms_of(values, step=1.0)
    assert column.atoms == (5000.0,)
    assert atoms_of(values, step=100.0)[0].atoms == ()  # each neighbour has one row


@pytest.mark.parametrize(("mean", "step"), [(50, 1.0), (10_000, 1.0), (50, 0.0)])
@pytest.mark.parametrize("seed", range(3))
def test_counts_have_no_atoms(mean, step, seed):
    """Whether or not the values are known to be on a grid, as those of standardized counts are not."""
    values = np.random.default_rng(seed).poisson(mean, 5 * ROWS if step else ROWS // 4)
    column, rest = atoms_of(values, step=step)
    assert not column.atoms
    assert len(rest) == len(values)


def test_few_repeated_values_on_no_grid_are_all_atoms():
    values = math.pi * np.random.default_rng(0).poisson(50, ROWS)
    column, _ = atoms_of(values)
    assert set(column.atoms) >= set(np.unique(values)[np.unique(values, return_counts=True)[1] >= 3])


@given(st.integers(2, 20), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60)
def test_few_values_are_nothing_but_atoms(count, seed, grid):
    random = np.random.default_rng(seed)
    kinds = np.sort(random.choice(1000, count, replace=False)).astype(float)
    kinds = kinds if grid else kinds * math.pi
    values = np.concatenate([kinds, random.choice(kinds, 5 * count)])
    column, rest = atoms_of(values, step=float(grid), missing=7)
    assert column.discrete
    assert len(rest) == 0
    assert column.atoms == tuple(kinds)
    counts = np.array([(values == kind).sum() for kind in kinds])
    total = len(values) + 7 + 0.5 * (count + 1)
    np.testing.assert_allclose(column.masses, (counts + 0.5) / total)
    assert column.missing == pytest.approx(7.5 / total)


@pytest.mark.parametrize("far", [1e9, -1e30, 1e300])
def test_values_that_are_absurdly_far_are_atoms(far):
    values = np.append(RANDOM.normal(size=ROWS - 1), far)
    column, rest = atoms_of(values)
    assert column.atoms == (far,)
    assert column.masses == (1 / ROWS,)
    assert np.abs(rest).max() < 10
    assert atoms_of(np.append(RANDOM.normal(size=ROWS - 1), 1e6))[0].atoms == ()


def test_real_numbers_have_no_atoms_and_nothing_is_lost():
    values = RANDOM.normal(size=ROWS)
    column, rest = atoms_of(values)
    assert (column.atoms, column.masses, column.discrete) == ((), (), False)
    np.testing.assert_array_equal(rest, np.sort(values))
    doubled, rest = atoms_of(np.repeat(values[:100], 2))  # pairs are too few, whatever their share
    assert doubled.atoms == ()
    assert len(rest) == 200


@pytest.mark.parametrize("kind", VALUES)
def test_atoms_and_the_continuous_part_are_all_rows(kind):
    values = VALUES[kind](np.random.default_rng(1), ROWS)
    column = inspect_numbers("c", values, "double")
    atoms, rest = atoms_of(values, column.cell if column.rounded else 0.0)
    if not atoms.discrete:
        assert round(math.fsum(atoms.masses) * ROWS) + len(rest) == ROWS
        assert set(rest) <= set(values)


def test_an_untrained_flow_samples_atoms_as_often_as_they_occur():
    random = np.random.default_rng(0)
    rows = 3000
    frame = pd.DataFrame(
        {
            "spend": np.where(random.random(rows) < 0.6, 0.0, random.lognormal(3, 1, rows)),
            "income": np.where(random.random(rows) < 0.1, np.nan, random.normal(50, 9, rows)),
            "grade": random.choice([1.0, 1.3, 2.0, 2.7, 4.0], rows, p=[0.4, 0.3, 0.2, 0.07, 0.03]),
            "city": random.choice(["Rome", "Oslo", "Lima", "Bonn"], rows, p=[0.7, 0.2, 0.08, 0.02]),
            "score": np.where(random.random(rows) < 0.05, 100, random.integers(0, 2000, rows)),
        }
    )
    architecture = {"hidden": (4,), "blocks": 1}
    model = fit_table(frame, steps=1, architecture=architecture, progress=False, device="cpu", test=False)
    assert not model.preprocessor.restored
    drawn = model.sample(rows, seed=0).to_pandas()
    for name, values in (
        ("spend", [0.0]), ("income", [None]), ("grade", [1.0, 1.3, 2.0, 2.7, 4.0]),
        ("city", ["Rome", "Oslo", "Lima", "Bonn"]), ("score", [100]),
    ):  # fmt: skip
        for value in values:
            before, after = ((f[name].isna() if value is None else f[name] == value).mean() for f in (frame, drawn))
            # The standard error of the difference of the two frequencies.
            error = math.sqrt(2 * before * (1 - before) / rows)
            assert abs(after - before) < 3 * error, (name, value, before, after)
    assert drawn["spend"].min() == 0
    assert set(drawn["grade"]) <= set(frame["grade"])
