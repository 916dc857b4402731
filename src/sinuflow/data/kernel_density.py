"""A kernel density estimate of the rows of a table, which ranks anomalies beside the flow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..bijections.columns import Float64Module
from .columns import Column

#: The most kernels, the fewest rows for each on average, and the most rows that they are fitted to.
_KERNELS, _ROWS_PER_KERNEL, _ROWS = 500, 2, 10_000
#: The bandwidth is the typical distance to this neighbour, of so many rows, but at least so many standard deviations.
_NEIGHBOUR, _QUERIES, _LEAST = 5, 2_000, 0.05
#: Tails are compressed beyond so many standard deviations.
_TAIL = 4.0
#: Where a value is that its column cannot have.
_IMPOSSIBLE = 10.0
#: Of k-means.
_ITERATIONS = 10
#: The most values of a category with a coordinate of their own: the most frequent ones.
_CATEGORIES = 100
_BLOCK = 2_000_000  # distances at a time: 16 MB


class KernelDensity(Float64Module):
    r"""A mixture of equal kernels at centres of clusters of training rows, up to a constant.

    .. math:: p(x) \propto \sum_k w_k \exp \frac{-|e(x) - \mu_k|^2}{2 h^2}, \qquad
              p(x \mid c) = \frac{p(x, c)}{p(c)}

    e standardizes numbers, :math:`4 \operatorname{asinh}((x - \text{median}) / 4 s) / \sigma`, and represents
    categories by one-hot coordinates of total variance 1, and missing values by a standardized flag. The :math:`\mu_k`
    are at most 500 centres of k-means with shares :math:`w_k` of the rows. The bandwidth :math:`h` is the median
    distance of a row to its fifth neighbour, divided by the square root of the number of columns.

    A flow ranks rows by fine detail of the density, which it can only guess where rows are few. Distances to the
    nearest rows are robust there, but see neither small scales nor correlations.

    Example:
        >>> columns = [Column("x", "number", "double"), Column("y", "number", "double")]
        >>> x = torch.randn(1000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> density = KernelDensity.fit(columns, [], x, None, torch.Generator().manual_seed(0))
        >>> near, far = density.log_prob(torch.tensor([[0.0, 0.0], [3.0, 3.0]], dtype=torch.float64))
        >>> bool(near > far)
        True
    """

    median: Tensor
    width: Tensor
    scale: Tensor
    centres: Tensor
    log_weights: Tensor
    bandwidth: Tensor

    def __init__(self, features: Sequence[Column], context: Sequence[Column], tensors: Mapping[str, Tensor]) -> None:
        """A ValueError says if the tensors, those of :meth:`tensors`, do not fit the columns."""
        super().__init__()
        self._columns = [*features, *context]
        self._features = len(features)
        numbers = sum(c.kind != "category" for c in self._columns)
        kernels = tensors["centres"].shape[0] if "centres" in tensors and tensors["centres"].dim() == 2 else 0
        shapes: dict[str, tuple[int, ...]] = {"median": (numbers,), "width": (numbers,), "scale": (numbers,)}
        shapes |= {
            "log_weights": (kernels,),
            "centres": (kernels, sum(map(_coordinates, self._columns))),
            "bandwidth": (),
        }
        if not kernels or {name: tuple(t.shape) for name, t in tensors.items()} != shapes:
            raise ValueError("its kernel density does not fit its columns")
        for name, tensor in tensors.items():
            if tensor.dtype != torch.float64 or not bool(tensor.isfinite().all()):
                raise ValueError("its kernel density must be finite and float64")
            self.register_buffer(name, tensor)
        if not all(bool((tensors[name] > 0).all()) for name in ("width", "scale", "bandwidth")):
            raise ValueError("the scales of its kernel density must be above 0")

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        features: Sequence[Column],
        context: Sequence[Column],
        x: Tensor,
        side: Tensor | None,
        generator: torch.Generator,
    ) -> KernelDensity:
        """The density of rows x (n, features), and their context (n, context columns) if there is one."""
        columns = [*features, *context]
        rows = x if side is None else torch.cat([x, side], dim=1)
        rows = rows[torch.randperm(len(rows), generator=generator)[:_ROWS]]
        numbers = rows[:, [i for i, c in enumerate(columns) if c.kind != "category"]]
        median, width, scale = _standardization(numbers)
        tensors = {"median": median, "width": width, "scale": scale, "bandwidth": torch.ones((), dtype=torch.float64)}
        places = torch.zeros((1, sum(map(_coordinates, columns))), dtype=torch.float64)
        unfitted = cls(features, context, tensors | {"centres": places, "log_weights": torch.zeros_like(places[:, 0])})
        points = torch.cat(unfitted._embed(rows), dim=1)
        centres, counts = _clusters(points, generator)
        tensors["bandwidth"] = _bandwidth(points, len(columns))
        return cls(features, context, tensors | {"centres": centres, "log_weights": (counts / counts.sum()).log()})

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the columns."""
        return dict(self.named_buffers())

    @torch.no_grad()
    def log_prob(self, x: Tensor, side: Tensor | None = None) -> Tensor:
        """The log-density (n,) of rows of numbers, given the values of their context columns if there are some."""
        rows = x if side is None else torch.cat([x, side], dim=1)
        own, given = self._embed(rows)
        split = own.shape[1]
        parts = []
        for a, c in zip(*(points.split(max(1, _BLOCK // len(self.centres))) for points in (own, given)), strict=True):
            log_given = self.log_weights - _squared_distances(c, self.centres[:, split:]) / (2 * self.bandwidth**2)
            log_joint = log_given - _squared_distances(a, self.centres[:, :split]) / (2 * self.bandwidth**2)
            parts.append(log_joint.logsumexp(1) - log_given.logsumexp(1))
        return torch.cat(parts) if parts else x.new_zeros(0)

    def _embed(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The coordinates of the features and of the context of rows."""
        sides: tuple[list[Tensor], list[Tensor]] = ([], [])
        number = 0
        for i, column in enumerate(self._columns):
            parts = sides[i >= self._features]
            values = rows[:, i : i + 1]
            if column.kind == "category":
                spread = 1 - math.fsum(share**2 for share in column.masses)
                parts.append((values == _frequent(column, values)).double() / math.sqrt(max(spread, 1e-6)))
                continue
            z = (values - self.median[number]) / self.width[number]
            parts.append((z.asinh() / self.scale[number]).nan_to_num(0.0, _IMPOSSIBLE, -_IMPOSSIBLE))
            number += 1
            if column.missing:
                parts.append(values.isnan().double() / math.sqrt(max(column.missing * (1 - column.missing), 1e-6)))
        own, given = (torch.cat(parts, dim=1) if parts else rows[:, :0] for parts in sides)
        return own, given


def _coordinates(column: Column) -> int:
    """The number of coordinates of a column."""
    return min(len(column.atoms), _CATEGORIES) if column.kind == "category" else 1 + (column.missing > 0)


def _frequent(column: Column, like: Tensor) -> Tensor:
    """The codes of a category with coordinates."""
    order = sorted(range(len(column.atoms)), key=lambda i: -column.masses[i])[:_CATEGORIES]
    return torch.tensor([column.atoms[i] for i in order], dtype=torch.float64, device=like.device)


def _standardization(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The median of columns (n, D), the width of asinh, and the standard deviation after it."""
    if not numbers.shape[1]:
        return (numbers.new_empty(0),) * 3
    quartiles = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)  # column by column: of 16 million numbers at most
    lower, median, upper = torch.stack([column.nanquantile(quartiles) for column in numbers.mT], dim=1).nan_to_num()
    known = numbers.where(numbers.isfinite(), median)
    deviation = known.std(0, correction=0)
    spread = (upper - lower) / 1.349
    width = torch.where(spread > 0, torch.minimum(spread, deviation), deviation)
    width = _TAIL * torch.where((width > 0) & width.isfinite(), width, 1.0)
    scale = ((known - median) / width).asinh().std(0, correction=0)
    return median, width, torch.where(scale > 0, scale, 1.0)


def _clusters(points: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The centres of k-means (k, D), and the number of points of each."""
    count = max(1, min(_KERNELS, len(points) // _ROWS_PER_KERNEL))
    centres = points[torch.randperm(len(points), generator=generator)[:count]]
    counts = torch.ones(count, dtype=torch.float64)
    for _ in range(_ITERATIONS):
        nearest = torch.cat([_squared_distances(p, centres).argmin(1) for p in points.split(_BLOCK // count)])
        counts = torch.bincount(nearest, minlength=count).double()
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(counts.unsqueeze(1) > 0, sums / counts.clamp(min=1).unsqueeze(1), centres)
    return centres[counts > 0], counts[counts > 0]


def _bandwidth(points: Tensor, columns: int) -> Tensor:
    nearest = min(_NEIGHBOUR + 1, len(points))  # the nearest is the point itself
    queries = points[:_QUERIES].split(max(1, _BLOCK // len(points)))
    distances = torch.cat([_squared_distances(q, points).kthvalue(nearest, dim=1).values for q in queries])
    return (distances.median() / columns).sqrt().clamp(min=_LEAST)


def _squared_distances(left: Tensor, right: Tensor) -> Tensor:
    products = left.square().sum(1, keepdim=True) + right.square().sum(1) - 2 * left @ right.mT
    return products.clamp(min=0.0)
