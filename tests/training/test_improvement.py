"""Whether a run was still improving: annealing and noise are not taken for it."""

from __future__ import annotations

import math
import random

import pytest

from sinuflow.training.improvement import still_improving

STEPS = range(0, 1001, 50)


def history(nll) -> list:
    return [{"step": step, "val_nll": nll(step)} for step in STEPS]


def test_a_curve_that_falls_at_a_high_learning_rate_improves():
    assert still_improving(history(lambda step: 20 - math.log(1 + step)))


def test_what_annealing_gains_at_the_end_of_a_converged_run_does_not_count():
    assert not still_improving(history(lambda step: 5 if step < 600 else 5 - (step - 600) / 400))


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_count(seed):
    chance = random.Random(seed)
    assert not still_improving(history(lambda step: 4.0 if step == 1000 else 5 + chance.uniform(-0.2, 0.2)))


def test_a_decrease_that_is_no_larger_than_the_increases_around_it_is_noise():
    curve = {300: 5.3, 350: 4.8, 400: 5.3, 450: 5.0, 1000: 4.0}
    assert not still_improving(history(lambda step: curve.get(step, 5.0)))
    assert still_improving(history(lambda step: 5.0 if step < 350 else 4.8 if step < 1000 else 4.0))


def test_small_gains_do_not_count():
    assert not still_improving(history(lambda step: 5 - step / 10_000))


def test_a_run_whose_best_step_is_long_past_does_not_improve():
    assert not still_improving(history(lambda step: 20 - math.log(1 + step) + (step > 850)))


@pytest.mark.parametrize(("end", "improving"), [(3.9, True), (3.98, False), (4.1, False)])
def test_a_continued_run_is_measured_by_its_start(end, improving):
    """A high learning rate raises the NLL of trained weights at first."""
    curve = history(lambda step: 4.0 if step == 0 else 5 + (end - 5) * step / 1000)
    assert still_improving(curve, continued=True) is improving


def test_a_run_without_validations_is_not_judged():
    assert not still_improving([])
    assert not still_improving([{"step": 10, "val_nll": None}, {"step": 20, "val_nll": math.nan}])
    assert not still_improving([{"step": 1000, "val_nll": 3.0}])
