"""The problems of a table's columns, collected and raised in one error with options that avoid them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import ColumnsError, DataError

#: The most problems that a message describes.
_MOST = 10


@dataclass
class Refusals:
    """Problems of columns, and options of a run without them.

    Example:
        >>> refusals = Refusals("t.csv")
        >>> refusals.add("column 'my id' holds -1, outside of the map 'log'", keep=("my id", "auto"))
        >>> refusals.check()
        Traceback (most recent call last):
        sinuflow.errors.DataError: t.csv: column 'my id' holds -1, outside of the map 'log': run again with \
--map 'my id=auto' (Python: maps={'my id': 'auto'})
    """

    table: str
    problems: list[str] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    maps: dict[str, str] = field(default_factory=dict)

    def add(self, problem: str, *, drop: str | None = None, keep: tuple[str, str] | None = None) -> None:
        """A problem, and what avoids it: the name of a column to drop, or a column with another map."""
        self.problems.append(problem)
        self.drop += [] if drop is None else [drop]
        self.maps |= {} if keep is None else dict([keep])

    def check(self, heading: str = "columns cannot be used") -> None:
        """Raise a :class:`~sinuflow.errors.DataError` if there are problems: one line, or one for each of several."""
        remedy = f"run again with {options(self.drop, self.maps)}" if self.drop or self.maps else ""
        if len(self.problems) == 1:
            raise DataError(": ".join(filter(None, [self.table, *self.problems, remedy])))
        if self.problems:
            shown = [f"  {problem}" for problem in self.problems[:_MOST]]
            shown += [f"  and {len(self.problems) - _MOST} more"] if len(self.problems) > _MOST else []
            lines = [f"{self.table}: {len(self.problems)} {heading}:", *shown, *filter(None, [remedy])]
            raise ColumnsError("\n".join(lines))


def options(drop: Sequence[str], maps: Mapping[str, str]) -> str:
    """The options that drop columns and choose maps, quoted for a shell, and the arguments for Python.

    Example:
        >>> options(["a b"], {"c": "category"})
        "--drop 'a b' --map c=category (Python: drop=['a b'], maps={'c': 'category'})"
    """
    words = [word for name in drop for word in ("--drop", name)]
    words += [word for name, chosen in maps.items() for word in ("--map", f"{name}={chosen}")]
    arguments = [f"drop={list(drop)!r}"] if drop else []
    arguments += [f"maps={dict(maps)!r}"] if maps else []
    return f"{' '.join(map(quoted, words))} (Python: {', '.join(arguments)})"


def quoted(word: str) -> str:
    """A word quoted for a shell, without control characters.

    Example:
        >>> print(quoted("my id"), quoted("a\\tb"))
        'my id' $'a\\u0009b'
    """
    if word.isprintable():
        return shlex.quote(word)
    escaped = {c: rf"\u{ord(c):04x}" if ord(c) < 2**16 else rf"\U{ord(c):08x}" for c in word if not c.isprintable()}
    return "$'" + "".join(escaped.get(c, rf"\{c}" if c in "\\'" else c) for c in word) + "'"
