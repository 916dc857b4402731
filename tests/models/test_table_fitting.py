"""Fitting a model to a table: any table, every row scored once by a model that has not seen it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sinuflow
from sinuflow import ArgumentError, TableModel, fit_table
from sinuflow.data.split import folds
from sinuflow.flows.mixed import MixedFlow
from sinuflow.models import table_fitting

QUICK = {"steps": 5, "architecture": {"hidden": (8,), "blocks": 1}, "progress": False, "device": "cpu"}
ROWS = 120


def only(values: dict[int, object], dtype: type = float) -> np.ndarray:
    """A column with values in these rows, missing in all others."""
    column = np.full(ROWS, None if dtype is object else np.nan, dtype)
    column[list(values)] = list(values.values())
    return column


#: Columns of which the training rows, or those of a fold, may hold one value or none.
RARE = {
    "one number": only({7: 3.5}),
    "two numbers": only({7: 3.5, 9: 4.0}),
    "one text": only({5: "yes"}, object),
    "half a text": np.where(np.arange(ROWS) % 2 == 0, None, "yes"),
    "half a number": np.where(np.arange(ROWS) % 2 == 0, np.nan, 1.0),
    "two dates": pd.to_datetime(pd.Series(only({5: "2020-01-01", 6: "2020-03-05"}, object))),
    "one other date": pd.to_datetime(pd.Series(["2020-01-01"] * (ROWS - 1) + ["2020-03-01"])),
    "one other number": np.r_[np.zeros(ROWS - 1), 4.0],
    "one missing number": np.r_[np.zeros(ROWS - 1), np.nan],
    "one missing text": np.array(["yes"] * (ROWS - 1) + [None], dtype=object),
}


@pytest.mark.parametrize("role", ["feature", "context"])
@pytest.mark.parametrize("name", RARE)
def test_columns_of_rare_values_are_modelled(name, role, tmp_path):
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=ROWS), "rare": RARE[name]})
    model = fit_table(frame, context=["rare"] if role == "context" else [], maps={"rare": "auto"}, **QUICK)
    model.save(tmp_path / "m.safetensors")
    again = sinuflow.load(tmp_path / "m.safetensors")
    scores = again.log_prob(frame)
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scores, model.log_prob(frame))
    assert again.facts["calibration_rows"] == ROWS
    given = {c.name: c.categories[0] if c.categories else c.low for c in again.preprocessor.context_columns}
    assert again.sample(20, given, seed=0).column_names == ["x", "rare"]


@pytest.mark.parametrize("argument", ["context", "drop"])
def test_a_single_name_is_no_list_of_columns(argument):
    frame = pd.DataFrame({"x": np.arange(60.0), "a": np.arange(60.0) % 7})
    with pytest.raises(ArgumentError, match=rf"{argument} must be a list of columns, such as \['a'\]"):
        fit_table(frame, **{argument: "a"}, **QUICK)


@pytest.mark.parametrize(("argument", "example"), [("maps", "'log'"), ("bounds", r"\(0, 1\)")])
def test_maps_and_bounds_are_by_column(argument, example):
    with pytest.raises(ArgumentError, match=rf"{argument} must be a dict of columns, such as {{'size': {example}}}"):
        fit_table(pd.DataFrame({"x": np.arange(60.0)}), **{argument: "log"}, **QUICK)


def test_a_single_column_with_a_map_is_modelled():
    frame = pd.DataFrame({"x": np.exp(np.random.default_rng(0).normal(size=60))})
    assert np.isfinite(fit_table(frame, maps={"x": "log"}, **QUICK).log_prob(frame)).all()


# ---------------------------------------------------------------- calibration rows


@given(st.integers(10, 200), st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=40)
def test_folds_are_a_partition_of_the_usable_rows(rows, count, seed):
    usable = np.flatnonzero(np.random.default_rng(seed).random(rows) < 0.8)
    parts = folds(usable, rows, seed, count)
    assert len(parts) == count
    np.testing.assert_array_equal(np.sort(np.concatenate([part.validation for part in parts])), usable)
    assert max(len(part.validation) for part in parts) - min(len(part.validation) for part in parts) <= 1
    for part in parts:
        assert len(part.test) == 0
        np.testing.assert_array_equal(np.sort(np.concatenate([part.train, part.validation])), usable)
    again, other = folds(usable, rows, seed, count), folds(usable, rows, seed + 1, count)
    assert all(np.array_equal(a.validation, b.validation) for a, b in zip(parts, again, strict=True))
    assert len(usable) < 10 or not all(
        np.array_equal(a.validation, b.validation) for a, b in zip(parts, other, strict=True)
    )


def random_frame(rows, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=rows)
    return pd.DataFrame({"x": x, "y": x + random.normal(size=rows)})


def test_every_row_is_scored_once_by_a_model_that_has_not_seen_it(monkeypatch):
    frame = random_frame(ROWS)
    frame.loc[::10, "y"] = np.nan
    trained: list[np.ndarray] = []
    scored: list[np.ndarray] = []

    class Watched(table_fitting._TableRows):
        def source(self, ids):
            trained.append(ids)
            return super().source(ids)

        def fit_ranking(self, model):  # from scores of training rows
            model.ranking = lambda *arguments: -arguments[-1]

    def score_numbers(model, x, context):
        scored.append(x[:, 0].numpy())
        assert not np.isin(scored[-1], frame["x"][trained[-1]]).any()
        return x[:, 0]

    monkeypatch.setattr(table_fitting, "_TableRows", Watched)
    monkeypatch.setattr(TableModel, "score_numbers", score_numbers)
    model = fit_table(frame, **QUICK)
    assert len(scored) == 4
    assert all(len(ids) == ROWS * 3 // 4 for ids in trained[-4:])
    np.testing.assert_array_equal(model.quantiles, np.sort(frame["x"]))  # once each
    assert model.facts["calibration_rows"] == ROWS
    scored.clear()
    dropped = fit_table(frame, missing="drop", **QUICK)
    np.testing.assert_array_equal(dropped.quantiles, np.sort(frame["x"][frame["y"].notna()]))


def test_a_fold_may_have_levels_that_the_table_has_not_and_the_other_way_round():
    def flows_of(values):
        kinds: list[bool] = []
        with pytest.MonkeyPatch.context() as patch:
            build = table_fitting._build

            def watched(*arguments):
                kinds.append(isinstance(built := build(*arguments), MixedFlow))
                return built

            patch.setattr(table_fitting, "_build", watched)
            fit_table(pd.DataFrame({"x": values}), **QUICK)
        return kinds

    found = set()
    for seed in range(12):
        random = np.random.default_rng(seed)
        values = random.normal(size=ROWS)
        values[random.integers(ROWS)] = np.nan  # a missing value among the training rows makes two levels
        kinds = flows_of(values)
        assert len(kinds) == 5
        found |= {(kinds[0], other) for other in kinds[1:]}
    assert {(True, False), (False, True)} <= found


def test_large_tables_are_calibrated_by_their_held_out_rows(monkeypatch):
    monkeypatch.setattr(table_fitting, "_MIN_HELD_OUT_ROWS", 100)
    frame = random_frame(ROWS)
    frame["twice"] = 2 * np.round(frame["x"], 2)  # restored from another column
    frame["rounded"] = np.round(frame["x"], 2)  # and this one, too
    model = fit_table(frame, **QUICK)
    assert {c.name for c in model.preprocessor.restored} == {"twice", "rounded"}
    held_out = frame.iloc[model.split.held_out]
    np.testing.assert_allclose(model.quantiles, np.sort(model.log_prob(held_out)), rtol=1e-6)
    assert model.facts["calibration_rows"] == len(held_out) == 36
    expected = 100 * np.arange(35, -1, -1) / 37
    percentiles = model.anomaly_percentile(model.quantiles.numpy())
    np.testing.assert_allclose(percentiles, expected)


def test_a_few_percentiles_are_said_to_be_rough():
    model = fit_table(random_frame(60), **QUICK)
    assert any("come from 60 rows, and are steps of 1.6" in notice for notice in model.notices)
    model = fit_table(random_frame(210), **QUICK)
    assert not any("percentiles" in notice for notice in model.notices)


def test_clean_fresh_rows_are_rarely_above_percentile_99():
    """A whole fit with cross-fitting; the flow is better than the cross-fitted ones by a little, not by a percent."""
    shares = []
    for seed in range(3):
        model = fit_table(random_frame(400, seed), seed=seed, **{**QUICK, "steps": 80})
        shares.append((model.anomaly_percentile(model.log_prob(random_frame(4000, seed + 100))) > 99).mean())
    # k = 4 of 401: the mean of Beta(4, 397) is 1 %, its standard deviation 0.5 %.
    assert np.mean(shares) == pytest.approx(0.01, abs=4 * 0.005 / 3**0.5)


@pytest.mark.parametrize("cells", [[1.5, 2.5, 3.5, 4.5], ["a", "b", "c", "d"]], ids=["numbers", "categories"])
def test_a_context_that_is_missing_in_one_row_only_has_scores_everywhere(cells):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.normal(size=60), "side": [None, *random.choice(cells, 59)]})
    model = fit_table(frame, context=["side"], **QUICK)
    assert np.isfinite(model.log_prob(frame)).all()
    assert not model.quantiles.isnan().any()


def test_atoms_of_numbers_have_levels_in_large_tables_alone(monkeypatch):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": np.where(random.random(300) < 0.4, 0.0, random.normal(size=300))})
    assert not isinstance(fit_table(frame, **QUICK).flow, MixedFlow)
    monkeypatch.setattr(table_fitting, "LEVELS_ROWS", 210)  # 70 % of the rows
    model = fit_table(frame, **QUICK)
    assert isinstance(model.flow, MixedFlow)
    assert model.preprocessor.sizes == [2]


def test_the_network_for_levels_is_no_wider_than_they_need():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.normal(size=2600), "k": random.choice(list("ab"), 2600)})
    model = fit_table(frame, **QUICK)
    assert [len(layer.bias) for layer in model.flow.categories.layers] == [16, 16]  # 8 for each of two levels
