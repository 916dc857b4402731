"""Sampling of rows of numbers from a model of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data.sources import seeded
from ..errors import DataError, InversionError
from ..flows.inversion import Certify, inverse_with_fallback
from ..flows.mixed import MixedFlow

if TYPE_CHECKING:
    from .table import TableModel

Array = np.ndarray[Any, np.dtype[np.float64]]

#: The maximum number of times that impossible rows are drawn again.
_MAX_REDRAWS = 30


class RowSampler:
    """Draws rows of numbers from a model of a table, and redraws impossible ones."""

    def __init__(
        self,
        model: TableModel,
        fixed: dict[str, float],
        context: Tensor | None,
        seed: int | None,
        certify: Certify,
        complete: bool,
    ) -> None:
        self._model, self._preprocessor, self._like = model, model.preprocessor, model._like
        self._fixed, self._context, self._certify, self._complete = fixed, context, certify, complete
        self._generator = torch.Generator(self._like.device)
        self._generator.seed() if seed is None else self._generator.manual_seed(seed)
        self._cpu_generator = seeded(self._generator.initial_seed())
        axes = self._preprocessor.axes
        if complete and len(axes) > 1 and any(c.missing for c in axes):
            raise DataError("the model was written by a version of Sinuflow without complete rows: fit it again")

    def possible_rows(self, count: int) -> tuple[dict[str, Array], float | None]:
        """Rows by the names of columns, and their largest residual; impossible rows are drawn again, up to 30 times."""
        values, residual = self._rows(count)
        for _ in range(_MAX_REDRAWS):
            wrong = self._preprocessor.impossible(values, self._complete)
            if not wrong.any():
                break
            redrawn, redrawn_residual = self._rows(int(wrong.sum()))
            for name, column in redrawn.items():
                values[name][wrong] = column
            residual = None if residual is None or redrawn_residual is None else max(residual, redrawn_residual)
        return values, residual

    def _rows(self, count: int) -> tuple[dict[str, Array], float | None]:
        flow, like = self._model.flow, self._like
        codes, inner = self._codes(count)
        size = (count, flow.bijection.features)
        noise = torch.randn(size, generator=self._generator, dtype=like.dtype, device=like.device)
        if self._complete:
            noise = self._present_noise(noise, inner)
        y, residual = inverse_with_fallback(flow.bijection, noise, inner, self._certify)
        x = self._preprocessor.inverse(torch.cat([codes.to(y), y], dim=1).cpu(), self._cpu_generator).numpy()
        if np.isinf(x).any() or not (self._model.models_missing or np.isfinite(x).all()):
            raise InversionError(
                f"{int((~np.isfinite(x)).any(1).sum())} of {count} draws overflow float64 in the units of their "
                "columns: the flow is not trained well enough to be sampled"
            )
        values = {name: np.full(count, number) for name, number in self._fixed.items()}
        values |= {c.name: x[:, i] for i, c in enumerate(self._preprocessor.features)}
        self._preprocessor.restore(values)
        return values, residual

    def _codes(self, count: int) -> tuple[Tensor, Tensor | None]:
        """The codes of the features with levels, and the context of the flow of the axes."""
        flow, levels = self._model.flow, self._preprocessor.levels
        if not isinstance(flow, MixedFlow):
            return self._like.new_empty((count, 0)), self._context
        context = None if self._context is None else self._context.expand(count, -1)
        excluded = levels.missing_level.flatten().tolist() if self._complete and levels is not None else None
        codes = flow.categories.sample(count, context, self._generator, excluded)
        return codes, flow.inner_context(codes, context)

    def _present_noise(self, noise: Tensor, inner: Tensor | None) -> Tensor:
        """Noise that maps to present values of the only axis.

        The cell of missing values is the lower end of the axis, and the flow is increasing: noise is drawn above it.
        """
        (missing,) = [c.missing for c in self._preprocessor.axes] if noise.shape[1] == 1 else [0.0]
        if not missing:
            return noise
        z = torch.special.ndtri(noise.new_tensor([[missing]], dtype=torch.float64)).expand(1, len(noise))
        y = self._preprocessor.on(noise.device).whitening.value(z).mT.to(noise)
        with torch.no_grad():
            end, _ = self._model.flow.bijection(y, inner)
        below = torch.special.ndtr(end.double())
        u = below + (1 - below) * torch.special.ndtr(noise.double())
        present: Tensor = torch.special.ndtri(u.clamp(1e-12, 1 - 1e-12))
        return present.to(noise)
