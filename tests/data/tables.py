"""Small tables, and what a survey of them finds."""

from __future__ import annotations

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from sinuflow.data import open_table, survey
from sinuflow.data.inspect import inspect_codes, inspect_numbers

FRAME = pd.DataFrame(
    {
        "real": np.random.default_rng(0).normal(size=40),
        "count": np.arange(40) % 7,
        "city": ["Rome", "Oslo", "Lima", "Oslo"] * 10,
        "yes": [True, False] * 20,
        "same": [5] * 40,
    }
)


def survey_of(data, **options):
    return survey(open_table(data), options.pop("context", []), options.pop("drop", []), **options)


def columns_of(data, **options):
    found = survey_of(data, **options)
    return found.columns(found.rows)


def write_csv(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


#: Values of columns of many kinds, from a generator and a number of rows.
VALUES = {
    "normal": lambda random, rows: random.normal(3, 2, rows),
    "lognormal": lambda random, rows: np.exp(2 * random.normal(size=rows)),
    "heavy": lambda random, rows: random.standard_cauchy(rows),
    "bimodal": lambda random, rows: random.normal(size=rows) + 9 * (random.random(rows) < 0.4),
    "shares": lambda random, rows: 1 / (1 + np.exp(-3 * random.normal(size=rows))),
    "zero-inflated": lambda random, rows: np.where(random.random(rows) < 0.4, 0.0, random.gamma(2, 3, rows)),
    "heaps": lambda random, rows: np.where(random.random(rows) < 0.3, 40.0, random.integers(0, 200, rows)),
    "counts": lambda random, rows: random.poisson(4, rows).astype(float),
    "large counts": lambda random, rows: np.floor(np.exp(5 + 2 * random.normal(size=rows))),
    "tenths": lambda random, rows: random.integers(0, 300, rows) / 10,
    "few": lambda random, rows: random.choice([-1.5, 0.0, 2.25, 7.0], rows),
    "far": lambda random, rows: np.where(np.arange(rows) == 0, 1e30, random.normal(size=rows)),
    "tied": lambda random, rows: np.repeat(random.normal(size=rows), 2)[:rows],
    "category": lambda random, rows: np.r_[np.arange(4), random.choice(4, rows - 4, p=[0.7, 0.2, 0.08, 0.02])] * 1.0,
}


@st.composite
def any_column(draw, kinds=tuple(VALUES), least=12, most=400):
    """The column of drawn values, and those values, NaN where missing."""
    kind, random = draw(st.sampled_from(kinds)), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = VALUES[kind](random, draw(st.integers(least, most)))
    missing = draw(st.sampled_from([0.0, 0.0, 0.05, 0.6]))
    values[2:][random.random(len(values) - 2) < missing] = np.nan
    values[1] += values[0] == values[1]  # two values or more
    if kind == "category":
        return inspect_codes("c", values, ("a", "b", "c", "d"), "string", "feature"), values
    return inspect_numbers("c", values, "double"), values
