"""The interface of text formats, their errors, and the style of decimals that they share."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from ..errors import DataError
from .numbers import Array

#: Decimals of a column: always as many; none for whole numbers; or as many as are not zero.
TRAILING = ("fixed", "whole", "shortest")
#: Texts on which a format is tried before all others are read.
_FIRST = 200


class FormatError(DataError):
    """Texts cannot be read; the message continues "column 'name' ..." and ends with the remedy."""


class AmbiguousFormat(FormatError):  # noqa: N818
    """Two formats fit all texts of a column, with different values."""


class TextFormat(ABC):
    """How the texts of a column represent numbers: ``parse`` reads them, ``write`` is its inverse."""

    kind: ClassVar[str]

    @abstractmethod
    def read(self, texts: Any) -> Array:
        """The numbers of an Arrow array of strings; NaN where a text does not fit."""

    @abstractmethod
    def texts(self, numbers: Array) -> Any:
        """Finite numbers as an Arrow array of strings."""

    def parse(self, array: Any) -> Array:
        """The numbers of an Arrow array of strings, or of a dictionary of them; NaN if missing or of another format."""
        import pyarrow
        import pyarrow.compute

        array = array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
        encoded = array if pyarrow.types.is_dictionary(array.type) else array.cast(pyarrow.string()).dictionary_encode()
        texts = pyarrow.compute.utf8_trim_whitespace(encoded.dictionary.cast(pyarrow.string()))
        places = encoded.indices.cast(pyarrow.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        numbers: Array = np.append(self.read(texts), np.nan)[places]
        return numbers

    def write(self, numbers: Array) -> Any:
        """Numbers as an Arrow array of strings, null where they are not finite."""
        import pyarrow

        finite = np.isfinite(numbers)
        distinct, places = np.unique(np.where(finite, numbers, 0.0), return_inverse=True)
        return self.texts(distinct).take(pyarrow.array(places.reshape(-1), mask=~finite))

    def as_dict(self) -> dict[str, Any]:
        """The format as JSON can hold it."""
        return {"kind": self.kind, **dataclasses.asdict(self)}  # type: ignore[call-overload]


def fits(text_format: TextFormat, texts: Any) -> bool:
    """Whether all texts of an Arrow array have this format."""
    return all(not np.isnan(text_format.read(part)).any() for part in (texts.slice(0, _FIRST), texts.slice(_FIRST)))


def longest(texts: Any) -> str:
    """The longest string of an Arrow array: it shows most of the format."""
    from pyarrow import compute

    return str(texts[int(compute.utf8_length(texts).to_numpy(zero_copy_only=False).argmax())])


def decimals_of(fractions: Any) -> tuple[int, str]:
    """The largest number of decimals and the style of an Arrow array with the digits after the decimal separator."""
    from pyarrow import compute

    lengths = set(compute.unique(compute.utf8_length(fractions)).to_pylist())
    most = max(lengths, default=0)
    return most, "fixed" if len(lengths) < 2 else "whole" if lengths == {0, most} else "shortest"


def shortened_decimals(text: str, trailing: str) -> str:
    """A text with decimals after a point, in one of the styles of ``TRAILING``."""
    short = text.rstrip("0").rstrip(".")
    return short if "." in text and (trailing == "shortest" or (trailing == "whole" and "." not in short)) else text
