"""Outlying losses, and divergence."""

from __future__ import annotations

import math

import pytest

from sinuflow.training.guard import DIVERGED, Guard


def guard_after(losses: list[float]) -> Guard:
    guard = Guard(slack=1.0)
    assert all(guard.accept(loss, 1.0) for loss in losses)
    return guard


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e6])
def test_an_outlying_loss_is_rejected(loss):
    assert not guard_after([1.0, 1.1] * 20).accept(loss, 1.0)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_non_finite_gradient_is_rejected(norm):
    assert not Guard(slack=1.0).accept(1.0, norm)


def test_only_consecutive_rejections_mean_divergence():
    guard = guard_after([1.0] * 30)
    for _ in range(3):
        for _ in range(DIVERGED - 1):
            guard.accept(math.nan, 1.0)
        assert not guard.diverged
        assert guard.accept(1.0, 1.0)
    for _ in range(DIVERGED):
        guard.accept(math.nan, 1.0)
    assert guard.diverged
    assert guard.skipped == 4 * DIVERGED - 3


def test_the_slack_is_added_to_the_threshold():
    assert guard_after([1.0] * 30).accept(1.99, 1.0)
    assert not guard_after([1.0] * 30).accept(2.1, 1.0)
