"""Detection of outlying losses and of divergence."""

from __future__ import annotations

import math

#: Warm-up steps before outliers are detected.
WARMUP = 20
#: Decay of the running mean and deviation of the loss.
DECAY = 0.98
#: Mean absolute deviations above the mean beyond which a loss is an outlier.
MAX_DEVIATIONS = 30.0
#: Consecutive rejected steps from which on training has diverged.
DIVERGED = 10


class Guard:
    """Rejects steps whose loss or gradient is not finite, or whose loss is far above its running mean.

    A single outlier in the data can cause one such batch; many in a row mean that the weights have diverged.
    The threshold is the mean plus :data:`MAX_DEVIATIONS` mean absolute deviations plus ``slack``.

    Example:
        >>> guard = Guard(slack=1.0)
        >>> [guard.accept(loss, gradient_norm=1.0) for loss in (2.0, 1.9, math.nan)]
        [True, True, False]
        >>> guard.skipped, guard.diverged
        (1, False)
    """

    def __init__(self, slack: float) -> None:
        self.slack = slack
        self.skipped = 0
        self.restart()

    def restart(self) -> None:
        """Forget the losses so far."""
        self.seen, self.mean, self.deviation, self.bad_in_a_row = 0, 0.0, 0.0, 0

    def accept(self, loss: float, gradient_norm: float) -> bool:
        accepted = math.isfinite(loss) and math.isfinite(gradient_norm)
        if accepted and self.seen >= WARMUP:
            accepted = loss <= self.mean + MAX_DEVIATIONS * self.deviation + self.slack
        if not accepted:
            self.bad_in_a_row += 1
            self.skipped += 1
            return False
        self.bad_in_a_row = 0
        weight = max(1 - DECAY, 1 / (self.seen + 1))
        self.deviation += weight * (abs(loss - self.mean) - self.deviation) if self.seen else 0.0
        self.mean += weight * (loss - self.mean)
        self.seen += 1
        return True

    @property
    def diverged(self) -> bool:
        """Whether so many consecutive steps were rejected that the weights must have diverged."""
        return self.bad_in_a_row >= DIVERGED

    def state(self) -> dict[str, float]:
        """Everything but ``slack``, for checkpoints."""
        return {name: value for name, value in vars(self).items() if name != "slack"}

    def restore(self, state: dict[str, float]) -> None:
        """Set the values of :meth:`state`."""
        counts = {name: int(state[name]) for name in ("seen", "bad_in_a_row", "skipped")}
        vars(self).update(state | counts)
