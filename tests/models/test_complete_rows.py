"""Drawing rows without missing values, and drawing impossible rows again."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sinuflow import fit_table

SMALL = {"architecture": {"hidden": (16,), "blocks": 1}, "progress": False, "device": "cpu"}


def make_table(rows: int = 1500) -> pd.DataFrame:
    """Half of the names, 80 % of the sizes and a third of the flags are missing."""
    random = np.random.default_rng(0)
    size = random.normal(size=rows)
    return pd.DataFrame(
        {
            "name": np.where(random.random(rows) < 0.5, None, np.where(size > 0, "large", "small")),
            "size": np.where(random.random(rows) < 0.8, np.nan, size),
            "near": size + 0.1 * random.normal(size=rows),
            "flag": np.where(random.random(rows) < 0.3, None, random.random(rows) < 0.25),
        }
    )


@pytest.fixture(scope="module")
def model():
    return fit_table(make_table(), steps=400, training={"learning_rate": 5e-3}, **SMALL)


def test_values_are_missing_as_often_as_in_the_table(model):
    shares, expected = model.sample(2000, seed=0).to_pandas().isna().mean(), make_table().isna().mean()
    assert np.abs(shares - expected).max() < 0.05


def test_complete_rows_have_every_value_and_keep_the_dependencies(model):
    rows = model.sample(2000, seed=0, complete=True).to_pandas()
    assert not rows.isna().to_numpy().any()
    assert set(rows["name"]) == {"large", "small"}
    assert rows[["size", "near"]].corr().iloc[0, 1] > 0.8
    assert rows.groupby("name")["size"].mean().diff().abs().iloc[-1] > 0.4
    assert abs(rows["flag"].mean() - 0.25) < 0.07
    assert rows.equals(model.sample(2000, seed=0, complete=True).to_pandas())


@pytest.mark.parametrize("columns", [["name", "flag"], ["flag"]])
def test_tables_of_categories_alone_have_complete_rows(columns):
    table = make_table()[columns]
    model = fit_table(table, steps=100, **SMALL)
    assert model.sample(500, seed=0)["flag"].null_count > 50
    rows = model.sample(2000, seed=0, complete=True).to_pandas()
    assert not rows.isna().to_numpy().any()
    assert abs((rows["flag"].astype(str).str.lower() == "true").mean() - 0.25) < 0.06


def test_restored_columns_stay_within_their_bounds():
    random = np.random.default_rng(0)
    region = random.integers(0, 4, 600)
    flags = {name: (region == i).astype(int) for i, name in enumerate(("north", "east", "south"))}
    tries = random.integers(5, 60, 600)
    table = pd.DataFrame(
        {**flags, "west": 1 - sum(flags.values()), "tries": tries, "hits": random.binomial(tries, 0.5)}
    )
    table["rate"] = (table["hits"] / table["tries"]).round(3)
    model = fit_table(table, steps=3, **SMALL)  # too few for a flow that knows the relations between the others
    assert {c.name for c in model.preprocessor.restored} >= {"rate"}
    rows = model.sample(1000, seed=0).to_pandas()
    names = [*flags, "west"]
    assert set(np.unique(rows[names])) == {0, 1}
    assert rows[names].sum(axis=1).eq(1).all()
    assert rows["rate"].between(0, 1).all()
