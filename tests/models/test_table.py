"""A fitted table: densities in the table's units, samples in its types."""

from __future__ import annotations

import copy
import json
import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import sinuflow
from sinuflow import ArgumentError, DataError, InversionError, StorageError, TableModel, fit_table
from sinuflow.cli.score import scored
from sinuflow.data import open_table
from sinuflow.data.split import split_rows
from sinuflow.flows.storage import Model, read_model, write_model
from sinuflow.models.defaults import table_recipe

QUICK = {"steps": 60, "architecture": {"hidden": (16, 16), "blocks": 2}, "progress": False, "device": "cpu"}


def make_frame(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    size = np.exp(random.normal(size=rows))
    return pd.DataFrame(
        {
            "size": size,
            "count": random.poisson(3 * size),
            "kind": random.choice(["red", "green", "blue"], p=[0.6, 0.3, 0.1], size=rows),
            "ok": random.random(rows) < 0.7,
            "unit": ["cm"] * rows,
            "shift": random.normal(size=rows) * 1000 + 5000,
        }
    )


@pytest.fixture(scope="module")
def fitted() -> TableModel:
    return fit_table(make_frame(), **QUICK)


@pytest.fixture(scope="module")
def conditional() -> TableModel:
    return fit_table(
        make_frame(), context=["kind", "size"], **{**QUICK, "steps": 400}, training={"learning_rate": 5e-3}
    )


@pytest.mark.parametrize("count", [-1, 2.5, "3"])
def test_the_number_of_samples_is_a_whole_number(fitted, count):
    with pytest.raises(ArgumentError, match="count must be a whole number of at least 0"):
        fitted.sample(count)
    assert fitted.sample(0).num_rows == 0


def test_a_density_in_the_units_of_the_table_integrates_to_one():
    values = np.exp(np.random.default_rng(1).normal(size=600)) * 1000
    model = fit_table(pd.DataFrame({"x": values}), maps={"x": "log"}, **QUICK)
    grid = np.exp(np.linspace(math.log(1e-1), math.log(1e8), 40_001))
    density = np.exp(model.log_prob(pd.DataFrame({"x": grid})))
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=2e-3)


def test_changing_units_shifts_the_density_by_the_log_of_the_factor():
    values = np.random.default_rng(1).normal(size=(300, 2))
    metres = fit_table(pd.DataFrame(values, columns=["a", "b"]), **QUICK)
    millimetres = fit_table(pd.DataFrame(values * [1000, 1], columns=["a", "b"]), **QUICK)
    one = metres.log_prob(pd.DataFrame(values, columns=["a", "b"]))
    other = millimetres.log_prob(pd.DataFrame(values * [1000, 1], columns=["a", "b"]))
    np.testing.assert_allclose(one, other + math.log(1000), atol=2e-3)


def test_samples_have_the_types_and_values_of_the_table(fitted):
    sample = fitted.sample(500, seed=0).to_pandas()
    assert list(sample.columns) == list(make_frame().columns)
    assert sample["count"].dtype == np.int64
    assert sample["count"].min() >= 0
    assert set(sample["kind"]) <= {"red", "green", "blue"}
    assert sample["ok"].dtype == bool
    assert set(sample["unit"]) == {"cm"}
    assert (sample["size"] > 0).all()
    assert abs(sample["ok"].mean() - 0.7) < 0.15
    assert fitted.sample(500, seed=0).equals(fitted.sample(500, seed=0))
    assert not fitted.sample(500, seed=0).equals(fitted.sample(500, seed=1))
    assert len(fitted.sample(0)) == 0


def test_draws_that_overflow_in_the_units_of_the_table_are_refused(fitted):
    def with_absurd_scores(model):
        model = copy.deepcopy(model)
        model.preprocessor.whitening.factor.mul_(1e6)
        return model

    drawn = with_absurd_scores(fitted).sample(50, seed=0).to_pandas()  # scores are at most 38
    assert np.isfinite(drawn["size"]).all()
    tails = np.random.default_rng(0).standard_t(1.5, 400)
    model = fit_table(pd.DataFrame({"x": np.exp(20 * tails.clip(-9, 9))}), maps={"x": "log"}, **QUICK)
    with pytest.raises(InversionError, match="of 50 draws overflow float64 in the units of their columns"):
        with_absurd_scores(model).sample(50, seed=0)


def test_scores_do_not_depend_on_the_order_of_columns_or_rows(fitted):
    frame = make_frame()
    scores = fitted.log_prob(frame)
    np.testing.assert_allclose(fitted.log_prob(frame[frame.columns[::-1]]), scores, rtol=1e-12)
    np.testing.assert_allclose(fitted.log_prob(frame[::-1].reset_index(drop=True))[::-1], scores, atol=1e-4)
    np.testing.assert_allclose(fitted.log_prob(frame.assign(more="x")), scores, rtol=1e-12)


def test_an_odd_row_is_found(fitted):
    frame = make_frame()
    odd = frame.iloc[:1].assign(shift=50_000.0, size=1e-4)
    score = fitted.log_prob(odd)
    assert fitted.anomaly_percentile(score)[0] == pytest.approx(100 * 400 / 401)  # of 400 cross-fitted rows
    assert np.isfinite(score).all()
    usual = fitted.anomaly_percentile(fitted.log_prob(frame))
    assert abs(np.median(usual) - 50) < 5


def test_what_cannot_be_is_spread_over_the_range():
    values = make_frame()["size"]
    model = fit_table(pd.DataFrame({"x": values}), maps={"x": "log"}, **QUICK)
    score = model.log_prob(pd.DataFrame({"x": [-1.0, 0.0, 1.0]}))
    expected = -math.log(len(model.split.train) + 2) - math.log(values.max() - values.min())
    np.testing.assert_allclose(score[:2], expected, atol=0.01)
    assert score[2] > expected + 3
    assert model.anomaly_percentile(score)[0] > 98


def test_what_cannot_be_has_no_density_in_models_of_format_1():
    model = sinuflow.load(Path(__file__).parents[1] / "data" / "0.1.0" / "table.safetensors")
    row = {"size": 2.0, "count": 3, "kind": "red", "unit": "cm"}
    score = model.log_prob(pd.DataFrame([row, {**row, "count": -2}, {**row, "count": -1}]))  # log(count + 1)
    assert np.isfinite(score[0])
    assert score[1:].tolist() == [-np.inf, -np.inf]
    assert model.anomaly_percentile(score)[1] == 100


def test_a_value_of_1e30_is_scored_and_not_a_nan(fitted):
    score = fitted.log_prob(make_frame().iloc[:1].assign(shift=1e30))
    assert np.isfinite(score).all()
    assert score[0] < fitted.quantiles[0]


def test_a_nan_of_a_complete_row_is_not_called_a_missing_value(fitted, tmp_path):
    model = copy.deepcopy(fitted)
    model.preprocessor.whitening.factor.mul_(1e-300)
    with pytest.raises(DataError, match="the log-density of row 1 is NaN: the model's parameters are degenerate"):
        model.log_prob(make_frame(20))
    for missing in ("model", "drop"):  # `sinuflow score` must not leave it empty
        with pytest.raises(DataError, match="the log-density of row 1 is NaN"):
            list(scored(model, open_table(make_frame(20)), missing))


def test_values_that_were_never_seen_and_missing_ones_are_scored(fitted):
    frame = make_frame(20)
    usual = fitted.log_prob(frame)
    rare = -math.log(len(fitted.split.train) + 2)
    for change in ({"kind": "violet"}, {"size": None}, {"count": None}, {"kind": None, "ok": None}):
        score = fitted.log_prob(frame.assign(**change))
        assert np.isfinite(score).all()
        assert len(change) * rare - 30 < score.mean() < usual.mean() + 5
        np.testing.assert_array_equal(fitted.log_prob(frame.assign(**change)), score)
    assert fitted.anomaly_percentile(fitted.log_prob(frame.assign(kind="violet"))).mean() > 90


def test_rows_without_the_context_have_no_score(conditional):
    frame = make_frame(20)
    frame.loc[[3, 8], "size"] = np.nan
    with pytest.raises(DataError, match="2 rows have missing values"):
        conditional.log_prob(frame)
    with pytest.raises(DataError, match="missing values, first in row 4"):
        list(scored(conditional, open_table(frame), "model"))
    (batch,) = scored(conditional, open_table(frame), "drop")
    assert batch["log_density"].is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist() == [3, 8]


def test_missing_values_are_modelled_sampled_and_can_be_left_out():
    frame = make_frame()
    frame.loc[::4, "size"] = np.nan
    frame.loc[1::10, "kind"] = None
    model = fit_table(frame, **QUICK)
    assert model.facts["used_rows"] == 400
    assert np.isfinite(model.log_prob(frame)).all()
    drawn = model.sample(1000, seed=0).to_pandas()
    assert drawn["size"].isna().mean() == pytest.approx(0.25, abs=0.06)
    assert drawn["kind"].isna().mean() == pytest.approx(0.1, abs=0.05)
    assert not drawn[["count", "ok", "unit", "shift"]].isna().any(axis=None)
    dropped = fit_table(frame, missing="drop", **QUICK)
    assert dropped.facts["used_rows"] == len(frame.dropna())
    with pytest.raises(DataError, match="100 in 'size', 40 in 'kind'"):
        fit_table(frame, missing="refuse", **QUICK)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns=["count", "ok"]), "lacks columns 'count', 'ok'"),
        (lambda f: f.assign(size="big"), "'size' must be a number; it holds 'big'"),
        (lambda f: f.assign(size=np.inf), "row 1: column 'size' holds an infinity"),
        (lambda f: f.assign(size=pd.Timestamp("2020-01-01")), "'size' of the frame must hold numbers"),
    ],
)
def test_tables_that_do_not_fit_are_refused(fitted, change, message):
    with pytest.raises(DataError, match=message):
        fitted.log_prob(change(make_frame(20)))


def test_context_moves_the_samples(conditional):
    assert [c.name for c in conditional.preprocessor.context_columns] == ["size", "kind"]
    small = conditional.sample(400, {"size": 0.3, "kind": "red"}, seed=0).to_pandas()
    large = conditional.sample(400, {"size": "6", "kind": "red"}, seed=0).to_pandas()
    assert (small["kind"] == "red").all()
    assert (small["size"] == 0.3).all()
    assert large["count"].mean() > small["count"].mean() + 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 1}, "give a value for 'kind'"),
        ({"size": 1, "kind": "violet"}, r"the model knows ('(blue|green|red)'(, )?){3}$"),
        ({"size": "big", "kind": "red"}, "'size' must be a number"),
        ({"size": math.nan, "kind": "red"}, "must be finite"),
        ({"size": 1, "kind": "red", "ok": True}, "cannot be conditioned on 'ok'"),
    ],
)
def test_a_wrong_context_is_refused(conditional, given, message):
    with pytest.raises(DataError, match=message):
        conditional.sample(1, given)


@pytest.mark.parametrize("which", ["fitted", "conditional"])
def test_it_survives_a_file(which, request, tmp_path):
    model = request.getfixturevalue(which)
    model.save(tmp_path / "m.safetensors")
    again = sinuflow.load(tmp_path / "m.safetensors")
    assert isinstance(again, TableModel)
    frame = make_frame(50, seed=3)
    np.testing.assert_array_equal(again.log_prob(frame), model.log_prob(frame))
    assert again.history[-1]["step"] == model.history[-1]["step"]
    for name in ("train", "validation", "test", "unused"):
        assert getattr(again.split, name).tolist() == getattr(model.split, name).tolist()
    assert again.facts == model.facts


def test_a_damaged_description_is_refused(fitted, tmp_path):
    path = tmp_path / "m.safetensors"
    fitted.save(path)
    kind, config, tensors = read_model(path)
    broken = json.loads(json.dumps(config))
    broken["preprocessing"]["columns"].pop(0)
    for bad_config, bad_tensors in (
        (broken, tensors),
        ({**config, "facts": config["facts"], "preprocessing": {}}, tensors),
        (config, {k: v for k, v in tensors.items() if k != "quantiles"}),
    ):
        write_model(path, Model(kind, bad_config, bad_tensors))
        with pytest.raises(StorageError):
            sinuflow.load(path)


def test_large_tables_are_streamed_to_the_same_kind_of_model(monkeypatch, tmp_path):
    module = sys.modules["sinuflow.data.survey"]
    monkeypatch.setattr(module, "IN_MEMORY", 3000)
    monkeypatch.setattr(module, "SAMPLE", 800)
    frame = make_frame(3000)
    frame.to_parquet(tmp_path / "big.parquet")
    model = fit_table(tmp_path / "big.parquet", **QUICK)
    assert len(model.split.test) == 300
    scores = model.log_prob(frame)
    assert np.isfinite(scores).all()
    assert model.history[-1]["val_nll"] < model.history[0]["val_nll"]


def test_missing_values_of_streamed_csv_files_are_left_out(monkeypatch, tmp_path):
    module = sys.modules["sinuflow.data.survey"]
    monkeypatch.setattr(module, "IN_MEMORY", 600)
    monkeypatch.setattr(module, "SAMPLE", 100)
    values = np.random.default_rng(0).normal(size=400).astype(str)
    values[7] = "NA"
    pd.DataFrame({"x": values, "y": np.arange(400) % 9}).to_csv(tmp_path / "big.csv", index=False)
    model = fit_table(tmp_path / "big.csv", missing="drop", **{**QUICK, "steps": 5})
    assert model.facts["used_rows"] == 399


def test_a_sorted_table_is_not_taken_for_its_beginning(monkeypatch):
    fitting = sys.modules["sinuflow.models.table_fitting"]
    monkeypatch.setattr(fitting, "_MAX_STATISTICS_ROWS", 300)
    monkeypatch.setattr(fitting, "_MAX_VALIDATION_ROWS", 50)
    frame = make_frame(2000).sort_values("shift").reset_index(drop=True)
    model = fit_table(frame, **QUICK)
    usual = model.anomaly_percentile(model.log_prob(frame))
    assert abs(np.median(usual) - 50) < 8


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    fit_table(make_frame(), **QUICK, drop=["ok"], checkpoint=tmp_path)
    with pytest.raises(sinuflow.TrainingError, match="other data"):
        fit_table(make_frame(seed=5), **QUICK, drop=["ok"], checkpoint=tmp_path, resume=True)


def test_booleans_are_categories(fitted):
    column = next(c for c in fitted.preprocessor.columns if c.name == "ok")
    assert column.kind == "category"
    assert column.categories == (False, True)


def test_the_split_is_exact_and_repeatable():
    first, again, other = (split_rows(np.arange(10, 160), 160, seed) for seed in (0, 0, 1))
    assert sorted(np.concatenate([first.train, first.validation, first.test])) == list(range(10, 160))
    assert [len(part) for part in (first.train, first.validation, first.test)] == [106, 22, 22]
    assert all(np.array_equal(ids, again.stored()[name]) for name, ids in first.stored().items())
    first.check()
    assert not np.array_equal(first.test, other.test)
    assert len(split_rows(np.arange(100), 100, 0, test=False).test) == 0


def test_defaults_grow_with_the_table():
    sizes = [table_recipe(rows) for rows in (100, 1_000, 5_000, 50_000)]
    counts = [sum(p.numel() for p in sinuflow.SinusoidalFlow(10, **r.flow).parameters()) for r in sizes[:3]]
    assert counts == sorted(counts)
    assert sizes[0].flow["dropout"] > 0
    assert [r.training["steps"] for r in sizes] == sorted(r.training["steps"] for r in sizes)
    assert all(r.flow["conditioning"] == "full" for r in sizes)
    assert table_recipe(100, "shift").flow["conditioning"] == "shift"


def test_one_column_and_the_papers_flow_work():
    values = np.random.default_rng(0).normal(size=100)
    for conditioning in ("full", "shift"):
        model = fit_table(pd.DataFrame({"x": values}), conditioning=conditioning, **QUICK)
        assert np.isfinite(model.log_prob(pd.DataFrame({"x": values}))).all()
    assert model.sample(5).num_rows == 5
    assert torch.isfinite(model.quantiles).all()
