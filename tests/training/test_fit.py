"""Training with ``fit``: convergence, reproducibility, inputs and settings."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from sinuflow import ArgumentError, Flow, SinusoidalFlow, StorageError, fit
from sinuflow.bijections import Bijection
from tests.training.small import banana, nll, quick, small_flow, weights_of


def test_a_flow_beats_a_gaussian():
    gaussian = math.log(2 * math.pi) + 1  # of standardized, uncorrelated columns
    result = fit(small_flow(), banana(2000), banana(500, 1), steps=250, batch_size=128, progress=False, device="cpu")
    assert result.best_nll < gaussian - 0.3
    assert not result.flow.training
    assert nll(result.flow, banana(500, 1)) == pytest.approx(result.best_nll, abs=1e-4)


def test_the_best_weights_are_returned():
    flow = small_flow()
    result = quick(flow, steps=200, learning_rate=0.05, schedule="constant")
    nlls = {r["step"]: r["val_nll"] for r in result.history}
    assert result.best_step == min(nlls, key=nlls.get)
    assert nll(flow, banana(200, seed=1)) == pytest.approx(min(nlls.values()), abs=1e-4)


def test_weights_depend_on_the_seed_alone():
    first, again, other = small_flow(), small_flow(), small_flow()
    quick(first, seed=1)
    quick(again, seed=1)
    quick(other, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(first), weights_of(again), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights_of(first), weights_of(other), strict=True))


def test_the_global_random_state_is_unchanged():
    flow = small_flow()
    before = torch.get_rng_state()
    quick(flow, steps=5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "exponential", "plateau"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_every_schedule_and_optimizer_lowers_the_loss(schedule, optimizer):
    result = quick(small_flow(), schedule=schedule, optimizer=optimizer, learning_rate=5e-3, weight_decay=1e-4)
    assert result.history[-1]["val_nll"] < result.history[0]["val_nll"] - 0.05


def test_early_stopping():
    result = quick(small_flow(), steps=2000, learning_rate=0.05, schedule="constant", patience=2)
    assert result.steps < 2000
    nlls = [r["val_nll"] for r in result.history]
    assert min(nlls) == nlls[-3]
    assert result.stopped_early
    assert not quick(small_flow(), patience=100).stopped_early


def test_training_continues_from_trained_weights():
    flow = SinusoidalFlow(2, blocks=2, hidden=(16,))  # its last layer is initialized from data
    first = quick(flow)
    weights = weights_of(flow)
    spoiled = quick(flow, initialize=False, learning_rate=0.3, steps=5, validate_every=5)
    assert spoiled.best_step == 0
    assert spoiled.best_nll == first.best_nll
    assert all(a.equal(b) for a, b in zip(weights, weights_of(flow), strict=True))
    assert quick(flow, initialize=False, steps=300, learning_rate=3e-3).best_nll < first.best_nll


def test_the_moving_average_is_validated_and_returned():
    flow = small_flow()
    result = quick(flow, ema=0.9)
    assert nll(flow, banana(200, seed=1)) == pytest.approx(result.best_nll, abs=1e-4)
    plain = small_flow()
    quick(plain)
    assert not all(torch.equal(a, b) for a, b in zip(weights_of(flow), weights_of(plain), strict=True))


def test_without_validation_the_last_weights_are_returned():
    result = fit(small_flow(), banana(200), steps=30, batch_size=64, progress=False, device="cpu")
    assert result.best_nll is None
    assert result.best_step == result.steps == 30


def test_context_is_learned():
    torch.manual_seed(0)
    c = torch.randn(1500, 1)
    x = 2 * c + 0.1 * torch.randn(1500, 1)
    x = x / x.std()
    flow = SinusoidalFlow(1, context=1, conditioning="full", blocks=2, hidden=(16, 16))
    fit(flow, (x, c), steps=300, learning_rate=5e-3, progress=False, device="cpu")
    with torch.no_grad():
        assert float(flow(c[:100]).log_prob(x[:100]).mean()) > 0.5  # the unconditional one has -1.4


def test_the_final_affine_map_is_initialized_from_the_data():
    flow = SinusoidalFlow(2, blocks=1, hidden=(8,))
    x = banana(500) * 100 + 1000
    result = fit(flow, x, x, steps=1, learning_rate=1e-9, progress=False, device="cpu")
    assert result.history[0]["val_nll"] < 13  # a standard normal would have a million


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.numpy(),
        lambda x: pd.DataFrame(x.numpy(), columns=["a", "b"]),
        lambda x: pl.DataFrame(x.numpy(), schema=["a", "b"]),
        lambda x: x.tolist(),
    ],
    ids=["numpy", "pandas", "polars", "lists"],
)
def test_types_of_training_data(convert):
    reference, flow = small_flow(), small_flow()
    fit(reference, banana(300), steps=10, progress=False, device="cpu")
    fit(flow, convert(banana(300)), steps=10, progress=False, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(weights_of(reference), weights_of(flow), strict=True))


# ---------------------------------------------------------------- invalid arguments


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (torch.zeros(10, 3), "2 columns"),
        (torch.zeros(10), "two dimensions"),
        (torch.zeros(0, 2), "no rows"),
        (torch.full((5, 2), torch.nan), "NaN or infinite in 5 rows"),
        ((torch.zeros(5, 2), torch.zeros(5, 1)), "no layer of the flow takes one: build them with context=1"),
        (np.array([["a", "b"]]), "numeric"),
    ],
)
def test_invalid_data_are_refused(train, message):
    with pytest.raises(ArgumentError, match=message):
        fit(small_flow(), train, steps=1, progress=False)


def test_a_flow_without_parameters_is_refused():
    class Reversal(Bijection):
        def transform(self, x, context):
            return x.flip(0), None

    with pytest.raises(ArgumentError, match="the flow has no parameters to train"):
        fit(Flow(Reversal(2)), banana(20), steps=2, progress=False)


def test_a_context_must_fit():
    flow = SinusoidalFlow(2, context=1, blocks=1, hidden=(4,))
    with pytest.raises(ArgumentError, match="pair"):
        fit(flow, torch.zeros(5, 2), steps=1, progress=False)
    with pytest.raises(ArgumentError, match=r"\(5, 1\)"):
        fit(flow, (torch.zeros(5, 2), torch.zeros(4, 1)), steps=1, progress=False)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("steps", 0),
        ("steps", 2.5),
        ("batch_size", 0),
        ("learning_rate", -1.0),
        ("learning_rate", math.nan),
        ("optimizer", "sgd"),
        ("schedule", "linear"),
        ("warmup", -1),
        ("weight_decay", -0.1),
        ("clip", 0.0),
        ("ema", 1.0),
        ("patience", 0),
        ("validate_every", 0),
        ("seed", "x"),
        ("device", "abacus"),
    ],
)
def test_invalid_settings_are_refused_by_name(option, value):
    with pytest.raises(ArgumentError, match=option):
        quick(small_flow(), **{option: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error():
    with pytest.raises(ArgumentError, match="no GPU"):
        quick(small_flow(), device="cuda")


def test_an_unwritable_folder_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="checkpoints"):
        quick(small_flow(), checkpoint=tmp_path / "file" / "run")


def test_history_and_tensorboard_are_written(tmp_path):
    result = quick(small_flow(), history=tmp_path / "h.jsonl", tensorboard=tmp_path / "board")
    records = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [0, 20, 40, 60]
    assert records[0]["train_nll"] is None
    assert records[-1]["val_nll"] == result.history[-1]["val_nll"]
    assert list((tmp_path / "board").glob("events.*"))
