"""All columns of a table at once: from rows of numbers to what the flow sees, and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .columns import Column
from .sources import Batch

#: Standardised values are held within this, so that no arithmetic overflows.
_LIMIT = 1e6


class Preprocessor:
    r"""Reversible maps of the feature columns, and an encoding of the context columns.

    After the columns' own maps (:mod:`sinuflow.data.columns`) comes one triangular linear map,
    :math:`y \to L^{-1}(y - \mu)`, that makes the columns uncorrelated: then the flow, which starts
    as the identity, starts from the best Gaussian.

    Rows come as float64 tensors: ``x`` of shape (n, features), with codes for categories, and
    ``context`` of shape (n, context columns). ``columns`` are all columns of the table, also
    constant ones, which are in neither.
    """

    def __init__(self, columns: list[Column], mean: Tensor | None = None, factor: Tensor | None = None) -> None:
        self.columns = columns
        self.features = [c for c in columns if c.role == "feature" and c.kind != "constant"]
        self.given = [c for c in columns if c.role == "context" and c.kind != "constant"]
        size = len(self.features)
        self.mean = torch.zeros(size, dtype=torch.float64) if mean is None else mean
        self.factor = torch.eye(size, dtype=torch.float64) if factor is None else factor
        self._log_factor = float(self.factor.diagonal().log().sum())
        self._maps = _Maps(self.features)
        self._context_maps = _Maps([c for c in self.given if c.kind == "number"])

    @property
    def context_width(self) -> int:
        """How many numbers the flow is given as context."""
        return sum(c.width for c in self.given)

    def dequantise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Values of integer columns, categories and the like spread evenly over their cells."""
        return self._maps.dequantise(x, generator)

    def prepare(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The columns' own maps alone, without the linear one, and their log-determinant."""
        return self._maps.forward(x)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the flow sees, and the log-determinant."""
        y, ladj = self.prepare(x)
        y = torch.linalg.solve_triangular(self.factor, (y - self.mean).mT, upper=False).mT
        return y, ladj - self._log_factor

    def inverse(self, y: Tensor) -> Tensor:
        """Back to rows in the table's units; integers and categories come out exactly."""
        return self._maps.inverse(y.double() @ self.factor.mT + self.mean)

    def context(self, given: Tensor) -> Tensor:
        """The context as the flow takes it: numbers standardised, categories one-hot."""
        parts: list[Tensor] = []
        numbers = [i for i, c in enumerate(self.given) if c.kind == "number"]
        standardised = iter(self._context_maps.forward(given[:, numbers])[0].unbind(1))
        for i, column in enumerate(self.given):
            if column.kind == "number":
                parts.append(next(standardised).unsqueeze(1))
            else:
                parts.append(torch.nn.functional.one_hot(given[:, i].long(), column.width).double())
        return torch.cat(parts, dim=1)

    def encode(self, x: Tensor, given: Tensor | None, generator: torch.Generator) -> Batch:
        """A training batch, dequantised at random."""
        y, _ = self.forward(self.dequantise(x, generator))
        return Batch(y.float(), self.context(given).float() if given is not None and self.given else None)

    @property
    def encoding(self) -> str:
        """How :meth:`encode` treats each column, without statistics of the rows, which may round differently."""
        return json.dumps([[c.name, c.kind, c.role, c.map, c.rounded, c.digits, c.categories] for c in self.columns])

    def with_whitening(self, mean: Tensor, factor: Tensor) -> Preprocessor:
        """The same maps, followed by another linear one."""
        return Preprocessor(self.columns, mean, factor)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the linear map, as JSON."""
        return {"columns": [c.as_dict() for c in self.columns]}

    def tensors(self) -> dict[str, Tensor]:
        """The linear map."""
        return {"mean": self.mean, "factor": self.factor}

    @classmethod
    def from_dict(cls, fields: dict[str, Any], tensors: dict[str, Tensor]) -> Preprocessor:
        """What :meth:`as_dict` and :meth:`tensors` described; raises a ValueError if it is not invertible."""
        columns = [Column.from_dict(c) for c in fields["columns"]]
        names = [column.name for column in columns]
        if len(set(names)) < len(names):
            raise ValueError("two of its columns have the same name")
        size = sum(column.role == "feature" and column.kind != "constant" for column in columns)
        mean, factor = tensors["mean"], tensors["factor"]
        if not size or mean.shape != (size,) or factor.shape != (size, size):
            raise ValueError("the size of its linear map does not match its columns")
        if {mean.dtype, factor.dtype} != {torch.float64} or not bool(mean.isfinite().all() & factor.isfinite().all()):
            raise ValueError("its linear map must be finite and float64")
        if not bool((factor.diagonal() > 0).all()):
            raise ValueError("its linear map cannot be inverted")
        return cls(columns, mean, factor)


class _Maps:
    """The maps of some columns, as vectors over the columns."""

    def __init__(self, columns: list[Column]) -> None:
        def vector(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64)

        self._step = vector([c.step for c in columns])
        self._noisy = bool((self._step > 0).any())
        self._centre, self._scale = vector([c.centre for c in columns]), vector([c.scale for c in columns])
        self._tail = vector([c.tail or np.inf for c in columns])
        self._log = [i for i, c in enumerate(columns) if c.map == "log"]
        self._offset = vector([columns[i].offset for i in self._log])
        self._logit = [i for i, c in enumerate(columns) if c.map == "logit"]
        self._lower = vector([columns[i].lower for i in self._logit])
        self._upper = vector([columns[i].upper for i in self._logit])
        self._rounded = [(i, c) for i, c in enumerate(columns) if c.rounded]
        self._log_scale = float(self._scale.log().sum())

    def dequantise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if not self._noisy:
            return x
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype)
        return torch.addcmul(x, noise.sub_(0.5), self._step)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ladj = x.new_full((len(x),), -self._log_scale)
        if self._log:
            x = x.clone()
            inside = x[:, self._log] - self._offset
            x[:, self._log] = inside.log()
            ladj = ladj - x[:, self._log].sum(1)
        if self._logit:
            x = x.clone()
            width = self._upper - self._lower
            share = (x[:, self._logit] - self._lower) / width
            x[:, self._logit] = share.log() - (-share).log1p()
            ladj = ladj - (share * (1 - share) * width).log().sum(1)
        y = (x - self._centre) / self._scale
        y = y.clamp(-_LIMIT, _LIMIT)
        ratio = y / self._tail
        drawn = torch.where(self._tail.isinf(), y, self._tail * ratio.asinh())
        return drawn, ladj - 0.5 * (ratio * ratio).log1p().sum(1)

    def inverse(self, y: Tensor) -> Tensor:
        drawn = y
        y = torch.where(self._tail.isinf(), drawn, self._tail * (drawn / self._tail).sinh())
        x = y * self._scale + self._centre
        if self._log:
            x[:, self._log] = x[:, self._log].exp() + self._offset
        if self._logit:
            x[:, self._logit] = self._lower + (self._upper - self._lower) * x[:, self._logit].sigmoid()
        for i, column in self._rounded:
            most = round((column.high - column.origin) / column.step)
            steps = ((x[:, i] - column.origin) / column.step).round().clamp(0, most)
            x[:, i] = column.origin + steps * column.step
        return x
