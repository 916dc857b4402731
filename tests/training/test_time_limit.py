"""Runs whose time is limited."""

from __future__ import annotations

import sys

import pytest

from sinuflow import TrainingError
from sinuflow.data.sources import Batches, MemoryRows
from sinuflow.training import trainer
from sinuflow.training.engine import EagerEngine
from sinuflow.training.guard import Guard
from sinuflow.training.schedules import Schedule
from tests.training.small import Clock, banana, quick, small_flow, weights_of
from tests.training.test_device_engine import settings


@pytest.fixture
def clock(monkeypatch):
    """A clock on which every training step takes a second, and nothing else takes any time."""
    clock = Clock()
    original = EagerEngine.advance

    def advancing(self, step, most):
        clock.now += 1
        return original(self, step, most)

    monkeypatch.setattr(EagerEngine, "advance", advancing)
    monkeypatch.setattr(trainer, "time", clock)
    return clock


def rates(result):
    return [record["learning_rate"] for record in result.history]


def test_a_run_ends_at_its_time_limit_with_an_annealed_learning_rate(clock):
    result = quick(small_flow(), steps=None, minutes=1.0, validate_every=1, learning_rate=1e-3)
    assert result.steps == 60
    assert result.history[-1]["step"] == 60
    assert rates(result)[4:] == sorted(rates(result)[4:], reverse=True)
    assert max(rates(result)) > 0.95e-3
    assert rates(result)[-1] < 0.01e-3


def test_a_run_ends_at_the_limit_that_it_reaches_first(clock):
    for steps, taken in ((30, 30), (200, 60)):
        result = quick(small_flow(), steps=steps, minutes=1.0, validate_every=1, learning_rate=1e-3)
        assert result.steps == taken
        assert rates(result)[-1] < 0.01e-3


def test_more_time_means_more_steps_than_the_default(clock, monkeypatch):
    monkeypatch.setattr(sys.modules["sinuflow.training.fit"], "_STEPS", 20)
    assert quick(small_flow(), steps=None).steps == 20
    assert quick(small_flow(), steps=None, minutes=1.0).steps == 60


def test_early_stopping_still_applies(clock):
    result = quick(small_flow(), steps=None, minutes=1000.0, learning_rate=0.02, patience=3, validate_every=5)
    assert result.steps < 1000
    assert result.best_step == result.steps - 3 * 5


def test_the_time_before_an_interruption_counts(clock, tmp_path, monkeypatch):
    options = {"steps": None, "minutes": 1.0, "checkpoint": tmp_path, "validate_every": 10}
    advance = EagerEngine.advance

    def stopping(self, step, most):
        if step == 40:
            raise KeyboardInterrupt
        return advance(self, step, most)

    whole = small_flow()
    quick(whole, **{**options, "checkpoint": None})
    with monkeypatch.context() as patch:
        patch.setattr(EagerEngine, "advance", stopping)
        with pytest.raises(KeyboardInterrupt):
            quick(small_flow(), **options, checkpoint_steps=40)
    clock.now += 1000  # between the two processes
    with pytest.raises(TrainingError, match=r"minutes was 1.0, now 2.0"):
        quick(small_flow(), **{**options, "minutes": 2.0}, resume=True)
    resumed = small_flow(seed=3)
    assert quick(resumed, **options, checkpoint_steps=40, resume=True).steps == 60
    assert all(a.equal(b) for a, b in zip(weights_of(whole), weights_of(resumed), strict=True))


def test_warm_up_takes_a_twentieth_of_the_time_at_most():
    schedule = Schedule("cosine", steps=10**6, warmup=500)
    assert schedule.factor(10, elapsed=0.025) == pytest.approx(0.5)
    assert schedule.factor(20, elapsed=0.05) == pytest.approx(1)
    assert schedule.factor(499, elapsed=0.01) > 0.99
    assert schedule.factor(600, elapsed=0.04) > 0.999


@pytest.mark.parametrize(("elapsed", "share"), [(0.0, 0.05), (0.5, 0.5), (1.0, 1.0)])
def test_the_stability_penalty_has_its_full_weight_at_either_limit(elapsed, share):
    batches = Batches(MemoryRows(banana(64)), 32, 0)
    engine = EagerEngine(
        small_flow(), batches, settings(steps=200), Guard(1.0), lambda step: 1e-3, elapsed=lambda: elapsed
    )
    assert engine._penalty_schedule(9) == pytest.approx(share**2)
    assert engine._penalty_schedule(199) == 1
