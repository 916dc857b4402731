"""Watching the loss: what is one odd batch, and what is a run that is lost."""

from __future__ import annotations

import math

#: Steps before the guard knows what a usual loss is.
LEARNING = 20
#: How fast it forgets.
MEMORY = 0.98
#: A loss this many usual deviations above the usual is no loss to learn from.
FAR = 30.0
#: Bad steps in a row that mean more than bad luck.
PERSISTENT = 10


class Guard:
    """Tells losses to learn from, and counts those that are not.

    A loss is bad if it is not a number, or far above what it usually is. One odd row can do that
    to one batch; ten such batches in a row mean that the weights are bad.
    """

    def __init__(self, slack: float) -> None:
        self.slack = slack
        self.seen = 0
        self.mean = 0.0
        self.deviation = 0.0
        self.bad_in_a_row = 0
        self.skipped = 0

    def good(self, loss: float, gradient_norm: float) -> bool:
        """Whether to make the step."""
        good = math.isfinite(loss) and math.isfinite(gradient_norm)
        if good and self.seen >= LEARNING:
            good = loss <= self.mean + FAR * self.deviation + self.slack
        if not good:
            self.bad_in_a_row += 1
            self.skipped += 1
            return False
        self.bad_in_a_row = 0
        weight = max(1 - MEMORY, 1 / (self.seen + 1))
        self.deviation += weight * (abs(loss - self.mean) - self.deviation) if self.seen else 0.0
        self.mean += weight * (loss - self.mean)
        self.seen += 1
        return True

    @property
    def lost(self) -> bool:
        """Whether steps have been bad for so long that the weights must be to blame."""
        return self.bad_in_a_row >= PERSISTENT

    def restart(self) -> None:
        """Forget what was usual."""
        self.seen, self.mean, self.deviation, self.bad_in_a_row = 0, 0.0, 0.0, 0

    def state(self) -> dict[str, float]:
        """Everything as numbers, to be stored."""
        return {name: value for name, value in vars(self).items() if name != "slack"}

    def restore(self, state: dict[str, float]) -> None:
        """Set what :meth:`state` gave."""
        vars(self).update(state)
