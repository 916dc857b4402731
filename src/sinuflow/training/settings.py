"""What a run is told, checked once."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ..errors import ArgumentError
from .schedules import ScheduleName

#: The most validations of a run: checkpoints hold a record of each, and are read within bounds of memory.
MOST_RECORDS = 20_000

OptimizerName = Literal["adam", "adamw"]


@dataclass(frozen=True)
class Settings:
    """The arguments of :func:`sinuflow.fit` that decide about the result."""

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

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if hasattr(value, "item"):  # NumPy's numbers are welcome, and stored as plain ones
                object.__setattr__(self, name, value.item())
        for name in ("steps", "batch_size", "validate_every"):
            self._demand(name, _is_whole(getattr(self, name)) and getattr(self, name) >= 1, "a whole number, 1 or more")
        self._demand("warmup", _is_whole(self.warmup) and self.warmup >= 0, "a whole number, 0 or more")
        self._demand("seed", _is_whole(self.seed), "a whole number")
        self._demand("learning_rate", _is_number(self.learning_rate) and self.learning_rate > 0, "above 0")
        self._demand("weight_decay", _is_number(self.weight_decay) and self.weight_decay >= 0, "0 or more")
        self._demand("clip", self.clip is None or (_is_number(self.clip) and self.clip > 0), "above 0, or None")
        self._demand("ema", self.ema is None or (_is_number(self.ema) and 0 < self.ema < 1), "between 0 and 1, or None")
        self._demand(
            "patience", self.patience is None or (_is_whole(self.patience) and self.patience >= 1), "1 or more, or None"
        )
        decay = self.decay
        self._demand("decay", decay is None or (_is_number(decay) and 0 < decay <= 1), "above 0 and at most 1, or None")
        stability = self.stability
        self._demand("stability", stability is None or (_is_number(stability) and stability > 0), "above 0, or None")
        self._demand(
            "validate_every",
            self.steps <= MOST_RECORDS * self.validate_every,
            f"at least {-(-self.steps // MOST_RECORDS)} for so many steps, because a history has at most "
            f"{MOST_RECORDS:,} records",
        )
        if self.decay is not None and self.schedule != "exponential":
            raise ArgumentError('decay belongs to schedule="exponential"')
        names = get_args(OptimizerName)
        self._demand("optimizer", self.optimizer in names, " or ".join(names))

    def _demand(self, name: str, fulfilled: bool, what: str) -> None:
        if not fulfilled:
            raise ArgumentError(f"{name} must be {what}; got {getattr(self, name)!r}")

    def as_dict(self) -> dict[str, Any]:
        """All settings by name."""
        return asdict(self)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
