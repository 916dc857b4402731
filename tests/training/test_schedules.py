"""Learning-rate schedules, above all the plateau schedule."""

from __future__ import annotations

import pytest

from sinuflow import ArgumentError
from sinuflow.training.schedules import Plateau, Schedule
from tests.training.small import quick, small_flow


def rates(schedule: Schedule, improved: list[bool]) -> list[float]:
    found = []
    for better in improved:
        schedule.validated(better)
        found.append(schedule.factor(50))
    return found


def test_the_rate_is_lowered_after_validations_without_improvement() -> None:
    schedule = Schedule(Plateau(factor=0.9, patience=2), steps=100, warmup=0)
    shown = rates(schedule, [True, False, True, False, False, False, False, False])
    assert shown == pytest.approx([1, 1, 1, 1, 0.9, 0.9, 0.81, 0.81])


def test_by_default_a_plateau_is_halved_after_five_validations() -> None:
    for schedule in (Schedule("plateau", 100, 0), Schedule(Plateau(), 100, 0)):
        assert rates(schedule, [False] * 10) == [1] * 4 + [0.5] * 5 + [0.25]


def test_other_schedules_ignore_validations() -> None:
    assert rates(Schedule("constant", 100, 0), [False] * 10) == [1] * 10


@pytest.mark.parametrize("wrong", [{"factor": 1.0}, {"factor": True}, {"patience": 0}, {"patience": 1.5}])
def test_invalid_arguments_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        Plateau(**wrong)  # type: ignore[arg-type]


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match="or a Plateau; got 'linear'"):
        Schedule("linear", 100, 0)  # type: ignore[arg-type]


def test_a_run_resumes_with_its_plateau(tmp_path) -> None:
    options = {"schedule": Plateau(factor=0.9, patience=1), "learning_rate": 0.05, "steps": 80, "warmup": 0}
    result = quick(small_flow(), **options, checkpoint=tmp_path)
    rates = {record["learning_rate"] for record in result.history}
    assert rates <= {0.05 * 0.9**n for n in range(5)}
    assert quick(small_flow(), **options, checkpoint=tmp_path, resume=True).best_nll == result.best_nll
