"""Escaping text from files for a terminal."""

from __future__ import annotations

import unicodedata

#: Bidirectional embeddings, overrides and isolates, which change the order in which text is shown.
_REORDERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def printable(text: str) -> str:
    r"""The text on one line, with control characters as escapes.

    Example:
        >>> printable("a column\x1b[2J\n")
        'a column\\x1b[2J\\n'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode("ascii") if _is_unsafe(c) else c for c in text)


def _is_unsafe(character: str) -> bool:
    # Controls, surrogates (invalid UTF-8 in file names), line and paragraph separators.
    return (
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(character) in _REORDERING
    )
