"""A kernel density estimate of a table, the second term of the anomaly score beside the log-density of the flow."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..bijections.columns import Float64Module
from .columns import Column

#: The maximum number of kernels, the minimum number of rows per kernel, and the maximum number of rows to fit.
_MAX_KERNELS, _MIN_ROWS_PER_KERNEL, _MAX_ROWS = 500, 2, 10_000
#: The bandwidth is the median distance of a sample of rows to their k-th neighbour, and at least the minimum.
_BANDWIDTH_NEIGHBOUR, _BANDWIDTH_ROWS, _MIN_BANDWIDTH = 5, 2_000, 0.05
#: Tails are compressed beyond this number of standard deviations.
_TAIL = 4.0
#: The coordinate, in standard deviations, of a number that its column cannot have.
_UNKNOWN_COORDINATE = 10.0
_KMEANS_ITERATIONS = 10
#: The maximum number of one-hot coordinates of a category: its most frequent values.
_MAX_CATEGORIES = 100
#: The number of distances that are computed at once, 16 MB.
_BLOCK = 2_000_000


class KernelDensity(Float64Module):
    r"""A mixture of Gaussian kernels of equal bandwidth at the centres of clusters of training rows, up to a constant.

    .. math:: p(x) \propto \sum_k w_k \exp \frac{-|e(x) - \mu_k|^2}{2 h^2}, \qquad
              p(x \mid c) = \frac{p(x, c)}{p(c)}

    e standardizes numbers, :math:`4 \operatorname{asinh}((x - \text{median}) / 4 s) / \sigma`, and represents
    categories by one-hot coordinates of total variance 1, and missing values by a standardized flag. The :math:`\mu_k`
    are the centres of at most 500 k-means clusters, each of two or more rows on average, and the :math:`w_k` their
    shares of the rows. The bandwidth :math:`h` is the median distance of a row to its fifth neighbour, divided by the
    square root of the number of columns.

    The log-density of a flow has a high variance where training rows are sparse. A kernel density estimate is robust
    there, but resolves neither small scales nor correlations. So the anomaly score combines them.

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
        """From columns and the result of :meth:`tensors`; raises a ValueError if they do not fit each other."""
        super().__init__()
        self._columns = [*features, *context]
        self._features = len(features)
        numbers = sum(c.kind != "category" for c in self._columns)
        kernels = tensors["centres"].shape[0] if "centres" in tensors and tensors["centres"].dim() == 2 else 0
        shapes: dict[str, tuple[int, ...]] = {"median": (numbers,), "width": (numbers,), "scale": (numbers,)}
        shapes |= {
            "log_weights": (kernels,),
            "centres": (kernels, sum(map(_num_coordinates, self._columns))),
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
        context_values: Tensor | None,
        generator: torch.Generator,
    ) -> KernelDensity:
        """Fit to rows x (n, features), and to the values of their context columns if there are some."""
        columns = [*features, *context]
        rows = x if context_values is None else torch.cat([x, context_values], dim=1)
        rows = rows[torch.randperm(len(rows), generator=generator)[:_MAX_ROWS]]
        numbers = rows[:, [i for i, c in enumerate(columns) if c.kind != "category"]]
        median, width, scale = _standardization(numbers)
        tensors = {"median": median, "width": width, "scale": scale, "bandwidth": torch.ones((), dtype=torch.float64)}
        zeros = torch.zeros((1, sum(map(_num_coordinates, columns))), dtype=torch.float64)
        unfitted = cls(features, context, tensors | {"centres": zeros, "log_weights": zeros[:, 0]})
        points = torch.cat(unfitted._embed(rows), dim=1)
        centres, counts = _k_means(points, generator)
        tensors["bandwidth"] = _bandwidth(points, len(columns))
        return cls(features, context, tensors | {"centres": centres, "log_weights": (counts / counts.sum()).log()})

    def tensors(self) -> dict[str, Tensor]:
        """The parameters, as the model file stores them."""
        return dict(self.named_buffers())

    @torch.no_grad()
    def log_prob(self, x: Tensor, context_values: Tensor | None = None) -> Tensor:
        """The log-density (n,) of rows of numbers, given the values of their context columns if there are some."""
        rows = x if context_values is None else torch.cat([x, context_values], dim=1)
        features, context = self._embed(rows)
        split = features.shape[1]
        parts = []
        size = max(1, _BLOCK // len(self.centres))
        for e_x, e_c in zip(features.split(size), context.split(size), strict=True):
            log_context = self.log_weights - _squared_distances(e_c, self.centres[:, split:]) / (2 * self.bandwidth**2)
            log_joint = log_context - _squared_distances(e_x, self.centres[:, :split]) / (2 * self.bandwidth**2)
            parts.append(log_joint.logsumexp(1) - log_context.logsumexp(1))
        return torch.cat(parts) if parts else x.new_zeros(0)

    def _embed(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The coordinates of the features and of the context of rows."""
        coordinates: tuple[list[Tensor], list[Tensor]] = ([], [])  # of the features, and of the context
        number = 0
        for i, column in enumerate(self._columns):
            parts = coordinates[i >= self._features]
            values = rows[:, i : i + 1]
            if column.kind == "category":
                variance = 1 - math.fsum(mass**2 for mass in column.masses)
                one_hot = (values == _most_frequent(column, values)).double()
                parts.append(one_hot / math.sqrt(max(variance, 1e-6)))
                continue
            z = (values - self.median[number]) / self.width[number]
            parts.append((z.asinh() / self.scale[number]).nan_to_num(0.0, _UNKNOWN_COORDINATE, -_UNKNOWN_COORDINATE))
            number += 1
            if column.missing:
                parts.append(values.isnan().double() / math.sqrt(max(column.missing * (1 - column.missing), 1e-6)))
        features, context = (torch.cat(parts, dim=1) if parts else rows[:, :0] for parts in coordinates)
        return features, context


def _num_coordinates(column: Column) -> int:
    """The number of coordinates of a column."""
    return min(len(column.atoms), _MAX_CATEGORIES) if column.kind == "category" else 1 + (column.missing > 0)


def _most_frequent(column: Column, like: Tensor) -> Tensor:
    """The codes of a category's values that have one-hot coordinates."""
    order = sorted(range(len(column.atoms)), key=lambda i: -column.masses[i])[:_MAX_CATEGORIES]
    return torch.tensor([column.atoms[i] for i in order], dtype=torch.float64, device=like.device)


def _standardization(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The median of columns (n, D), the width t of asinh((x - median) / t), and the standard deviation after it."""
    if not numbers.shape[1]:
        return (numbers.new_empty(0),) * 3
    quartiles = torch.tensor(
        [0.25, 0.5, 0.75], dtype=torch.float64
    )  # column by column, because quantile takes at most 16 million numbers
    lower, median, upper = torch.stack([column.nanquantile(quartiles) for column in numbers.mT], dim=1).nan_to_num()
    filled = numbers.where(numbers.isfinite(), median)
    deviation = filled.std(0, correction=0)
    spread = (upper - lower) / 1.349
    width = torch.where(spread > 0, torch.minimum(spread, deviation), deviation)
    width = _TAIL * torch.where((width > 0) & width.isfinite(), width, 1.0)
    scale = ((filled - median) / width).asinh().std(0, correction=0)
    return median, width, torch.where(scale > 0, scale, 1.0)


def _k_means(points: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The cluster centres (k, D), and the number of points in each cluster."""
    count = max(1, min(_MAX_KERNELS, len(points) // _MIN_ROWS_PER_KERNEL))
    centres = points[torch.randperm(len(points), generator=generator)[:count]]
    counts = torch.ones(count, dtype=torch.float64)
    for _ in range(_KMEANS_ITERATIONS):
        nearest = torch.cat([_squared_distances(p, centres).argmin(1) for p in points.split(_BLOCK // count)])
        counts = torch.bincount(nearest, minlength=count).double()
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(counts.unsqueeze(1) > 0, sums / counts.clamp(min=1).unsqueeze(1), centres)
    return centres[counts > 0], counts[counts > 0]


def _bandwidth(points: Tensor, columns: int) -> Tensor:
    neighbour = min(_BANDWIDTH_NEIGHBOUR + 1, len(points))  # the first neighbour is the point itself
    queries = points[:_BANDWIDTH_ROWS].split(max(1, _BLOCK // len(points)))
    distances = torch.cat([_squared_distances(q, points).kthvalue(neighbour, dim=1).values for q in queries])
    return (distances.median() / columns).sqrt().clamp(min=_MIN_BANDWIDTH)


def _squared_distances(left: Tensor, right: Tensor) -> Tensor:
    products = left.square().sum(1, keepdim=True) + right.square().sum(1) - 2 * left @ right.mT
    return products.clamp(min=0.0)
