"""How the learning rate changes while training."""

from __future__ import annotations

import math
from typing import Literal, get_args

from ..errors import ArgumentError

ScheduleName = Literal["constant", "cosine", "exponential", "plateau"]

#: The share of the learning rate that is left at the end, where a schedule goes down to something.
_FLOOR = 0.01
#: Validations without a better one before the plateau schedule lowers the rate, and by how much.
_PLATEAU_PATIENCE, _PLATEAU_FACTOR = 5, 0.5


class Schedule:
    r"""The learning rate of each step, as a share of the largest one.

    With s the share of the steps that are done: ``"constant"`` is 1; ``"cosine"`` is
    :math:`(1 + \cos \pi s)/2`; ``"exponential"`` is :math:`0.01^s`, or with a ``decay`` its power by the epochs that
    are done; ``"plateau"`` is halved whenever five validations in a row bring nothing better. Before that, a linear
    ``warmup``.

    Example:
        >>> schedule = Schedule("cosine", steps=100, warmup=10)
        >>> round(schedule.share(0), 3), schedule.share(10), round(schedule.share(100), 3)
        (0.091, 1.0, 0.0)
    """

    def __init__(
        self, name: ScheduleName, steps: int, warmup: int, decay: float | None = None, per_epoch: int = 1
    ) -> None:
        if name not in get_args(ScheduleName):
            raise ArgumentError(f"schedule must be one of {', '.join(get_args(ScheduleName))}; got {name!r}")
        self._name, self._steps, self._warmup = name, steps, warmup
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
        if self._name != "plateau":
            return
        self.waited = 0 if improved else self.waited + 1
        if self.waited >= _PLATEAU_PATIENCE:
            self.plateau, self.waited = max(_FLOOR, self.plateau * _PLATEAU_FACTOR), 0
