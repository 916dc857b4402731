"""Continuing the training of a fitted table, its time limit, and the notice to train longer."""

from __future__ import annotations

import math
import sys

import numpy as np
import pandas as pd
import pytest

import sinuflow
from sinuflow import ArgumentError, DataError, FitResult, TableModel, fit_table
from sinuflow.bijections.columns import ColumnMap
from sinuflow.models.defaults import table_recipe
from sinuflow.models.fitted import Run

QUICK = {"progress": False, "device": "cpu"}
SMALL = {"architecture": {"hidden": (16, 16), "blocks": 2}, **QUICK}


def make_frame(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    x = random.normal(size=rows)
    frame = pd.DataFrame({"x": x, "y": x**2 + 0.2 * random.normal(size=rows), "kind": random.choice(list("abc"), rows)})
    frame["z"] = random.normal(size=rows)
    frame["id"] = [f"r{i}" for i in random.permutation(rows)]
    frame.loc[::40, "y"] = np.nan
    return frame


@pytest.fixture(scope="module")
def fitted() -> TableModel:
    return fit_table(make_frame(), context=["kind"], missing="drop", maps={"y": "linear"}, seed=3, steps=40, **SMALL)


@pytest.fixture(scope="module")
def continued(fitted) -> TableModel:
    return fit_table(make_frame(), start=fitted, steps=100, **QUICK)


def weights(model: TableModel) -> list:
    return [t.clone() for t in model.flow.state_dict().values()]


def test_further_training_lowers_the_validation_nll(fitted, continued):
    assert continued.facts["validation_nll"] < fitted.facts["validation_nll"]
    assert (continued.log_prob(make_frame().dropna())).mean() > fitted.log_prob(make_frame().dropna()).mean()


def test_it_keeps_rows_columns_and_flow(fitted, continued):
    for name, ids in fitted.split.stored().items():
        assert np.array_equal(ids, continued.split.stored()[name])
    assert continued.preprocessor.as_dict() == fitted.preprocessor.as_dict()
    assert continued.flow.config == fitted.flow.config
    kept = ("seed", "choices", "rows", "used_rows", "content", "set_aside", "parameters")
    assert [continued.facts[name] for name in kept] == [fitted.facts[name] for name in kept]


def test_steps_seconds_and_history_are_totals(fitted, continued):
    assert continued.facts["steps"] == 140
    assert 40 < continued.facts["best_step"] <= 140
    assert continued.facts["seconds"] > fitted.facts["seconds"]
    assert continued.facts["continued"] == [40]
    steps = [record["step"] for record in continued.history]
    assert steps == sorted(set(steps))
    assert steps[-1] == 140
    assert continued.history[: len(fitted.history)] == fitted.history
    best = next(r for r in continued.history if r["step"] == continued.facts["best_step"])
    assert best["val_nll"] == continued.facts["validation_nll"]


def test_percentiles_are_calibrated_again(fitted, continued):
    assert len(continued.quantiles) == len(fitted.quantiles) == fitted.facts["calibration_rows"]
    assert not continued.quantiles.equal(fitted.quantiles)


def test_the_start_is_unchanged_and_may_be_a_file(fitted, continued, tmp_path):
    before = weights(fitted)
    fitted.save(tmp_path / "m.safetensors")
    from_file = fit_table(make_frame(), start=tmp_path / "m.safetensors", steps=100, **QUICK)
    assert all(a.equal(b) for a, b in zip(weights(from_file), weights(continued), strict=True))
    assert all(a.equal(b) for a, b in zip(weights(fitted), before, strict=True))


def test_a_continued_model_survives_a_file_and_continues(continued, tmp_path):
    continued.save(tmp_path / "m.safetensors")
    again = fit_table(make_frame(), start=sinuflow.load(tmp_path / "m.safetensors"), steps=20, **QUICK)
    assert again.facts["steps"] == 160
    assert again.facts["continued"] == [40, 140]


def test_weights_that_are_no_better_are_not_taken(continued):
    worse = fit_table(make_frame(), start=continued, steps=5, training={"learning_rate": 0.3}, **QUICK)
    assert all(a.equal(b) for a, b in zip(weights(worse), weights(continued), strict=True))
    assert worse.quantiles.equal(continued.quantiles)
    assert (worse.facts["steps"], worse.facts["best_step"]) == (145, continued.facts["best_step"])
    assert worse.facts["validation_nll"] == pytest.approx(continued.facts["validation_nll"])
    assert any("did not lower the validation NLL" in notice for notice in worse.notices)
    assert not any("did not lower the validation NLL" in notice for notice in continued.notices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.iloc[:-1], "it has 399 rows instead of 400"),
        (lambda t: t.assign(new=np.arange(400) % 7), "it has other columns, such as 'new'"),
        (lambda t: t.drop(columns="x"), "it has other columns, such as 'x'"),
        (lambda t: t[["y", "x", "kind", "z", "id"]], "its columns have another order"),
        (lambda t: t.assign(kind=t["kind"].replace("a", "d")), "its column 'kind' has other values"),
        (lambda t: t.assign(x=t["x"][::-1].to_numpy()), "it has other rows"),
        (lambda t: t.assign(y=t["y"].fillna(1.0)), "it has other rows"),
    ],
    ids=["rows", "more", "fewer", "order", "categories", "values", "missing"],
)
def test_another_table_is_refused(fitted, change, message):
    with pytest.raises(DataError, match=f"is not the table that the model was fitted to: {message}"):
        fit_table(change(make_frame()), start=fitted, steps=5, **QUICK)


@pytest.mark.parametrize(
    "option",
    [{"context": ["kind"]}, {"drop": ["x"]}, {"missing": "drop"}, {"maps": {"x": "log"}}, {"conditioning": "shift"},
     {"seed": 1}, {"test": False}, {"architecture": {"blocks": 3}}],
    ids=lambda option: next(iter(option)),
)  # fmt: skip
def test_arguments_of_a_new_model_are_refused(fitted, option):
    with pytest.raises(ArgumentError, match=f"{next(iter(option))} is for a new model"):
        fit_table(make_frame(), start=fitted, **option, **QUICK)


def test_what_cannot_continue_is_refused(fitted, tmp_path):
    sinuflow.SinusoidalFlow(3, blocks=1, hidden=(4,)).save(tmp_path / "flow.safetensors")
    with pytest.raises(ArgumentError, match="start must be a model of a table"):
        fit_table(make_frame(), start=tmp_path / "flow.safetensors", **QUICK)
    facts = {name: value for name, value in fitted.facts.items() if name != "choices"}
    model = TableModel(fitted.flow, fitted.preprocessor, fitted.split, fitted.quantiles, fitted.history, facts)
    with pytest.raises(DataError, match="fit it again"):
        fit_table(make_frame(), start=model, **QUICK)


@sinuflow.register
class CubeRoot(ColumnMap):
    r""":math:`x \to \sqrt[3]{x}`, for positive values."""

    def value(self, x):
        return x ** (1 / 3)

    def inverse_value(self, y):
        return y**3

    def log_derivative(self, x, y):
        return -math.log(3) - 2 / 3 * x.log()


def test_a_users_own_map_is_taken_from_the_model(monkeypatch):
    frame = pd.DataFrame({"x": np.random.default_rng(0).gamma(2.0, size=300), "y": np.arange(300) % 5})
    frame["z"] = np.random.default_rng(1).normal(size=300)
    fitted = fit_table(frame, maps={"x": CubeRoot(), "y": "linear"}, steps=20, **SMALL)
    module, wishes = sys.modules["sinuflow.models.table_fitting"], []
    survey = module.survey
    monkeypatch.setattr(module, "survey", lambda *choices: wishes.append(choices[4]) or survey(*choices))
    continued = fit_table(frame, start=fitted, steps=20, **QUICK)
    assert isinstance(wishes[0]["x"], CubeRoot)
    assert wishes[0]["y"] == "linear"
    assert continued.preprocessor.as_dict() == fitted.preprocessor.as_dict()


def test_streamed_tables_continue(monkeypatch, tmp_path):
    module = sys.modules["sinuflow.data.survey"]
    monkeypatch.setattr(module, "IN_MEMORY", 3000)
    monkeypatch.setattr(module, "SAMPLE", 800)
    make_frame(3000).to_parquet(tmp_path / "big.parquet")
    fitted = fit_table(tmp_path / "big.parquet", steps=20, **SMALL)
    continued = fit_table(tmp_path / "big.parquet", start=fitted, steps=60, **QUICK)
    assert continued.facts["validation_nll"] < fitted.facts["validation_nll"]
    make_frame(3000, seed=1).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(DataError, match="is not the table that the model was fitted to"):
        fit_table(tmp_path / "other.parquet", start=fitted, **QUICK)


def test_an_estimator_stays_one(tmp_path):
    pytest.importorskip("sklearn")
    X = np.random.default_rng(0).normal(size=(100, 2))
    density = sinuflow.SinusoidalDensity(steps=10, blocks=1, hidden=(8,), random_state=0).fit(X)
    density.save(tmp_path / "d.safetensors")
    frame = pd.DataFrame(X, columns=["x0", "x1"])
    fit_table(frame, start=tmp_path / "d.safetensors", steps=10, **QUICK).save(tmp_path / "e.safetensors")
    assert sinuflow.SinusoidalDensity.load(tmp_path / "e.safetensors").n_iter_ == 20


def test_a_small_table_is_cross_fitted_even_if_the_initial_weights_remain_the_best():
    model = fit_table(make_frame(), drop=["id"], steps=3, training={"learning_rate": 1.0}, **SMALL)
    assert model.facts["best_step"] == 0
    assert model.facts["calibration_rows"] == 400


# ---------------------------------------------------------------- minutes and steps


def settings_of(monkeypatch, *arguments, **options) -> list[dict]:
    """The settings of all training runs of a fit."""
    module, given = sys.modules["sinuflow.models.fitted"], []
    original = module.fit

    def fitting(*rows, **settings):
        given.append(settings)
        return original(*rows, **{**settings, "steps": 2, "minutes": None})

    monkeypatch.setattr(module, "fit", fitting)
    fit_table(*arguments, **options)
    return given


def test_minutes_include_cross_fitting(monkeypatch):
    given = settings_of(monkeypatch, make_frame(300), minutes=10.0, **SMALL)
    assert [settings["minutes"] for settings in given] == [pytest.approx(2.0)] * 5
    assert given[0]["steps"] is None
    given = settings_of(monkeypatch, make_frame(300), minutes=10.0, steps=7, **SMALL)
    assert given[0]["steps"] == 7


def test_large_tables_get_all_minutes(monkeypatch):
    given = settings_of(monkeypatch, make_frame(2000), minutes=10.0, **SMALL)
    assert [settings["minutes"] for settings in given] == [10.0]


@pytest.mark.parametrize("minutes", [0, -1.0, math.nan, math.inf])
def test_minutes_must_be_positive(minutes):
    with pytest.raises(ArgumentError, match="minutes must be a number above 0"):
        fit_table(make_frame(), minutes=minutes, **QUICK)


def test_a_continued_run_is_a_warm_restart_of_all_its_steps(monkeypatch, fitted):
    recipe = table_recipe(300)
    given = settings_of(monkeypatch, make_frame(), start=fitted, **QUICK)
    assert given[0]["patience"] is None
    assert given[0]["steps"] == recipe.training["steps"]
    assert given[0]["learning_rate"] == recipe.training["learning_rate"]
    assert not given[0]["initialize"]
    assert given[0]["seed"] != fitted.facts["seed"]


def test_large_tables_are_trained_for_more_steps():
    assert [table_recipe(rows).training["steps"] for rows in (400, 1_500, 9_000, 60_000)] == [1500, 3000, 4000, 8000]
    assert table_recipe(269_000).training["steps"] > 15_000
    assert table_recipe(10**9).training["steps"] == 24_000


# ---------------------------------------------------------------- the notice to train longer


def test_a_run_that_was_still_improving_says_so():
    frame, fast = make_frame(2500), {"learning_rate": 5e-3, "validate_every": 10}
    model = fit_table(frame, steps=160, training=fast, **SMALL)
    assert model.facts["more_steps"] == 320
    assert "sinuflow fit TABLE -o MODEL --continue --steps 320" in model.notices[-1]
    assert "fit t.csv -o m.safetensors --continue" in model.notices_for("sinuflow fit t.csv -o m.safetensors")[-1]
    worse = fit_table(frame, start=model, steps=5, training={"learning_rate": 0.3}, **QUICK)
    assert "more_steps" not in worse.facts


def test_a_run_that_stopped_early_or_converged_does_not(fitted):
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=2500)})
    assert "more_steps" not in fit_table(frame, steps=300, **SMALL).facts
    run = Run(None, None, 0, "cpu", None, 5.0, False, False, None, None)
    history = [{"step": step, "val_nll": 10 - math.log(1 + step)} for step in range(0, 101, 5)]
    for stopped_early in (True, False):
        facts = run.facts(FitResult(fitted.flow, history, 100, 5.4, 100, stopped_early, [100]))
        assert ("more_steps" in facts) is not stopped_early
