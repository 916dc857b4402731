"""A table as they are: ids, dates, amounts, categories, zeros and missing values, through all commands."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from tests.cli.test_commands import fails, succeeds

ROWS = 240


def make_table(seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    days = pd.Timestamp("2021-03-01") + pd.to_timedelta(random.integers(0, 90, ROWS), unit="D")
    amounts = np.round(random.lognormal(6, 1, ROWS), 2)
    frame = pd.DataFrame(
        {
            "customer id": [f"C-{i:05d}" for i in random.permutation(ROWS)],
            "day": days.strftime("%d/%m/%Y"),
            "amount": [f"${amount:,.2f}" for amount in amounts],
            "discount": np.where(random.random(ROWS) < 0.6, 0.0, np.round(random.gamma(2, 5, ROWS), 3)),
            "visits": random.poisson(3, ROWS),
            "plan": random.choice(["basic", "plus", "pro"], ROWS, p=[0.6, 0.3, 0.1]),
            "active": random.choice(["yes", "no"], ROWS),
            "age": random.normal(45, 12, ROWS).round(1),
        }
    )
    frame.loc[::5, "age"] = np.nan
    frame.loc[1::20, "plan"] = None
    return frame


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the table, and a model with defaults, but for fewer steps."""
    folder = tmp_path_factory.mktemp("mixed")
    make_table().to_csv(folder / "t.csv", index=False)
    out = succeeds("fit", "t.csv", "-o", "m.safetensors", "--steps", 40, "-q", cwd=folder, fresh=True)
    (folder / "out.txt").write_text(out)
    return folder


def test_all_rows_are_used_and_identifiers_are_set_aside(place):
    out = (place / "out.txt").read_text()
    assert re.search(r"^t\.csv: 240 rows, 7 columns modelled, 1 set aside", out, re.M)
    assert "column 'customer id' is set aside: identifiers or free text" in out
    assert "--map 'customer id=auto'" in out  # it can be pasted
    info = succeeds("info", "m.safetensors", cwd=place)
    assert re.search(r"^  age +step 0\.1, \d\d\.\d% missing", info, re.M)
    assert re.search(r"^  discount +.*atom", info, re.M)
    assert re.search(r"^  plan +3 categories, .*missing", info, re.M)


def test_samples_are_written_as_the_table_is(place, tmp_path):
    succeeds("sample", place / "m.safetensors", "-n", 400, "--seed", 1, "-o", tmp_path / "s.csv", cwd=tmp_path)
    table = make_table()
    drawn = pd.read_csv(tmp_path / "s.csv")
    assert list(drawn.columns) == [c for c in table.columns if c != "customer id"]
    days = pd.to_datetime(drawn["day"], format="%d/%m/%Y")
    assert days.notna().all()
    assert days.min() > pd.Timestamp("2020-11-01")
    assert drawn["amount"].str.fullmatch(r"\$(\d{1,3})(,\d{3})*\.\d\d").all()
    assert set(drawn["plan"].dropna()) == {"basic", "plus", "pro"}
    assert set(drawn["active"]) == {"yes", "no"}
    assert drawn["visits"].dtype == np.int64
    assert drawn["visits"].between(0, 15).all()
    assert (drawn["discount"] >= 0).all()
    for name, expected in (("age", 0.2), ("plan", 0.05)):
        assert drawn[name].isna().mean() == pytest.approx(expected, abs=0.07)
    assert (drawn["discount"] == 0).mean() == pytest.approx((table["discount"] == 0).mean(), abs=0.09)
    assert not drawn.drop(columns=["age", "plan"]).isna().any(axis=None)
    known = drawn["age"].dropna()
    np.testing.assert_allclose(known, known.round(1), rtol=0, atol=1e-12)


def test_parquet_keeps_its_types(tmp_path):
    table = make_table().assign(
        day=lambda t: pd.to_datetime(t["day"], format="%d/%m/%Y"), active=lambda t: t["active"] == "yes"
    )
    table["visits"] = table["visits"].astype("int32")
    table["age"] = table["age"].astype("float32")
    table.drop(columns="customer id").to_parquet(tmp_path / "t.parquet", index=False)
    succeeds("fit", "t.parquet", "-o", "m.safetensors", "--steps", 5, "-q", cwd=tmp_path)
    succeeds("sample", "m.safetensors", "-n", 60, "--seed", 1, "-o", "s.parquet", cwd=tmp_path)
    drawn = pd.read_parquet(tmp_path / "s.parquet")
    assert drawn["day"].dtype.kind == "M"
    assert (drawn["day"] == drawn["day"].dt.normalize()).all()
    assert drawn["active"].dtype == bool
    assert drawn["age"].dtype == np.float32
    assert drawn["visits"].dtype.kind == "i"
    assert drawn["amount"].str.startswith("$").all()


def test_unseen_and_missing_values_have_scores(place, tmp_path):
    table = make_table()[:40]
    changes = {"usual": {}, "unseen": {"plan": "enterprise"}, "missing": {"plan": None, "age": None},
               "rare": {"visits": None}, "new id": {"customer id": "other"}}  # fmt: skip
    scores = {}
    for name, change in changes.items():
        table.assign(**change).to_csv(tmp_path / "in.csv", index=False)
        succeeds("score", place / "m.safetensors", "in.csv", "-o", "out.csv", "--force", cwd=tmp_path)
        scored = pd.read_csv(tmp_path / "out.csv")
        assert scored[["log_density", "anomaly_percentile"]].notna().all(axis=None), name
        assert scored["anomaly_percentile"].between(0, 100).all()
        scores[name] = scored["log_density"].to_numpy()
    assert np.isfinite(np.concatenate(list(scores.values()))).all()
    np.testing.assert_allclose(scores["new id"], scores["usual"])
    # What a column never had has the probability 1 / (n + 2), with n = 168 training rows.
    for name, column in (("unseen", "plan"), ("rare", "visits")):
        values = make_table()[column]
        usual = np.log(values[:40].map(values.value_counts(normalize=True, dropna=False)).to_numpy(dtype=float))
        assert np.nanmean(scores[name] - scores["usual"] + usual) == pytest.approx(-np.log(170), abs=1.5)


def test_rows_with_missing_values_can_be_dropped_or_refused(place, tmp_path):
    table = make_table()
    missing = table[["age", "plan"]].isna().any(axis=1).to_numpy()
    table.to_csv(tmp_path / "t.csv", index=False)
    out = succeeds("fit", "t.csv", "-o", "m.safetensors", "--steps", 5, "--missing", "drop", "-q", cwd=tmp_path)
    assert f"{(~missing).sum()} of 240 rows (the others have missing values" in out
    refused = fails("fit", "t.csv", "-o", "n.safetensors", "--missing", "refuse", cwd=tmp_path)
    assert "48 in 'age', 12 in 'plan'" in refused or "12 in 'plan', 48 in 'age'" in refused
    assert "--missing drop" in refused
    for model in (place / "m.safetensors", "m.safetensors"):
        succeeds("score", model, "t.csv", "-o", "s.csv", "--missing", "drop", "--force", cwd=tmp_path)
        np.testing.assert_array_equal(pd.read_csv(tmp_path / "s.csv")["log_density"].isna(), missing)
        (tmp_path / "s.csv").unlink()
        message = fails("score", model, "t.csv", "-o", "s.csv", "--missing", "refuse", cwd=tmp_path)
        assert f"row {missing.argmax() + 1}" in message
    drawn = succeeds("sample", "m.safetensors", "-n", 50, "-o", "d.csv", cwd=tmp_path)
    assert "drew 50 rows" in drawn
    assert not pd.read_csv(tmp_path / "d.csv").isna().any(axis=None)
