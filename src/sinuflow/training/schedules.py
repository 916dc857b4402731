"""How the learning rate changes while training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ArgumentError

Name = Literal["constant", "cosine", "exponential", "plateau"]

#: The share of the learning rate that is left at the end, where a schedule goes down to something.
_FLOOR = 0.01


@dataclass(frozen=True)
class Plateau:
    """The plateau schedule with numbers of its own; ``schedule="plateau"`` has these defaults.

    Args:
        factor: what is left of the learning rate each time that it is lowered.
        patience: validations in a row that bring nothing better, before that.

    Example:
        >>> schedule = Schedule(Plateau(factor=0.9, patience=2), steps=100, warmup=0)
        >>> for improved in (True, False, False):
        ...     schedule.validated(improved)
        >>> schedule.share(50)
        0.9
    """

    factor: float = 0.5
    patience: int = 5

    def __post_init__(self) -> None:
        if isinstance(self.factor, bool) or not isinstance(self.factor, (int, float)) or not 0 < self.factor < 1:
            raise ArgumentError(f"factor must be between 0 and 1; got {self.factor!r}")
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 1:
            raise ArgumentError(f"patience must be a whole number, 1 or more; got {self.patience!r}")


#: What :func:`sinuflow.fit` takes as ``schedule``.
ScheduleName = Name | Plateau


class Schedule:
    r"""The learning rate of each step, as a share of the largest one.

    With s the share of the steps that are done: ``"constant"`` is 1; ``"cosine"`` is
    :math:`(1 + \cos \pi s)/2`; ``"exponential"`` is :math:`0.01^s`, or with a ``decay`` its power by the epochs that
    are done; ``"plateau"`` is halved whenever five validations in a row bring nothing better, and a :class:`Plateau`
    does so with other numbers. Before that, a linear ``warmup``.

    Example:
        >>> schedule = Schedule("cosine", steps=100, warmup=10)
        >>> round(schedule.share(0), 3), schedule.share(10), round(schedule.share(100), 3)
        (0.091, 1.0, 0.0)
    """

    def __init__(
        self, name: ScheduleName, steps: int, warmup: int, decay: float | None = None, per_epoch: int = 1
    ) -> None:
        if not isinstance(name, Plateau) and name not in get_args(Name):
            raise ArgumentError(f"schedule must be one of {', '.join(get_args(Name))}, or a Plateau; got {name!r}")
        self._name, self._steps, self._warmup = name, steps, warmup
        self._told = name if isinstance(name, Plateau) else Plateau() if name == "plateau" else None
        self._decay, self._per_epoch = decay, per_epoch
        self.plateau = 1.0
        self.waited = 0

    def share(self, step: int) -> float:
        """The share of the largest learning rate at a step."""
        if step < self._warmup:
            return (step + 1) / (self._warmup + 1)
        done = (step - self._warmup) / max(1, self._steps - self._warmup)
        if self._name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        if self._name == "exponential" and self._decay is not None:
            return float(self._decay ** (step // self._per_epoch))
        if self._name == "exponential":
            return float(_FLOOR**done)
        return self.plateau

    def validated(self, improved: bool) -> None:
        """Say whether the last validation brought something better."""
        if self._told is None:
            return
        self.waited = 0 if improved else self.waited + 1
        if self.waited >= self._told.patience:
            self.plateau, self.waited = max(_FLOOR, self.plateau * self._told.factor), 0
