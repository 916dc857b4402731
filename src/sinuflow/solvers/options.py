"""The method and tolerances of an inverse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch

from ..errors import ArgumentError

Method = Literal["certified", "fixed_point"]


@dataclass(frozen=True)
class SolverOptions:
    """The method of an inverse, its tolerances, and its iteration limit.

    ``"certified"`` solves every layer to working precision: ordered substitution and safeguarded Newton.
    ``"fixed_point"`` is Algorithm 1 of the paper, which stops at ``atol + rtol * |x|``.
    """

    method: Method = "certified"
    rtol: float | None = None
    atol: float | None = None
    max_iterations: int | None = None

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ArgumentError(f"solver must be one of {', '.join(get_args(Method))}; got {self.method!r}")
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ArgumentError(f"{name} must be a number of at least 0; got {value!r}")
        if self.max_iterations is not None and self.max_iterations < 1:
            raise ArgumentError(f"max_iterations must be at least 1; got {self.max_iterations}")

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """rtol and atol, with defaults that depend on the dtype."""
        default = 1e-12 if dtype == torch.float64 else 1e-4 if self.method == "certified" else 1e-6
        return (default if self.rtol is None else self.rtol), (default if self.atol is None else self.atol)

    @property
    def limit(self) -> int:
        """The maximum number of iterations of a layer."""
        return self.max_iterations or (200 if self.method == "certified" else 1000)
