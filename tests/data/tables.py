"""Small tables, and what a survey of them finds."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sinuflow.data import open_table, survey

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
