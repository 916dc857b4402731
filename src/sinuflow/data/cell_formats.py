"""The interface of cell formats, and what formats of texts share."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from ..checks import Check
from ..errors import DataError
from .numbers import Array
from .time_axis import TimeAxis

#: Decimals of a column: always as many; none for whole numbers; or as many as are not zero.
TRAILING = ("fixed", "whole", "shortest")
#: Texts on which a format is tried before all others are read.
_FIRST = 200


class FormatError(DataError):
    """Texts cannot be read; the message continues "column 'name' ..." and ends with the remedy."""


class AmbiguousFormat(FormatError):  # noqa: N818
    """Two formats fit all texts of a column, with different values."""


class CellFormat(ABC):
    """How cells represent numbers or times: ``parse`` reads them, ``write`` is its inverse.

    Subclasses are dataclasses, whose fields ``_check`` checks one by one.
    """

    _check: ClassVar[Check]

    @abstractmethod
    def parse(self, array: Any) -> Array:
        """The numbers of an Arrow array, of times the seconds since an origin; NaN if missing or of another format."""

    @abstractmethod
    def write(self, numbers: Array) -> Any:
        """Numbers as an Arrow array, null where they are not finite."""

    def as_dict(self) -> dict[str, Any]:
        """The format as JSON can hold it."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, value: Any, place: str = "format") -> CellFormat:
        """The format that ``as_dict`` describes; anything else is refused."""
        cls._check(value, place)
        stored = {name: entry for name, entry in value.items() if name != "kind"}
        if "axis" in stored:
            stored["axis"] = TimeAxis.from_dict(stored["axis"], f"{place}.axis")
        known = cls(**stored)
        known._check_consistency(place)
        return known

    @abstractmethod
    def _check_consistency(self, place: str) -> None:
        """Refuse fields that are valid one by one, but inconsistent."""


class TextFormat(CellFormat):
    """How texts represent numbers or times."""

    kind: ClassVar[str]

    @abstractmethod
    def read(self, texts: Any) -> Array:
        """The numbers of an Arrow array of strings; NaN where a text does not fit."""

    @abstractmethod
    def texts(self, numbers: Array) -> list[str]:
        """Finite numbers as texts."""

    def parse(self, array: Any) -> Array:
        import pyarrow
        from pyarrow import compute

        array = array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
        encoded = array if pyarrow.types.is_dictionary(array.type) else array.cast(pyarrow.string()).dictionary_encode()
        texts = compute.utf8_trim_whitespace(encoded.dictionary.cast(pyarrow.string()))
        places = encoded.indices.cast(pyarrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        numbers: Array = np.append(self.read(texts), np.nan)[places]
        return numbers

    def write(self, numbers: Array) -> Any:
        import pyarrow

        finite = np.isfinite(numbers)
        distinct, places = np.unique(np.where(finite, numbers, 0.0), return_inverse=True)
        return pyarrow.array(self.texts(distinct), pyarrow.string()).take(
            pyarrow.array(places.reshape(-1), mask=~finite)
        )

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **super().as_dict()}


def fits(text_format: TextFormat, texts: Any) -> bool:
    """Whether all texts of an Arrow array have this format."""
    return all(not np.isnan(text_format.read(part)).any() for part in (texts.slice(0, _FIRST), texts.slice(_FIRST)))


def named_groups(pattern: str, texts: Any) -> dict[str, Any]:
    """The named groups of a regular expression as Arrow arrays of strings, null where a text does not match it."""
    from pyarrow import compute

    found = compute.extract_regex(texts, f"^{pattern}$")
    return {field.name: compute.struct_field(found, [i]) for i, field in enumerate(found.type)}


def lengths(texts: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The lengths of the strings of an Arrow array, 0 for null."""
    from pyarrow import compute

    counts: Array = compute.utf8_length(texts).fill_null(0).to_numpy(zero_copy_only=False)
    return counts.astype(np.int64)


def decimals_of(fractions: Any) -> tuple[int, str]:
    """The largest number of decimals and the style of an Arrow array with the digits after the decimal separator."""
    counts = set(lengths(fractions).tolist())
    most = max(counts, default=0)
    return most, "fixed" if len(counts) < 2 else "whole" if counts == {0, most} else "shortest"


def shortened_decimals(text: str, trailing: str) -> str:
    """A text with decimals after a point, in one of the styles of ``TRAILING``."""
    short = text.rstrip("0").rstrip(".")
    return short if "." in text and (trailing == "shortest" or (trailing == "whole" and "." not in short)) else text
