"""What counts as a bad loss, and when a run is lost."""

from __future__ import annotations

import math

import pytest

from sinuflow.training.guard import PERSISTENT, Guard


def used_to(losses: list[float]) -> Guard:
    guard = Guard(slack=1.0)
    assert all(guard.accept(loss, 1.0) for loss in losses)
    return guard


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e6])
def test_a_loss_far_from_the_usual_is_bad(loss):
    assert not used_to([1.0, 1.1] * 20).accept(loss, 1.0)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_is_bad(norm):
    assert not Guard(slack=1.0).accept(1.0, norm)


def test_only_bad_losses_in_a_row_mean_that_a_run_is_lost():
    guard = used_to([1.0] * 30)
    for _ in range(3):
        for _ in range(PERSISTENT - 1):
            guard.accept(math.nan, 1.0)
        assert not guard.diverged
        assert guard.accept(1.0, 1.0)
    for _ in range(PERSISTENT):
        guard.accept(math.nan, 1.0)
    assert guard.diverged
    assert guard.skipped == 4 * PERSISTENT - 3


def test_the_slack_is_added_to_what_is_usual():
    assert used_to([1.0] * 30).accept(1.99, 1.0)
    assert not used_to([1.0] * 30).accept(2.1, 1.0)
