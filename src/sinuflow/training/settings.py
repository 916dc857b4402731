"""The settings of a run, validated."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..checks import choice, is_integer, is_number
from ..errors import ArgumentError
from .schedules import ScheduleName

#: The most validations of a run: checkpoints hold a record of each, and reading them takes bounded memory.
MOST_RECORDS = 20_000

OptimizerName = Literal["adam", "adamw"]


@dataclass(frozen=True)
class Settings:
    """The arguments of :func:`sinuflow.fit` that determine its result."""

    steps: int
    batch_size: int
    learning_rate: float
    optimizer: OptimizerName
    schedule: ScheduleName
    warmup: int
    weight_decay: float
    clip: float | None
    ema: float | None
    patience: int | None
    validate_every: int
    seed: int
    decay: float | None = None
    stability: float | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if hasattr(value, "item"):  # NumPy scalars become Python's, which JSON can hold
                object.__setattr__(self, name, value.item())
        for name, (kind, valid, expected) in _RULES.items():
            value = getattr(self, name)
            if value is None and expected.endswith("None"):
                continue
            if not (kind(value) and abs(value) < math.inf and valid(value)):
                raise ArgumentError(f"{name} must be {expected}; got {value!r}")
        least = -(-self.steps // MOST_RECORDS)
        if self.validate_every < least:
            raise ArgumentError(
                f"validate_every must be at least {least} for so many steps, because a history has at most "
                f"{MOST_RECORDS:,} records; got {self.validate_every!r}"
            )
        if self.decay is not None and self.schedule != "exponential":
            raise ArgumentError('decay belongs to schedule="exponential"')
        choice("optimizer", self.optimizer, get_args(OptimizerName))

    @property
    def limited_steps(self) -> int | None:
        """The number of steps, unless time alone limits the run: then ``steps`` is the most a history can hold."""
        most = MOST_RECORDS * self.validate_every
        return None if self.minutes is not None and self.steps == most else self.steps


#: For each numeric setting its type, further conditions, and both in words.
_RULES: dict[str, tuple[Callable[[Any], bool], Callable[[float], bool], str]] = {
    "steps": (is_integer, lambda v: v >= 1, "an integer of at least 1"),
    "batch_size": (is_integer, lambda v: v >= 1, "an integer of at least 1"),
    "validate_every": (is_integer, lambda v: v >= 1, "an integer of at least 1"),
    "warmup": (is_integer, lambda v: v >= 0, "an integer of at least 0"),
    "seed": (is_integer, lambda v: True, "an integer"),
    "patience": (is_integer, lambda v: v >= 1, "an integer of at least 1, or None"),
    "learning_rate": (is_number, lambda v: v > 0, "above 0"),
    "weight_decay": (is_number, lambda v: v >= 0, "0 or more"),
    "clip": (is_number, lambda v: v > 0, "above 0, or None"),
    "ema": (is_number, lambda v: 0 < v < 1, "between 0 and 1, or None"),
    "decay": (is_number, lambda v: 0 < v <= 1, "above 0 and at most 1, or None"),
    "stability": (is_number, lambda v: v > 0, "above 0, or None"),
    "minutes": (is_number, lambda v: v > 0, "above 0, or None"),
}
