"""Bijections of table columns in the data's units: logarithm, logit, standardization and compressed tails."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, SinuflowError, StorageError
from ..registry import register, registered
from ..solvers import Inversion, SolverOptions
from .base import Bijection


class Float64Module(nn.Module):
    """A module whose buffers move between devices, but keep their dtype when the flow is converted to another."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Float64Module:
        super()._apply(lambda t: t.to(fn(t.new_empty(0)).device), recurse)
        return self


class DataBijection(Float64Module, Bijection):
    """A bijection in the units of the data, with float64 buffers."""

    def value(self, x: Tensor) -> Tensor:
        """y of a feature-major batch (D, B)."""
        raise NotImplementedError(f"{type(self).__name__} must define value")

    def inverse_value(self, y: Tensor) -> Tensor:
        """The x of y."""
        raise NotImplementedError(f"{type(self).__name__} must define inverse_value")

    def log_determinant(self, x: Tensor, y: Tensor) -> Tensor:
        """The log-determinant of dy/dx, of shape (B,)."""
        raise NotImplementedError

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        y = self.value(x)
        return y, self.log_determinant(x, y)

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        x = self.inverse_value(z)
        return Inversion.exact(x, -self.log_determinant(x, z))


class ElementwiseDataBijection(DataBijection):
    """A map of every value by itself: a column has a map of its own."""

    def log_derivative(self, x: Tensor, y: Tensor) -> Tensor:
        """The log-derivative at every value x, where y is its image; may be one number for each column."""
        raise NotImplementedError(f"{type(self).__name__} must define log_derivative")

    def log_determinant(self, x: Tensor, y: Tensor) -> Tensor:
        return self.log_derivative(x, y).expand_as(y).sum(0)


class ColumnMap(ElementwiseDataBijection):
    r"""An increasing elementwise map of columns, x ↦ m(x).

    Subclasses define :meth:`value`, :meth:`inverse_value` and :meth:`log_derivative`. Their arguments, one
    number or one for each column, become float64 buffers of shape (columns, 1). A registered subclass, or an instance
    of it, can be passed to :func:`sinuflow.fit_table` as the map of a column.

    Example:
        >>> @register
        ... class Power(ColumnMap):
        ...     def __init__(self, exponent):
        ...         super().__init__(exponent=exponent)
        ...     def value(self, x):
        ...         return x**self.exponent
        ...     def inverse_value(self, y):
        ...         return y ** (1 / self.exponent)
        ...     def log_derivative(self, x, y):
        ...         return self.exponent.log() + (self.exponent - 1) * x.log()
        >>> y, ladj = Power(2.0)(torch.tensor([[3.0]]))
        >>> y.item(), round(ladj.exp().item(), 4)
        (9.0, 6.0)
    """

    def __init__(self, **arguments: float | Sequence[float]) -> None:
        columns = {name: torch.as_tensor(a, dtype=torch.float64).reshape(-1, 1) for name, a in arguments.items()}
        super().__init__(max(map(len, columns.values()), default=1))
        for name, values in columns.items():
            self.register_buffer(name, values)

    @classmethod
    def suits(cls, values: Tensor, low: float, high: float, step: float) -> bool:
        """Whether the map is the default for a column of these values, within [low, high], on a grid if step > 0."""
        return False

    @classmethod
    def fit(cls, values: Tensor, low: float, high: float, step: float) -> ColumnMap:
        """The map for a column of these values; an :class:`ArgumentError` if there is none."""
        try:
            return cls()
        except TypeError as error:
            raise ArgumentError(f"pass an instance, {cls.__name__}(...), or define fit ({error})") from error


@register(name="log")
class Log(ColumnMap):
    """x ↦ log(x - offset)."""

    offset: Tensor

    def __init__(self, offset: float | Sequence[float] = 0.0) -> None:
        super().__init__(offset=offset)

    def value(self, x: Tensor) -> Tensor:
        return (x - self.offset).log()

    def inverse_value(self, y: Tensor) -> Tensor:
        return y.exp() + self.offset

    def log_derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return -y

    @classmethod
    def suits(cls, values: Tensor, low: float, high: float, step: float) -> bool:
        if low < 0 or not (low > 0 or step) or len(values) < 50:  # too few to estimate a skewness
            return False
        skewness, skewness_of_log = (_skewness(v) for v in (values, cls.fit(values, low, high, step).value(values)))
        return skewness > 1.5 and abs(skewness_of_log) < skewness / 2

    @classmethod
    def fit(cls, values: Tensor, low: float, high: float, step: float) -> Log:
        if not step and low <= 0:
            raise ArgumentError(f"it holds {low:g}, not above 0")
        # The logarithm's argument must be positive in the whole cell of the lowest value.
        return cls(min(0.0, low - step) if low > 0 else low - step)


@register(name="logit")
class Logit(ColumnMap):
    """x ↦ log(s / (1 - s)) with s = (x - lower) / (upper - lower)."""

    lower: Tensor
    upper: Tensor

    def __init__(self, lower: float | Sequence[float] = 0.0, upper: float | Sequence[float] = 1.0) -> None:
        super().__init__(lower=lower, upper=upper)
        if not bool((self.lower < self.upper).all()):
            raise ArgumentError("the lower bound of a logit must be below its upper bound")

    def value(self, x: Tensor) -> Tensor:
        s = (x - self.lower) / (self.upper - self.lower)
        return s.log() - (-s).log1p()

    def inverse_value(self, y: Tensor) -> Tensor:
        return self.lower + (self.upper - self.lower) * y.sigmoid()

    def log_derivative(self, x: Tensor, y: Tensor) -> Tensor:
        width = self.upper - self.lower
        s = (x - self.lower) / width
        return -(s * (1 - s) * width).log()

    @classmethod
    def suits(cls, values: Tensor, low: float, high: float, step: float) -> bool:
        fills_the_unit_interval = 0 < low < 0.02 and 0.98 < high < 1 and not step
        return fills_the_unit_interval and float(((values < 0.1) | (values > 0.9)).double().mean()) > 0.2

    @classmethod
    def fit(cls, values: Tensor, low: float, high: float, step: float) -> Logit:
        if low > 0 and high < 1 and not step:
            return cls()
        margin = step or 1e-3 * (high - low)
        return cls(low - margin, high + margin)


@register
class Standardize(ColumnMap):
    """x ↦ (x - centre) / scale, clamped to ±10⁶ so that no arithmetic overflows."""

    centre: Tensor
    scale: Tensor

    def __init__(self, centre: float | Sequence[float] = 0.0, scale: float | Sequence[float] = 1.0) -> None:
        super().__init__(centre=centre, scale=scale)
        _check_positive("scale", self.scale)

    def value(self, x: Tensor) -> Tensor:
        return ((x - self.centre) / self.scale).clamp(-1e6, 1e6)

    def inverse_value(self, y: Tensor) -> Tensor:
        return y * self.scale + self.centre

    def log_derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.scale.log()


@register
class CompressTails(ColumnMap):
    """x ↦ t asinh(x / t): the identity near 0, so that a single outlier cannot dominate the mean."""

    width: Tensor

    def __init__(self, width: float | Sequence[float] = 1.0) -> None:
        super().__init__(width=width)
        _check_positive("width", self.width)

    def value(self, x: Tensor) -> Tensor:
        return self.width * (x / self.width).asinh()

    def inverse_value(self, y: Tensor) -> Tensor:
        return self.width * (y / self.width).sinh()

    def log_derivative(self, x: Tensor, y: Tensor) -> Tensor:
        return -0.5 * (x / self.width).square().log1p()


@register
class SelectedColumns(ElementwiseDataBijection):
    """A bijection of some columns (features); the others are unchanged."""

    columns: Tensor

    def __init__(self, features: int, columns: Sequence[int], bijection: ElementwiseDataBijection) -> None:
        super().__init__(features)
        self.bijection = bijection
        self.register_buffer("columns", torch.tensor(columns), persistent=False)

    def value(self, x: Tensor) -> Tensor:
        return x.index_copy(0, self.columns, self.bijection.value(x.index_select(0, self.columns)))

    def inverse_value(self, y: Tensor) -> Tensor:
        return y.index_copy(0, self.columns, self.bijection.inverse_value(y.index_select(0, self.columns)))

    def log_derivative(self, x: Tensor, y: Tensor) -> Tensor:
        before, after = (t.index_select(0, self.columns) for t in (x, y))
        own = self.bijection.log_derivative(before, after).expand_as(after)
        return torch.zeros_like(y).index_copy(0, self.columns, own)

    def log_determinant(self, x: Tensor, y: Tensor) -> Tensor:
        return self.bijection.log_determinant(*(t.index_select(0, self.columns) for t in (x, y)))


#: Maps by the names that users give them, in the order in which they are tried for a column.
COLUMN_MAPS: dict[str, type[ColumnMap]] = {"logit": Logit, "log": Log}


def make_column_map(name: str, arguments: Mapping[str, float | Sequence[float]]) -> ColumnMap:
    """The map that is registered under a name, or a :class:`~sinuflow.StorageError`."""
    kind = registered(name)
    if not issubclass(kind, ColumnMap):
        raise StorageError(f"{name[:60]!r} is not a column map")
    try:
        return kind(**arguments)
    except Exception as error:  # constructors of registered classes may raise any
        raise StorageError(f"the column map {name[:60]!r} does not take its stored arguments: {error}") from error


def _check_positive(name: str, values: Tensor) -> None:
    if not bool((values > 0).all()):
        raise ArgumentError(f"{name} must be positive; got {values.min():g}")


#: The most values at which a user's map is checked.
_CHECKED = 500


def column_map_mistake(name: str, arguments: Mapping[str, float], values: Tensor) -> str | None:
    """What is wrong with the map that is registered under a name, at these values of one column."""
    x = values.double().flatten().unique()
    x = x[torch.linspace(0, len(x) - 1, min(len(x), _CHECKED)).long()].unsqueeze(0)
    try:
        return _mistake(make_column_map(name, {key: [value] for key, value in arguments.items()}), x)
    except SinuflowError:
        raise
    except Exception as error:  # a user's methods may raise any
        return f"it raises {error!r}; pass numbers on by super().__init__(name=...), which makes buffers of them"


@torch.no_grad()
def _mistake(column_map: ColumnMap, x: Tensor) -> str | None:
    y = column_map.value(x)
    if y.shape != x.shape or y.dtype != x.dtype:
        return f"value returns {y.dtype} of shape {tuple(y.shape)} for {x.dtype} of shape {tuple(x.shape)}"
    if not bool(y.isfinite().all()):
        return f"value is NaN or infinite at {x[~y.isfinite()][0]:g}"
    falls = y.diff() < -1e-12 * y.abs().amax()
    if bool(falls.any()):
        i = int(falls.int().argmax())
        return f"value must increase, but is {y[0, i]:g} at {x[0, i]:g} and {y[0, i + 1]:g} at {x[0, i + 1]:g}"
    low, high = x[:, :1], x[:, -1:]
    width = torch.where(x - low > high - x, low - x, high - x)  # differences towards the farther end stay inside
    error = torch.full_like(x, torch.inf)
    measured = error < 0
    for digits in range(3, 24, 2):  # whatever the scale of the map: the best difference counts
        ahead = x + width * 10.0**-digits
        middle, rise, run = (x + ahead) / 2, column_map.value(ahead) - y, ahead - x
        precise = (y / rise).abs() + (x / run).abs() < 1e-4 / torch.finfo(x.dtype).eps
        off = ((rise / run).log() - column_map.log_determinant(middle, column_map.value(middle))).abs()
        error = torch.where(precise, torch.minimum(off.nan_to_num(torch.inf), error), error)
        measured = measured | precise
    log_slope, wrong = column_map.log_determinant(x, y), measured & (error > 0.01)
    if bool(wrong.any()):
        i = int(wrong.int().argmax())
        return f"log_derivative is {log_slope[i]:.6g} at {x[0, i]:g}, which differs from finite differences of value"
    back = column_map.inverse_value(y)
    close = (back - x).abs() <= 1e-6 * x.abs() + 1e-9 * (high - low) + 1e-12 * y.abs() * (-log_slope).exp()
    if not bool(close.all()):
        i = int(close.int().argmin())
        return f"inverse_value(value(x)) is {back[0, i]:.6g} for x = {x[0, i]:.6g}"
    return None


def _skewness(values: Tensor) -> float:
    centred = values - values.mean()
    spread = centred.square().mean().sqrt()
    return float((centred**3).mean() / spread**3) if spread > 0 else math.inf
