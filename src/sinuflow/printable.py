"""Escaping text from files for a terminal."""

from __future__ import annotations

import unicodedata

#: Controls, surrogates (invalid UTF-8 in file names), line and paragraph separators.
_UNSAFE = {"Cc", "Cs", "Zl", "Zp"}
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
    unsafe = {c for c in text if unicodedata.category(c) in _UNSAFE or unicodedata.bidirectional(c) in _REORDERING}
    return "".join(c.encode("unicode_escape").decode("ascii") if c in unsafe else c for c in text)
