"""The order of categories: neighbours are similar in the other columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow.data.category_order import category_orders
from tests.data.tables import survey_of


def codes_of(random, rows, kinds):
    """Codes of categories, each of which occurs."""
    return random.permutation(np.r_[np.arange(kinds), random.integers(0, kinds, rows - kinds)]).astype(float)


@given(st.integers(3, 12), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=40)
def test_categories_are_sorted_by_what_they_imply(kinds, seed, exponential):
    random = np.random.default_rng(seed)
    place = random.permutation(kinds)  # of each code
    codes = codes_of(random, 100 * kinds, kinds)
    size = place[codes.astype(int)] + 0.2 * random.normal(size=len(codes))
    columns = [codes, np.exp(3 * size) if exponential else size, random.normal(size=len(codes))]  # ranks count
    found = place[category_orders(np.stack(columns, axis=1), [kinds, 0, 0])[0]]
    assert found.tolist() in (list(range(kinds)), list(range(kinds))[::-1])


def test_other_categories_count():
    codes, rest = np.repeat(np.arange(3.0), 100), np.tile([0.0, 1.0, 3.0, 4.0], 75)
    other = np.where(np.tile(np.arange(100), 3) < np.repeat([12, 88, 48], 100), 2.0, rest)  # 2 is their mean, too
    order = category_orders(np.stack([codes, other], axis=1), [3, 5])[0].tolist()
    assert order in ([0, 2, 1], [1, 2, 0])


def test_orders_are_permutations_whatever_is_missing():
    random = np.random.default_rng(0)
    rows = 500
    table = np.stack([
        codes_of(random, rows, 7), np.where(random.random(rows) < 0.5, np.nan, random.normal(size=rows)),
        codes_of(random, rows, 40), np.full(rows, np.nan), np.zeros(rows), codes_of(random, rows, 2),
    ], axis=1)  # fmt: skip
    table[random.random(table.shape) < 0.1] = np.nan
    table[table[:, 2] == 3, 2] = np.nan  # a category without rows
    orders = category_orders(table, [7, 0, 40, 0, 0, 2])
    assert orders.keys() == {0, 2}  # of two categories, one is the other's neighbour
    assert sorted(orders[0]) == list(range(7))
    assert sorted(orders[2]) == list(range(40))
    again = category_orders(table, [7, 0, 40, 0, 0, 2])
    assert all(np.array_equal(orders[i], again[i]) for i in orders)


def test_a_single_column_is_ordered_by_frequency():
    codes = np.repeat(np.arange(4.0), [5, 50, 20, 10])
    assert category_orders(codes[:, None], [4])[0].tolist() == [1, 2, 3, 0]


def test_outliers_do_not_decide():
    codes = np.repeat(np.arange(5.0), 100)
    size = np.random.default_rng(0).normal(size=500) * 0.1 + np.repeat([2.0, 0.0, 4.0, 1.0, 3.0], 100)
    size[[10, 110]] = 1e12, -1e12
    order = category_orders(np.stack([codes, size], axis=1), [5, 0])[0].tolist()
    assert order in ([1, 3, 0, 4, 2], [2, 4, 0, 3, 1])


def test_rare_categories_are_in_the_middle():
    codes = np.r_[np.repeat(np.arange(4.0), 200), 4.0]
    size = np.r_[np.repeat([-1.0, 1.0, -2.0, 2.0], 200), 3.0]  # one row says little
    order = category_orders(np.stack([codes, size], axis=1), [5, 0])[0].tolist()
    assert order in ([2, 0, 4, 1, 3], [3, 1, 4, 0, 2])


@pytest.mark.parametrize("role", ["feature", "context"])
def test_a_survey_renumbers_the_categories(role):
    random = np.random.default_rng(0)
    names = np.array(["north", "east", "west", "down"])
    codes = random.integers(0, 4, 400)
    frame = pd.DataFrame(
        {"way": names[codes], "x": np.array([0.0, 3.0, 1.0, 2.0])[codes] + 0.1 * random.normal(size=400)}
    )
    found = survey_of(frame, context=["way"] if role == "context" else [])
    column = found.columns(found.rows)[0]
    assert column.categories in (("north", "west", "down", "east"), ("east", "down", "west", "north"))
    assert [column.categories[int(code)] for code in found.numbers[:, 0]] == frame["way"].tolist()
