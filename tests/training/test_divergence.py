"""Outlying losses and divergence."""

from __future__ import annotations

import math

import pytest
import torch

from sinuflow import TrainingError, fit
from sinuflow.training.engine import EagerEngine
from tests.training.small import banana, quick, small_flow


def test_an_outlying_batch_is_skipped():
    x = banana(512)
    x[7] = 1e30
    flow = small_flow()
    result = fit(flow, x, banana(100, 1), steps=64, batch_size=64, validate_every=16, progress=False, device="cpu")
    assert result.history[-1]["skipped"] >= 4  # once per epoch, after the guard's first steps
    assert math.isfinite(result.best_nll)


def test_a_diverging_run_restarts_from_good_weights_and_then_fails(monkeypatch):
    original = EagerEngine.advance
    flow = small_flow()

    def advancing(self, step, most):
        if step >= 40:
            with torch.no_grad():
                next(iter(flow.parameters())).fill_(torch.nan)
        return original(self, step, most)

    monkeypatch.setattr(EagerEngine, "advance", advancing)
    with (
        pytest.warns(UserWarning, match="back to the last good weights"),
        pytest.raises(TrainingError, match="learning rate"),
    ):
        quick(flow, steps=500)


def test_a_run_recovers_from_divergence(monkeypatch):
    original = EagerEngine.advance
    flow = small_flow()

    def advancing(self, step, most):
        if step == 30:
            with torch.no_grad():
                for parameter in flow.parameters():
                    parameter.fill_(torch.nan)
        return original(self, step, most)

    monkeypatch.setattr(EagerEngine, "advance", advancing)
    with pytest.warns(UserWarning, match="diverged at step"):
        result = quick(flow, steps=120, schedule="constant", warmup=0)
    assert result.history[-1]["learning_rate"] == pytest.approx(0.3 * result.history[0]["learning_rate"])
    assert math.isfinite(result.history[-1]["val_nll"])
    assert result.history[-1]["val_nll"] < result.history[0]["val_nll"]
