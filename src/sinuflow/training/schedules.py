"""Learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ..checks import is_number, whole
from ..errors import ArgumentError

Name = Literal["constant", "cosine", "exponential", "plateau"]

#: The fraction of the learning rate at the end of the exponential schedule, and the smallest one of a plateau.
_FLOOR = 0.01
#: The largest share of a limited time for the warm-up.
_WARMUP = 0.05


@dataclass(frozen=True)
class Plateau:
    """The plateau schedule; ``schedule="plateau"`` has these defaults.

    Args:
        factor: the learning rate is multiplied by this after ``patience`` validations without improvement.
        patience: consecutive validations without improvement.

    Example:
        >>> schedule = Schedule(Plateau(factor=0.9, patience=2), steps=100, warmup=0)
        >>> for improved in (True, False, False):
        ...     schedule.validated(improved)
        >>> schedule.factor(50)
        0.9
    """

    factor: float = 0.5
    patience: int = 5

    def __post_init__(self) -> None:
        if not is_number(self.factor) or not 0 < self.factor < 1:
            raise ArgumentError(f"factor must be between 0 and 1; got {self.factor!r}")
        whole("patience", self.patience, least=1)


#: The argument ``schedule`` of :func:`sinuflow.fit`.
ScheduleName = Name | Plateau


class Schedule:
    r"""The learning rate of each step as a fraction of the largest one.

    After a linear ``warmup``, with s the fraction of the remaining steps that are done: ``"constant"`` is 1;
    ``"cosine"`` is :math:`(1 + \cos \pi s)/2`; ``"exponential"`` is :math:`0.01^s` or, with a ``decay``, ``decay`` to
    the power of the completed epochs; ``"plateau"`` is multiplied by a factor whenever several consecutive validations
    bring no improvement (:class:`Plateau`).

    If the time is limited, s is the larger one of the fractions of steps and of time, so that either limit ends an
    annealed run, and the warm-up takes a twentieth of the time at most.

    Example:
        >>> schedule = Schedule("cosine", steps=100, warmup=10)
        >>> round(schedule.factor(0), 3), schedule.factor(10), round(schedule.factor(100), 3)
        (0.091, 1.0, 0.0)
        >>> round(schedule.factor(10, elapsed=0.525), 3), schedule.factor(10, elapsed=1.0)
        (0.5, 0.0)
    """

    def __init__(
        self, name: ScheduleName, steps: int, warmup: int, decay: float | None = None, per_epoch: int = 1
    ) -> None:
        if not isinstance(name, Plateau) and name not in get_args(Name):
            raise ArgumentError(f"schedule must be one of {', '.join(get_args(Name))}, or a Plateau; got {name!r}")
        self._name, self._steps, self._warmup, self._decay, self._per_epoch = name, steps, warmup, decay, per_epoch
        self._settings = name if isinstance(name, Plateau) else Plateau() if name == "plateau" else None
        self.plateau = 1.0
        self.waited = 0

    def factor(self, step: int, elapsed: float = 0.0) -> float:
        """The fraction for a step, when the share ``elapsed`` of the time is over."""
        if step < self._warmup and elapsed < _WARMUP:
            return max((step + 1) / (self._warmup + 1), elapsed / _WARMUP)
        done = (step - self._warmup) / max(1, self._steps - self._warmup)
        done = min(1.0, max(done, (elapsed - _WARMUP) / (1 - _WARMUP), 0.0))
        if self._name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        if self._name == "exponential":
            return float(_FLOOR**done if self._decay is None else self._decay ** (step // self._per_epoch))
        return self.plateau

    def validated(self, improved: bool) -> None:
        """Record whether the last validation improved on the best."""
        if self._settings is None:
            return
        self.waited = 0 if improved else self.waited + 1
        if self.waited >= self._settings.patience:
            self.plateau, self.waited = max(_FLOOR, self.plateau * self._settings.factor), 0
