"""Every error that Sinuflow raises on purpose derives from :class:`SinuflowError`; and what it warns of."""

from __future__ import annotations


class SinuflowError(Exception):
    """The root of Sinuflow's errors: catch it to catch them all."""


class ArgumentError(SinuflowError, ValueError):
    """An argument has a value, shape, dtype or combination that makes no sense."""


class InversionError(SinuflowError):
    """An inverse did not meet its tolerance.

    The message says in which layer, or that it was the whole flow end to end, for how many samples, and by how much.
    ``flow.invert(z, on_failure="return")`` hands out what there is instead.
    """


class StorageError(SinuflowError):
    """A model file is damaged, foreign, too new, or does not fit its own description."""


class TrainingError(SinuflowError):
    """Training cannot go on, or cannot start: the loss diverged, or a checkpoint does not fit."""


class DataError(SinuflowError, ValueError):
    """A table cannot be used as it is; the message names the column and the row, and says what to do."""


class KernelWarning(UserWarning):
    """Fast kernels cannot be compiled or stored here: the results are the same, but take longer."""
