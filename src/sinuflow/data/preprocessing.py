"""From rows of numbers in a table's units to the flow's input, and back."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor

from ..bijections import Chain
from ..bijections.base import CERTIFIED
from ..bijections.columns import DataBijection, Float64Module
from ..bijections.whitening import Whitening
from .columns import MAP_NAMES, Column, columns_bijection
from .sources import Batch


class Preprocessor(Float64Module):
    r"""The bijection of the feature columns, with dequantization of their values, and the encoding of context columns.

    The bijection is a chain in the table's units: the columns' own maps (:mod:`sinuflow.data.columns`), then whitening,
    :math:`y \to L^{-1}(y - \mu)`. The flow, which starts as the identity, then starts from the best Gaussian. All
    buffers are float64; the result is rounded to the flow's dtype only at the end.

    Rows come as float64 tensors: ``x`` of shape (n, features), with codes for categories, and ``context`` of shape
    (n, context columns). ``columns`` are all columns of the table, also constant ones, which are in neither.

    Example:
        >>> size = Column("size", "number", "double", map="log", arguments={"offset": 0.0}, centre=1.0, scale=2.0)
        >>> preprocessor = Preprocessor([size])
        >>> y, ladj = preprocessor(torch.tensor([[torch.e]], dtype=torch.float64))
        >>> y.item(), round(preprocessor.inverse(y).item(), 5)
        (0.0, 2.71828)
    """

    step: Tensor
    origin: Tensor
    last: Tensor
    on_grid: Tensor

    def __init__(self, columns: list[Column]) -> None:
        super().__init__()
        self.columns = columns
        self.features = [c for c in columns if c.role == "feature" and c.kind != "constant"]
        self.context_columns = [c for c in columns if c.role == "context" and c.kind != "constant"]
        #: The size of the flow's context.
        self.context_width = sum(c.width for c in self.context_columns)
        #: The columns' own maps, without whitening.
        self.maps = columns_bijection(self.features)
        self.whitening = Whitening(len(self.features))
        self.bijection = Chain([*self.maps, self.whitening])
        self.context_maps = columns_bijection(self.context_columns) if self.context_columns else None
        grid = [[c.step, c.origin, round((c.high - c.origin) / c.step) if c.rounded else 0.0] for c in self.features]
        for name, values in zip(("step", "origin", "last"), torch.tensor(grid, dtype=torch.float64).T, strict=True):
            self.register_buffer(name, values, persistent=False)
        self.register_buffer("on_grid", torch.tensor([c.rounded for c in self.features]), persistent=False)
        self._copies: dict[torch.device, Preprocessor] = {}

    def on(self, device: torch.device) -> Preprocessor:
        """The preprocessor, or a copy of it, on a device."""
        if device == self.step.device:
            return self
        if device not in self._copies:
            self._copies[device] = copy.deepcopy(self).to(device)
        return self._copies[device]

    def dequantize(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Spread values of integer columns, categories and repeated values uniformly over their cells.

        The noise is drawn on the generator's device, so that one of the CPU gives the same noise for any device.
        """
        if not any(c.step for c in self.features):
            return x
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=generator.device)
        return torch.addcmul(x, noise.sub_(0.5).to(x.device), self.step)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The flow's input in float64, and the log-determinant."""
        y, ladj = self.bijection(x)
        return y, ladj

    def inverse(self, y: Tensor) -> Tensor:
        """Rows in the table's units; integers, decimals and categories are rounded to their grid."""
        x = self.bijection.invert(y.double().mT, None, CERTIFIED).x.mT
        steps = ((x - self.origin) / self.step).round().clamp(torch.zeros_like(self.last), self.last)
        return torch.where(self.on_grid, self.origin + steps * self.step, x)

    def context(self, values: Tensor) -> Tensor:
        """The flow's context in float64: numbers standardized, categories one-hot."""
        assert self.context_maps is not None
        standardized, _ = self.context_maps(values)
        parts = []
        for i, c in enumerate(self.context_columns):
            column = values[:, i : i + 1]
            codes = torch.arange(c.width, device=values.device)
            parts.append((column == codes).double() if c.kind == "category" else standardized[:, i : i + 1])
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def encode(self, x: Tensor, context: Tensor | None, generator: torch.Generator) -> Batch:
        """A training batch on the device of ``x``, with fresh dequantization noise."""
        own = self.on(x.device)
        y = own.dequantize(x, generator).mT
        for layer in cast("Iterable[DataBijection]", own.bijection):
            y = layer.value(y)
        return Batch(y.mT.float(), None if context is None else own.context(context).float())

    @property
    def encoding(self) -> str:
        """How :meth:`encode` treats each column, without statistics of the rows, which may round differently."""
        fields = [[c.name, c.kind, c.role, c.map, c.rounded, c.digits, c.categories] for c in self.columns]
        users = [[f"{value:.6g}" for value in c.arguments.values()] for c in self.columns if c.map not in MAP_NAMES]
        return json.dumps([*fields, *users])

    def as_dict(self) -> dict[str, Any]:
        """Everything but the whitening, as JSON."""
        return {"columns": [c.as_dict() for c in self.columns]}

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.whitening.mean, "factor": self.whitening.factor}

    @classmethod
    def from_dict(cls, fields: dict[str, Any], tensors: dict[str, Tensor]) -> Preprocessor:
        """The preprocessor of :meth:`as_dict` and :meth:`tensors`; raises a ValueError if it is not invertible."""
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
        preprocessor = cls(columns)
        preprocessor.whitening.mean, preprocessor.whitening.factor = mean, factor
        return preprocessor
