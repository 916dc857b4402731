"""Checks of arguments and of values from files: types, ranges and names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from .errors import ArgumentError

#: Raises an :class:`InvalidValueError` for an invalid value; the second argument is its place in the file.
Check = Callable[[Any, str], None]

#: Up to this magnitude, float64, JSON and int64 hold every integer exactly.
LARGEST_INTEGER = 2**53
#: The most characters of a column's name in a file.
LONGEST_NAME = 100_000


class InvalidValueError(ValueError):
    """A value in a file has a type or size that its place does not allow; the message names both."""

    def __init__(self, place: str, expected: str, value: Any) -> None:
        scalar = isinstance(value, (str, int, float, bool, type(None)))
        super().__init__(
            f"{place} must be {expected}; got {shortened(value) if scalar else f'a {type(value).__name__}'}"
        )


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value is an int, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is an int or a float, and not a bool; integers must be exact in float64."""
    return isinstance(value, float) or (is_integer(value) and abs(value) <= LARGEST_INTEGER)


def is_unicode(value: str) -> bool:
    """Whether a string can be encoded; JSON may hold unpaired surrogates."""
    return re.search("[\ud800-\udfff]", value) is None


def shortened(value: Any, most: int = 60) -> str:
    """The representation of a value, truncated for a message."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def whole(name: str, value: Any, least: int) -> int:
    """An argument as an int; NumPy integers are accepted, True and 2.5 are not."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise ArgumentError(f"{name} must be a whole number of at least {least}; got {shortened(value)}")
    return int(value)


def whole_numbers(name: str, value: Any, least: int) -> tuple[int, ...]:
    """An argument that is a list or tuple of integers."""
    if not isinstance(value, (tuple, list)):
        raise ArgumentError(f"{name} must be a list of whole numbers; got {shortened(value)}")
    return tuple(whole(f"every entry of {name}", n, least) for n in value)


def instance(name: str, value: Any, kind: type) -> None:
    """Refuse an argument that is not an instance of this class."""
    if isinstance(value, kind):
        return
    got = f"the class {value.__name__}: pass an instance" if isinstance(value, type) else type(value).__name__
    raise ArgumentError(f"{name} must be a {kind.__name__}; got {got}")


def demand_shape(module: object, method: str, name: str, result: Any, shape: tuple[int, ...], meaning: str) -> None:
    """Refuse a tensor of another shape that a method of a component returned."""
    if result.shape != shape:
        raise ArgumentError(
            f"{type(module).__name__}.{method} returned {name} of shape {tuple(result.shape)} instead of "
            f"{tuple(shape)}, {meaning}"
        )


def choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """An argument that must be one of these strings."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(f"{name} must be one of {', '.join(choices)}; got {shortened(value)}")
    return value


def image_shape(shape: Any) -> tuple[int, int, int]:
    """(C, H, W) as integers."""
    sizes = [int(n) for n in shape if hasattr(n, "__index__")] if isinstance(shape, (tuple, list)) else []
    if len(sizes) != 3 or len(shape) != 3 or min(sizes) < 1:
        raise ArgumentError(f"shape must be (channels, height, width), such as (1, 28, 28); got {shortened(shape)}")
    return sizes[0], sizes[1], sizes[2]


def check_residual(residual: bool, hidden: Sequence[int]) -> None:
    """Refuse residual blocks of different widths: they add a layer's input to its output."""
    if residual and len(set(hidden)) > 1:
        raise ArgumentError(f"residual=True needs hidden layers of one size; got hidden={tuple(hidden)}")


def _that(is_valid: Callable[[Any], bool], expected: str) -> Check:
    def check(value: Any, place: str) -> None:
        if not is_valid(value):
            raise InvalidValueError(place, expected, value)

    return check


def integer(low: int = 0, high: int = LARGEST_INTEGER) -> Check:
    """An integer within bounds; booleans are refused.

    Example:
        >>> integer(low=1)(3, "blocks")
        >>> integer(low=1)("9", "blocks")
        Traceback (most recent call last):
        sinuflow.checks.InvalidValueError: blocks must be an integer of at least 1; got '9'
    """
    limit = "" if high == LARGEST_INTEGER else f" and at most {high}"
    return _that(lambda value: is_integer(value) and low <= value <= high, f"an integer of at least {low}{limit}")


def number(low: float = -math.inf, above: float = -math.inf, finite: bool = True) -> Check:
    """A number of at least ``low`` and greater than ``above``; NaN and infinity only if not ``finite``."""
    expected = "a finite number" if finite else "a number"
    expected += f" of at least {low:g}" if low > -math.inf else f" above {above:g}" if above > -math.inf else ""

    def is_valid(value: Any) -> bool:
        if not is_number(value) or (finite and not math.isfinite(value)):
            return False
        return not value < low and (above == -math.inf or value > above)

    return _that(is_valid, expected)


def text(most: int = 10_000) -> Check:
    """A string of limited length."""

    def is_valid(value: Any) -> bool:
        return isinstance(value, str) and len(value) <= most and is_unicode(value)

    return _that(is_valid, f"a string of at most {most} characters")


#: True or false.
flag = _that(lambda value: isinstance(value, bool), "true or false")


def one_of(*choices: str) -> Check:
    """One of these strings."""
    return _that(lambda value: isinstance(value, str) and value in choices, f"one of {', '.join(choices)}")


def anything(value: Any, place: str) -> None:
    """Accept any value, for unused fields."""


def optional(check: Check) -> Check:
    """None, or what another check accepts."""

    def check_optional(value: Any, place: str) -> None:
        if value is not None:
            check(value, place)

    return check_optional


def items(check: Check, least: int = 0, length: int | None = None) -> Check:
    """A list whose entries all pass a check."""
    wanted = f" of {length} entries" if length is not None else f" of at least {least} entries" if least else ""

    def check_items(value: Any, place: str) -> None:
        if not isinstance(value, list) or len(value) < least or (length is not None and len(value) != length):
            raise InvalidValueError(place, f"a list{wanted}", value)
        for i, entry in enumerate(value):
            check(entry, f"{place}[{i}]")

    return check_items


def fields(
    required: Mapping[str, Check], may_have: Mapping[str, Check] | None = None, others: Check | None = None
) -> Check:
    """An object with these fields; other fields must pass ``others``, or are refused if it is None."""
    may_have = may_have or {}

    def check_fields(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise InvalidValueError(place, "an object with named fields", value)
        for name in required:
            if name not in value:
                raise InvalidValueError(f"{place}.{name}", "present", None)
        for name, entry in value.items():
            check = required.get(name) or may_have.get(name) or others
            if check is None:
                raise InvalidValueError(place, f"without the unknown field {name[:60]!r}", value)
            check(entry, f"{place}.{name[:60]}")

    return check_fields
