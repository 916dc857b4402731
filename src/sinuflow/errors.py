"""Errors and warnings; all errors derive from :class:`SinuflowError`."""

from __future__ import annotations


class SinuflowError(Exception):
    """The base class of Sinuflow's errors."""


class ArgumentError(SinuflowError, ValueError):
    """An argument has an invalid value, shape or dtype, or does not fit another argument."""


class InversionError(SinuflowError):
    """An inverse did not meet its tolerance.

    The message names the layer, or the flow end to end, the number of samples and the residual.
    ``flow.invert(z, on_failure="return")`` returns the result instead.
    """


class StorageError(SinuflowError):
    """A file cannot be read or written: it is damaged, from another program, too new, or inconsistent."""


class TrainingError(SinuflowError):
    """Training cannot start or continue: the loss diverged, or a checkpoint does not match."""


class DataError(SinuflowError, ValueError):
    """Data cannot be used; the message names the column and row, and the remedy."""


class ColumnsError(DataError):
    """Several columns of a table cannot be used: one line for each, and options of a run without them."""


class KernelWarning(UserWarning):
    """Fused kernels cannot be compiled or stored; the reference implementation is slower."""
